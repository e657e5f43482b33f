"""Trust through the API: scores, levels, decay, and what task outcomes do to it."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import Sql
from tests.conftest import World
from tests.requirements import requirement


async def data(world: World, path: str, **params: Any) -> dict[str, Any]:
    answer = await world.admin.get(f"/api/v1/trust/{path}", params=params)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["success"] is True
    return dict(body["data"])


async def post(world: World, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await world.admin.post(f"/api/v1/trust/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["success"] is True
    return dict(answer.json()["data"])


async def put(world: World, entity: str, **body: Any) -> Any:
    return await world.admin.put(f"/api/v1/trust/{entity}", json=body)


@requirement("trust.set-score", "trust.read-entity")
async def test_a_score_is_set_and_read_back(world: World) -> None:
    first = (await put(world, "e1", score=0.8)).json()
    assert first["success"] is True
    assert (first["data"]["entityId"], first["data"]["newScore"], first["data"]["delta"]) == ("e1", 0.8, 0.8)
    second = (await put(world, "e1", score=0.65, entityType="tool")).json()["data"]
    assert (second["newScore"], second["delta"]) == (0.65, -0.15)
    entity = await data(world, "e1")
    assert (entity["entityId"], entity["entityType"], entity["score"]) == ("e1", "tool", 0.65)
    assert entity["level"] == "MEDIUM"
    assert entity["lastUpdated"].endswith("Z")
    await put(world, "e2", score=0.5)
    assert (await data(world, "e2"))["entityType"] == "agent"


@requirement("trust.set-score-range")
@pytest.mark.parametrize("body", ["{}", '{"score": 1.01}', '{"score": -0.1}', '{"score": "1"}', '{"score": null}'])
async def test_a_score_out_of_range_is_refused_and_changes_nothing(world: World, body: str) -> None:
    await put(world, "e1", score=0.8)
    answer = await world.admin.put("/api/v1/trust/e1", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert (await data(world, "e1"))["score"] == 0.8


@requirement("trust.unknown-entity-404")
async def test_an_unknown_entity_is_404_and_stays_unknown(world: World) -> None:
    for path in ("nobody", "nobody/permissions"):
        assert (await world.admin.get(f"/api/v1/trust/{path}")).status_code == 404
    asked = await world.admin.post("/api/v1/trust/nobody/can-perform", json={"operation": "read"})
    assert asked.status_code == 404
    assert (await data(world, "report"))["totalEntities"] == 0


@requirement("trust.success-default", "trust.failure-default", "trust.unknown-starts-at-half")
async def test_success_and_failure_start_at_half_and_move_by_their_default_or_amount(world: World) -> None:
    assert (await post(world, "a/success"))["newScore"] == 0.52
    raised = await post(world, "a/success", {"amount": 0.1})
    assert (raised["entityId"], raised["newScore"], raised["delta"]) == ("a", 0.62, 0.1)
    failed = await post(world, "b/failure")
    assert (failed["entityId"], failed["newScore"], failed["delta"]) == ("b", 0.45, -0.05)
    assert (await post(world, "b/failure", {"amount": 0.25}))["newScore"] == 0.2


@requirement("trust.scores-stay-in-range")
async def test_scores_stop_at_their_bounds(world: World) -> None:
    await put(world, "high", score=0.99)
    await put(world, "low", score=0.01)
    top, bottom = await post(world, "high/success"), await post(world, "low/failure")
    assert (top["newScore"], top["delta"]) == (1.0, 0.01)
    assert (bottom["newScore"], bottom["delta"]) == (0.0, -0.01)


@requirement("trust.permissions", "trust.can-perform", "trust.level-operations")
@pytest.mark.parametrize(
    ("score", "level", "count"), [(0.95, "FULL", 7), (0.7, "HIGH", 6), (0.3, "LOW", 2), (0, "UNTRUSTED", 0)]
)
async def test_a_level_permits_its_operations_and_no_other(world: World, score: float, level: str, count: int) -> None:
    await put(world, "e", score=score)
    permitted = await data(world, "e/permissions")
    assert (permitted["entityId"], permitted["level"], len(permitted["operations"])) == ("e", level, count)
    for operation in ("read", "write", "delete", "search", "tag", "update", "frontmatter", "fly"):
        asked = await post(world, "e/can-perform", {"operation": operation})
        assert asked == {"entityId": "e", "operation": operation, "allowed": operation in permitted["operations"]}


@requirement("trust.levels-route")
async def test_the_levels_are_told_with_their_ranges_and_steps(world: World) -> None:
    told = await data(world, "levels")
    assert [level["name"] for level in told["levels"]] == ["FULL", "HIGH", "MEDIUM", "LOW", "UNTRUSTED"]
    assert told["levels"][1]["range"] == "0.7 - 0.9"
    assert (told["decayRate"], told["reinforcement"], told["penalty"]) == (
        "1% per day",
        "+0.02 per success",
        "-0.05 per failure",
    )


@requirement("trust.report")
async def test_the_report_covers_every_entity_and_no_other_tenant(world: World) -> None:
    await put(world, "a", score=0.9)
    await put(world, "b", score=0.5, entityType="tool")
    await post(world, "b/failure")
    await world.clients["OTHER"].put("/api/v1/trust/x", json={"score": 0.1})
    report = await data(world, "report")
    assert report["totalEntities"] == 2
    assert report["byLevel"] == {"FULL": 1, "HIGH": 0, "MEDIUM": 0, "LOW": 1, "UNTRUSTED": 0}
    assert report["byType"] == {"agent": 1, "tool": 1}
    assert report["averageScore"] == 0.675
    assert {e["entityId"]: e["score"] for e in report["entities"]} == {"a": 0.9, "b": 0.45}
    kinds = [(c["entityId"], c["kind"], c["delta"]) for c in report["recentChanges"]]
    assert kinds == [("b", "failure", -0.05), ("b", "set", 0.5), ("a", "set", 0.9)]


@requirement("trust.idle-decay")
async def test_an_idle_score_decays_when_read_and_reading_writes_nothing(world: World) -> None:
    await put(world, "e", score=0.9)
    before = await data(world, "e")
    world.clock.advance(days=10)
    decayed = await data(world, "e")
    assert decayed["score"] == pytest.approx(0.9 * 0.99**10)
    assert (decayed["level"], decayed["lastUpdated"]) == ("HIGH", before["lastUpdated"])
    stored = await world.kernel.infra.db.read(
        lambda tx: tx.row(Sql("select score from trust_scores where entity_id = 'e'"))
    )
    assert stored == (0.9,)
    assert (await post(world, "e/success"))["newScore"] == pytest.approx(0.9 * 0.99**10 + 0.02)


@requirement("trust.null-until-set")
async def test_an_agent_has_no_score_until_something_sets_one(world: World) -> None:
    agent = await world.register()
    path = f"/api/v1/registry/agents/{agent}"
    assert (await world.admin.get(path)).json()["trust_score"] is None
    assert (await world.admin.get("/api/v1/registry/agents")).json()["agents"][0]["trust_score"] is None
    await put(world, agent, score=0)
    assert (await world.admin.get(path)).json()["trust_score"] == 0


@requirement("trust.outcomes-move-trust")
async def test_eligible_outcomes_move_trust_once_and_others_leave_it(world: World) -> None:
    agent = await world.register()
    await world.do(agent)
    assert (await data(world, agent))["score"] == 0.52
    await world.do(agent, ok=False)
    assert (await data(world, agent))["score"] == 0.47
    await world.do(agent, ok=False, outcome_class="provider_failure")
    await world.do(agent, degraded=True)
    cancelled = await world.submit()
    await world.admin.post(f"/api/v1/tasks/{cancelled}/cancel")
    assert (await data(world, agent))["score"] == 0.47
    assert len((await data(world, "report"))["recentChanges"]) == 2
