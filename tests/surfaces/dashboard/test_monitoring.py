"""The governance snapshot, the sentinel, agents' cards, and how routing ranks."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from stentor.core.db.driver import ReadOnlyDriver
from stentor.core.errors import StoreUnavailable
from stentor.domains.learning import store
from stentor.domains.learning.model import Weight
from stentor.surfaces.dashboard import wire
from stentor.surfaces.dashboard.presenters import resources
from tests.requirements import requirement
from tests.surfaces.dashboard.board import Board

SWINGING, STEADY = "SF" * 25, "S" * 50


async def learn(board: Board, agent_id: str, task_type: str, recent: str) -> None:
    """What the sentinel would have seen after these outcomes."""

    def work(tx: Tx) -> None:
        weight = Weight(agent_id, task_type, 1.0, 12.0, len(recent), recent, tx.now)
        store.put(tx, weight)
        if recent == SWINGING:
            store.insert_alert(tx, weight, 0.98, 0.4)

    await board.world.kernel.infra.db.write(work)


@requirement("dashboard.governance-snapshot", "dashboard.status-counts")
async def test_an_archived_agent_is_in_no_list_until_it_is_restored(board: Board) -> None:
    world = board.world
    old, new = await world.register("old"), await world.register("new", capabilities=["other"])
    await world.do(old)
    for _ in range(3):
        body = {"tool": "shell", "operation": "execute"}
        await world.admin.post(f"/api/v1/registry/agents/{old}/authorize", json=body)

    async def listed() -> tuple[list[str], dict[str, int], list[str], list[str]]:
        snapshot = await board.get("/api/monitoring/governance")
        scopes = await board.get("/api/hebbian/sentinel")
        return (
            [row["agent_id"] for row in snapshot["agents"]],
            snapshot["status_counts"],
            [row["agent_id"] for row in snapshot["sentinel"]],
            [row["agent_id"] for row in scopes["scopes"]],
        )

    assert await listed() == ([new, old], {"active": 1, "suspended": 0, "quarantined": 1}, [old], [old])
    await world.admin.post(f"/api/v1/registry/agents/{old}/archive", json={"reason": "replaced"})
    assert await listed() == ([new], {"active": 1, "suspended": 0, "quarantined": 0}, [], [])
    counts = world.kernel.agents.registry.agents.status_counts
    assert +counts == {"active": 1}
    await world.admin.post(f"/api/v1/registry/agents/{old}/restore")
    assert (await listed())[0] == [new, old]
    assert +counts == {"active": 1, "quarantined": 1}


@requirement(
    "dashboard.governance-snapshot", "dashboard.unscored-is-null", "dashboard.status-counts", "dashboard.one-tenant"
)
async def test_the_snapshot_has_a_row_for_each_agent_of_the_tenant(board: Board) -> None:
    empty = await board.get("/api/monitoring/governance")
    assert empty["agents"] == []
    assert empty["status_counts"] == {"active": 0, "suspended": 0, "quarantined": 0}
    world = board.world
    ann, bob = await world.register("ann"), await world.register("bob", trust_tier="human")
    await world.clients["OTHER"].post("/api/v1/registry/agents", json={"name": "foreign", "capabilities": ["echo"]})
    await world.do(ann)
    for _ in range(3):
        body = {"tool": "shell", "operation": "execute"}
        await world.admin.post(f"/api/v1/registry/agents/{bob}/authorize", json=body)
    snapshot = await board.get("/api/monitoring/governance")
    wire.Governance.model_validate(snapshot)
    assert snapshot["stores"] == {"agent_registry": True, "hebbian_weights": True, "trust": True}
    rows = {row["name"]: row for row in snapshot["agents"]}
    assert set(rows) == {"ann", "bob"}
    assert rows["ann"] == {
        "agent_id": ann,
        "name": "ann",
        "tier": "monitored",
        "status": "active",
        "violation_count": 0,
        "trust_score": 0.52,
    }
    quarantined = {"tier": "human", "status": "quarantined", "violation_count": 3}
    assert rows["bob"].items() >= quarantined.items()
    assert snapshot["status_counts"] == {"active": 1, "suspended": 0, "quarantined": 1}


@requirement("dashboard.unscored-is-null")
async def test_an_agent_without_a_score_is_null_and_trust_fades_with_idle_days(board: Board) -> None:
    ann = await board.world.register("ann")
    assert (await board.get("/api/monitoring/governance"))["agents"][0]["trust_score"] is None
    await board.world.do(ann)
    board.world.clock.advance(days=2)
    faded = (await board.get("/api/monitoring/governance"))["agents"][0]["trust_score"]
    assert faded == pytest.approx(0.52 * 0.99**2)


@requirement("dashboard.sentinel-rows", "dashboard.sentinel-routes", "dashboard.one-tenant")
async def test_the_sentinel_has_a_row_for_each_agent_and_task_type(board: Board) -> None:
    ann = await board.world.register("ann")
    await learn(board, ann, "b", SWINGING)
    await learn(board, ann, "a", STEADY)
    answer = await board.world.clients["OTHER"].post(
        "/api/v1/registry/agents", json={"name": "foreign", "capabilities": ["echo"]}
    )
    await learn(board, answer.json()["agent_id"], "c", SWINGING)
    rows = (await board.get("/api/monitoring/governance"))["sentinel"]
    swinging = {
        "agent_id": ann,
        "agent_name": "ann",
        "task_type": "b",
        "alert_active": True,
        "oscillation_rate": 0.98,
        "threshold": 0.4,
        "sample_count": 50,
    }
    steady = swinging | {"task_type": "a", "alert_active": False, "oscillation_rate": 0.0}
    assert rows == [steady, swinging]
    state = await board.get("/api/hebbian/sentinel")
    wire.Sentinel.model_validate(state)
    assert (state["scopes"], state["active_alerts"], state["window"], state["threshold"]) == (rows, 1, 50, 0.4)
    alerts = (await board.get("/api/hebbian/sentinel/alerts"))["alerts"]
    assert [(one["agent_name"], one["task_type"], one["resolved_at"]) for one in alerts] == [("ann", "b", None)]


@requirement("dashboard.sentinel-routes")
async def test_alerts_are_narrowed_to_the_open_ones_and_to_a_number(board: Board) -> None:
    ann = await board.world.register("ann")
    for task_type in ("a", "b", "c"):
        await learn(board, ann, task_type, SWINGING)
    path = "/api/hebbian/sentinel/alerts"
    newest = (await board.get(path))["alerts"]
    wire.Alerts.model_validate({"alerts": newest})
    assert [one["task_type"] for one in newest] == ["c", "b", "a"]
    await board.world.kernel.infra.db.write(lambda tx: store.resolve_alert(tx, newest[1]["alert_id"]))
    still = (await board.get(path, open_only="true"))["alerts"]
    assert [one["task_type"] for one in still] == ["c", "a"]
    assert (await board.get(path, limit=2))["alerts"][1]["resolved_at"] is not None
    for limit in ("0", "501", "x"):
        await board.get(path, 400, limit=limit)


@requirement("dashboard.store-flags")
async def test_a_store_that_cannot_be_read_is_flagged_and_no_error(board: Board) -> None:
    ann = await board.world.register("ann")
    await board.world.register("zoe")
    await learn(board, ann, "a", STEADY)
    db = board.world.kernel.infra.db
    await db.write(lambda tx: tx.run(Sql("alter table hebbian_weights rename to hidden")))
    snapshot = await board.get("/api/monitoring/governance")
    assert snapshot["stores"] == {"agent_registry": True, "hebbian_weights": False, "trust": True}
    assert (len(snapshot["agents"]), snapshot["sentinel"]) == (2, [])
    await board.get("/api/hebbian/sentinel", 500)
    await db.write(lambda tx: tx.run(Sql("alter table hidden rename to hebbian_weights")))
    broken = Sql("update agents set capabilities = '7' where agent_id = :agent_id")
    await db.write(lambda tx: tx.run(broken, agent_id=ann))
    snapshot = await board.get("/api/monitoring/governance")
    assert snapshot["stores"] == {"agent_registry": False, "hebbian_weights": True, "trust": True}
    assert [row["name"] for row in snapshot["agents"]] == ["zoe"]
    assert snapshot["sentinel"][0]["agent_name"] is None


@requirement("dashboard.store-flags")
@pytest.mark.parametrize(
    ("table", "missing"),
    [("trust_scores", "trust"), ("agents", "agent_registry"), ("hebbian_weights", "hebbian_weights")],
)
async def test_a_store_that_cannot_be_read_leaves_the_others_as_they_are(
    board: Board, table: str, missing: str
) -> None:
    ann = await board.world.register("ann")
    await board.world.do(ann)
    db = board.world.kernel.infra.db
    await db.write(lambda tx: tx.run(Sql(f"alter table {table} rename to hidden")))
    snapshot = await board.get("/api/monitoring/governance")
    await db.write(lambda tx: tx.run(Sql(f"alter table hidden rename to {table}")))
    assert {name for name, whole in snapshot["stores"].items() if not whole} == {missing}
    assert [row["name"] for row in snapshot["agents"]] == ([] if missing == "agent_registry" else ["ann"])
    assert [row["agent_id"] for row in snapshot["sentinel"]] == ([] if missing == "hebbian_weights" else [ann])
    if missing == "trust":
        assert snapshot["agents"][0]["trust_score"] is None


@requirement("dashboard.sentinel-threshold", "dashboard.sentinel-rows", "dashboard.sentinel-routes")
async def test_the_threshold_of_the_settings_is_shown_and_decides(make_board: Any) -> None:
    for threshold, alarm in ((0.4, True), (0.99, False)):
        board: Board = await make_board(SERVICE_SENTINEL_THRESHOLD=str(threshold))
        name = f"ann-{alarm}".lower()
        await learn(board, await board.world.register(name), "a", SWINGING)
        rows = (await board.get("/api/monitoring/governance"))["sentinel"]
        row = next(one for one in rows if one["agent_name"] == name)
        assert (row["threshold"], row["alert_active"], row["oscillation_rate"]) == (threshold, alarm, 0.98)
        assert (await board.get("/api/hebbian/sentinel"))["threshold"] == threshold


@requirement("dashboard.store-flags", "dashboard.never-writes")
async def test_the_dashboard_has_no_way_to_write(board: Board) -> None:
    with pytest.raises(StoreUnavailable, match="read-only"):
        ReadOnlyDriver(board.world.kernel.infra.db.driver).writer()


@requirement("dashboard.agent-card")
async def test_a_card_is_plain_text_that_no_browser_takes_for_anything_else(board: Board) -> None:
    body = {"runtime": {"kind": "http", "endpoint": "https://example.com/hook?token=secret-7c1e"}}
    ann = await board.world.register("<script>ann", **body)
    await learn(board, ann, "echo", STEADY)
    answer = await board.http.get(f"/api/agents/{ann}/card")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    lines = answer.text.splitlines()
    assert lines[0] == "<script>ann"
    assert "trust:        unscored" in lines
    assert "  echo: 1.000 after 50 outcomes, 12 ms on average" in lines
    assert "secret-7c1e" not in answer.text
    await board.get("/api/agents/00000000-0000-7000-8000-000000000000/card", 404)
    await board.get("/api/agents/%00/card", 404)


@requirement("dashboard.routing-config")
async def test_the_ranking_is_that_of_the_settings_in_the_gateways_process(make_board: Any, make_world: Any) -> None:
    world = await make_world(SERVICE_HEBBIAN_ROUTING_ALPHA="0.2", SERVICE_HEBBIAN_ROUTING_BETA="0.3")
    config = await (await make_board(world)).get("/api/routing/config")
    wire.RoutingConfig.model_validate(config)
    assert (config["source"], config["alpha"], config["beta"]) == ("settings", 0.2, 0.3)
    assert (config["trust_floor"], config["own_authority"], config["decided_at"]) == (0.0, False, None)


@requirement("dashboard.routing-config")
async def test_elsewhere_the_ranking_is_what_the_last_decision_recorded_or_unknown(board: Board) -> None:
    nothing = resources.present_routing_config(None, None)
    wire.RoutingConfig.model_validate(nothing)
    assert nothing["source"] == "unknown"
    assert {value for name, value in nothing.items() if name != "source"} == {None}
    await board.world.register()
    await board.world.submit()
    decided_at = (await board.get("/api/routing/config"))["decided_at"]
    assert decided_at is not None
