"""The registry through the API: register, read, list, change; and records that are malformed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stentor.bootstrap.kernel import build
from stentor.bootstrap.view_refresh import ViewRefresher
from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Sql
from stentor.core.db.polling import BURST
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.errors import RegistryRecordError
from stentor.domains.registry import store
from tests.conftest import MakeWorld, World
from tests.patience import soon
from tests.requirements import requirement

PATH = "/api/v1/registry/agents"
WHITELIST = {
    "tools": [{"name": "files", "paths": ["notes/**"], "operations": ["read"], "rate_limit": 5}],
    "network": {"allowlist": ["api.example.com"], "ports": [443]},
}
NOBODY = "00000000-0000-4000-8000-000000000000"


async def refused(world: World, **fields: Any) -> dict[str, Any]:
    answer = await world.admin.post(PATH, json=fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    return dict(error.get("details", {}).get("fields", {}))


async def read(world: World, agent: str) -> dict[str, Any]:
    return dict((await world.admin.get(f"{PATH}/{agent}")).json())


async def names(world: World, **params: Any) -> list[str]:
    answer = await world.admin.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    return [agent["name"] for agent in answer.json()["agents"]]


@requirement("registry.register-answers-201", "registry.tier-values-and-default", "registry.scores-range-and-default")
async def test_a_registration_answers_201_and_has_its_defaults(world: World) -> None:
    answer = await world.admin.post(PATH, json={"name": "ann"})
    assert answer.status_code == 201
    made = answer.json()
    assert (made["name"], made["status"]) == ("ann", "active")
    assert made["created_at"].endswith("Z")
    agent = await read(world, made["agent_id"])
    assert (agent["alignment_score"], agent["accuracy_score"], agent["efficiency_score"]) == (0.5, 0.5, 0.5)
    assert (agent["trust_tier"], agent["runtime"]["kind"], agent["violation_count"]) == ("monitored", "worker", 0)


@requirement("registry.quarantined-key-notice")
@pytest.mark.parametrize("archived", [False, True])
async def test_a_registration_with_the_key_of_a_quarantined_agent_says_so(world: World, archived: bool) -> None:
    bad = await world.register("bad", key_name="BOB")
    for key in ("BOB", "ANN"):
        answer = await world.admin.post(PATH, json={"name": f"{key} before", "key_name": key})
        assert (answer.status_code, answer.json()["notice"]) == (201, None)
    for _ in range(3):
        await world.admin.post(f"{PATH}/{bad}/authorize", json={"tool": "shell", "operation": "run"})
    assert (await read(world, bad))["status"] == "quarantined"
    if archived:
        assert (await world.admin.post(f"{PATH}/{bad}/archive", json={})).status_code == 200
    again = await world.admin.post(PATH, json={"name": "again", "key_name": "BOB"})
    assert (again.status_code, again.json()["status"]) == (201, "active")
    assert f"'bad', which is quarantined: {bad}" in again.json()["notice"]
    for fields in ({"key_name": "ANN"}, {}):
        answer = await world.admin.post(PATH, json={"name": f"other {len(fields)}", **fields})
        assert (answer.status_code, answer.json()["notice"]) == (201, None)
    clear = {"override_tier": "monitored", "rationale": "mended"}
    assert (await world.admin.post(f"{PATH}/{bad}/clear-violations", json=clear)).status_code == (
        409 if archived else 200
    )
    later = await world.admin.post(PATH, json={"name": "later", "key_name": "BOB"})
    assert (later.json()["notice"] is None) is not archived


@requirement("registry.register-requires-name")
async def test_a_registration_needs_a_name(world: World) -> None:
    assert "name" in await refused(world, capabilities=["echo"])
    assert "name" in await refused(world, name="")


@pytest.mark.parametrize("blank", [" ", "  ", "\u2800", "\u3164", "\u115f ", "\ufe0f", "\U000e0100"])
async def test_a_name_of_which_nobody_sees_anything_is_refused(world: World, blank: str) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("registry/agents", {"name": blank}),
        ("registry/agents", {"name": "ann", "capabilities": ["a", blank]}),
        ("tasks", {"type": blank, "input": 1}),
    ]
    for path, body in bodies:
        answer = await world.admin.post(f"/api/v1/{path}", json=body)
        assert (answer.status_code, "must not be blank" in answer.text) == (400, True), answer.text


@requirement("registry.scores-range-and-default")
@pytest.mark.parametrize("name", ["alignment_score", "accuracy_score", "efficiency_score"])
@pytest.mark.parametrize("value", [-0.01, 1.01, "0.5", None, True])
async def test_a_score_outside_its_range_is_refused_everywhere(world: World, name: str, value: Any) -> None:
    assert name in await refused(world, name="ann", **{name: value})
    agent = await world.register()
    assert (await world.admin.patch(f"{PATH}/{agent}", json={name: value})).status_code == 400
    assert (await read(world, agent))[name] == 0.5


@requirement("registry.tier-values-and-default", "registry.trust-score-read-only", "execution.runtime-values")
@pytest.mark.parametrize(
    "fields",
    [{"trust_tier": "root"}, {"trust_score": 0.9}, {"runtime": {"kind": "magic"}}, {"status": "active"}],
    ids=str,
)
async def test_what_a_registration_may_not_say_is_refused(world: World, fields: dict[str, Any]) -> None:
    await refused(world, name="ann", **fields)
    assert await names(world) == []


@requirement("registry.tier-values-and-default", "execution.runtime-values")
@pytest.mark.parametrize("tier", ["auto", "monitored", "human"])
@pytest.mark.parametrize(
    "runtime",
    [
        {"kind": "worker"},
        {"kind": "builtin", "name": "summarizer"},
        {"kind": "http", "endpoint": "https://example.com/"},
    ],
    ids=lambda runtime: runtime["kind"],
)
async def test_tiers_and_runtimes_are_read_back(world: World, tier: str, runtime: dict[str, Any]) -> None:
    agent = await read(world, await world.register(trust_tier=tier, runtime=runtime))
    assert (agent["trust_tier"], agent["runtime"]["kind"]) == (tier, runtime["kind"])


@requirement("registry.whitelist-shape")
async def test_a_whitelist_is_read_back_as_given(world: World) -> None:
    agent = await world.register(sandbox_whitelist=WHITELIST)
    assert (await read(world, agent))["sandbox_whitelist"] == WHITELIST


@requirement("registry.whitelist-shape")
@pytest.mark.parametrize(
    "wrong",
    [
        {"tools": [{"name": 1}]},
        {"tools": [{"name": "t", "rate_limit": "5"}]},
        {"tools": [{"name": "t", "rate_limit": 1.5}]},
        {"tools": [{"name": "t", "paths": "notes"}]},
        {"network": {"ports": ["443"]}},
        {"network": {"ports": [70_000]}},
        {"network": {"allowlist": [1]}},
        {"shell": True},
    ],
    ids=str,
)
async def test_a_whitelist_of_wrong_types_is_refused(world: World, wrong: dict[str, Any]) -> None:
    await refused(world, name="ann", sandbox_whitelist=wrong)


@requirement("registry.read-agent")
async def test_an_agent_is_read_with_all_its_fields(world: World) -> None:
    agent = await world.register(key_name="BOB")
    before = await read(world, agent)
    assert set(before) >= {
        *("agent_id", "name", "capabilities", "alignment_score", "accuracy_score", "efficiency_score"),
        *("trust_tier", "trust_score", "status", "violation_count", "sandbox_whitelist", "created_at", "updated_at"),
    }
    assert (before["last_task"], before["key_name"]) == (None, "bob")
    task = await world.task(await world.submit())
    assert (await read(world, agent))["last_task"] == task["created_at"]


@requirement("registry.unknown-agent-404")
@pytest.mark.parametrize("agent", [NOBODY, "x", "..", "a%2Fb"])
async def test_every_route_answers_404_for_an_unknown_agent(world: World, agent: str) -> None:
    calls = [
        ("GET", "", None),
        ("PATCH", "", {"accuracy_score": 0.1}),
        ("GET", "/violations", None),
        ("POST", "/clear-violations", {"override_tier": "auto", "rationale": "r"}),
        ("POST", "/suspend", {"reason": "r"}),
        ("POST", "/activate", None),
        ("POST", "/archive", {}),
        ("POST", "/restore", None),
        ("POST", "/authorize", {"tool": "t", "operation": "o"}),
    ]
    if agent == "..":
        agent = "%2E%2E"
    for method, path, body in calls:
        answer = await world.admin.request(method, f"{PATH}/{agent}{path}", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND"), path


@requirement("registry.list-agents")
async def test_the_list_is_narrowed_and_paged(world: World) -> None:
    for i, (tier, capability) in enumerate([("auto", "a"), ("human", "a"), ("auto", "b")]):
        await world.register(f"n{i}", capabilities=[capability], trust_tier=tier)
        world.clock.advance(seconds=1)
    ill = await world.register("ill", capabilities=["a", "b"])
    await world.admin.post(f"{PATH}/{ill}/suspend", json={"reason": "ill"})
    assert await names(world) == ["n0", "n1", "n2", "ill"]
    assert await names(world, capability="a") == ["n0", "n1", "ill"]
    assert await names(world, status="suspended") == ["ill"]
    assert await names(world, trust_tier="auto", capability="b") == ["n2"]
    page = (await world.admin.get(PATH, params={"limit": 2, "offset": 1})).json()
    assert [a["name"] for a in page["agents"]] == ["n1", "n2"]
    assert (page["total"], page["limit"], page["offset"]) == (4, 2, 1)
    assert set(page["agents"][0]) == {
        *("agent_id", "name", "capabilities", "trust_score", "status", "online", "last_seen"),
        *("archived_at", "notice", "offline_reason"),
    }
    assert await names(world, limit=2, cursor=page["next_cursor"]) == ["ill"]
    assert (await world.admin.get(PATH, params={"status": "asleep"})).status_code == 400


@requirement("registry.list-agents")
async def test_an_agent_that_leaves_the_list_moves_none_to_a_page_already_read(world: World) -> None:
    agents = [await world.register(f"n{number}") for number in range(5)]
    first = (await world.admin.get(PATH, params={"limit": 2})).json()
    assert (await world.admin.post(f"{PATH}/{agents[0]}/archive", json={"reason": "old"})).status_code == 200
    second = (await world.admin.get(PATH, params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [agent["name"] for agent in second["agents"]] == ["n2", "n3"]
    assert await names(world, limit=2, cursor=second["next_cursor"]) == ["n4"]


@requirement("registry.patch-scores")
async def test_a_patch_changes_only_the_scores_given(world: World) -> None:
    agent = await world.register(alignment_score=0.1)
    before = await read(world, agent)
    world.clock.advance(seconds=1)
    answer = (await world.admin.patch(f"{PATH}/{agent}", json={"accuracy_score": 0.9})).json()
    assert set(answer) == {"agent_id", "alignment_score", "accuracy_score", "efficiency_score", "updated_at"}
    assert (answer["alignment_score"], answer["accuracy_score"], answer["efficiency_score"]) == (0.1, 0.9, 0.5)
    after = await read(world, agent)
    assert after["updated_at"] == answer["updated_at"] > before["updated_at"]
    assert {**after, "accuracy_score": 0.5, "updated_at": 0} == {**before, "updated_at": 0}


@requirement("registry.patch-scores", "registry.trust-score-read-only")
@pytest.mark.parametrize(
    "body",
    [
        {"trust_score": 1},
        {"name": "eve"},
        {"status": "active"},
        {"accuracy_score": None},
        {"trust_tier": "root"},
        {"trust_tier": None},
        {"key_name": ""},
        {"capabilities": ["all"]},
        {},
    ],
)
async def test_a_patch_of_anything_else_is_refused(world: World, body: dict[str, Any]) -> None:
    agent = await world.register()
    before = await read(world, agent)
    answer = await world.admin.patch(f"{PATH}/{agent}", json={"efficiency_score": 0.9, **body} if body else body)
    assert answer.status_code == 400
    assert await read(world, agent) == before


@requirement("registry.edit-tier-and-key")
async def test_a_patch_sets_the_tier_and_the_key_at_once_and_is_recorded(world: World) -> None:
    agent = await world.register(trust_tier="auto", capabilities=["echo"])
    body = {"trust_tier": "human", "key_name": "BOB", "reason": "It publishes now."}
    assert (await world.admin.patch(f"{PATH}/{agent}", json=body)).status_code == 200
    after = await read(world, agent)
    assert (after["trust_tier"], after["key_name"]) == ("human", "bob")
    event = (await world.admin.get("/api/v1/audit")).json()["events"][0]
    assert (event["event_type"], event["agent_id"]) == ("agent_updated", agent)
    assert event["message"] == "Tier set to human. Key set to bob."
    assert {"trust_tier": "human", "key_name": "bob", "by": "admin", "reason": "It publishes now."}.items() <= event[
        "metadata"
    ].items()
    assert (await world.task(await world.submit()))["status"] == "pending_approval"


@requirement("registry.edit-tier-and-key")
async def test_a_looser_tier_needs_a_reason_and_a_key_is_taken_away_with_null(world: World) -> None:
    agent = await world.register(trust_tier="human", key_name="bob")
    before = await read(world, agent)
    for reason in ({}, {"reason": " "}):
        answer = await world.admin.patch(f"{PATH}/{agent}", json={"trust_tier": "monitored", **reason})
        assert answer.status_code == 400
        assert "reason" in answer.json()["error"]["details"]["fields"]
    assert (await world.admin.patch(f"{PATH}/{agent}", json={"reason": "Nothing else."})).status_code == 400
    assert await read(world, agent) == before
    body = {"trust_tier": "auto", "key_name": None, "reason": "A month without mistakes."}
    assert (await world.admin.patch(f"{PATH}/{agent}", json=body)).status_code == 200
    assert {**await read(world, agent), "updated_at": 0} == {
        **before,
        "trust_tier": "auto",
        "key_name": None,
        "updated_at": 0,
    }


SPOILED = [
    ("capabilities", "'not json'"),
    ("capabilities", "'{\"echo\": 1}'"),
    ("capabilities", "'[1]'"),
    ("runtime", "'[]'"),
    ("runtime", '\'{"kind": "magic"}\''),
    ("sandbox_whitelist", "'{\"tools\": 1}'"),
]


@requirement("registry.malformed-record", "registry.malformed-named")
@pytest.mark.parametrize(("column", "value"), SPOILED, ids=str)
async def test_a_malformed_record_is_an_error_and_is_never_routed_to(
    make_world: MakeWorld, column: str, value: str
) -> None:
    world = await make_world()
    agent = await world.register("broken", alignment_score=1.0)
    sound = await world.register("sound")
    await world.kernel.infra.db.write(
        lambda tx: tx.run(Sql(f"update agents set {column} = {value} where name = 'broken'"))
    )
    with pytest.raises(RegistryRecordError):
        await world.kernel.infra.db.read(lambda tx: store.find(tx, "default", agent))
    answer = await world.admin.get(f"{PATH}/{agent}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "REGISTRY_RECORD_INVALID")
    later = build(world.kernel.infra.settings, world.kernel.infra.db, world.clock)
    await later.views.refresh(0)
    assert [a.agent_id for a in later.agents.registry.agents.list_capable("default", ["echo"])] == [sound]
    await world.kernel.views.refresh(0)
    assert (await world.admin.get(PATH)).json()["malformed"] == [agent]
    assert (await world.clients["OTHER"].get(PATH)).json()["malformed"] == []


@pytest.mark.only("postgresql", reason="a process alone misses no change")
async def test_a_change_during_a_long_start_is_loaded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    later = build(world.kernel.infra.settings, world.kernel.infra.db, world.clock)
    recover, registered = later.tasks.reconciler.recover, list[str]()

    async def recover_slowly(*, is_single_process: bool) -> int:
        registered.append(await world.register())
        world.clock.advance(seconds=60)
        return await recover(is_single_process=is_single_process)

    monkeypatch.setattr(later.tasks.reconciler, "recover", recover_slowly)
    await later.start([])
    try:
        agents = later.agents.registry.agents
        await soon(lambda: [a.agent_id for a in agents.list_capable("default", ["echo"])] == registered)
    finally:
        await later.stop()


@requirement("registry.builtin-agents-registered")
async def test_the_builtin_summarizer_is_registered_once(make_world: MakeWorld) -> None:
    for _ in range(2):
        world = await make_world(SERVICE_BUILTIN_AGENTS="true")
        assert await names(world, capability="summarize") == ["summarizer"]
    assert await names(await make_world(SERVICE_BUILTIN_AGENTS="false")) == ["summarizer"]


@requirement("registry.builtin-agents-registered")
async def test_without_the_setting_there_is_no_builtin_agent(world: World) -> None:
    assert await names(world) == []


@requirement("registry.presence")
async def test_an_agent_is_online_while_its_worker_polls_and_offline_after_that(world: World) -> None:
    agent = await world.register()
    old = await read(world, agent)
    assert (old["online"], old["last_seen"]) == (True, None), "a worker has one interval to come after a restart"
    world.clock.advance(seconds=61)
    assert (await read(world, agent))["online"] is False
    fresh = await read(world, await world.register("bob"))
    assert (fresh["online"], fresh["last_seen"]) == (False, None), "no program has connected as a new one"
    seen = format_iso(world.clock.now())
    await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    world.clock.advance(seconds=59)
    assert ((await read(world, agent))["online"], (await read(world, agent))["last_seen"]) == (True, seen)
    world.clock.advance(seconds=2)
    row, _ = (await world.admin.get(PATH)).json()["agents"]
    assert (row["online"], row["last_seen"]) == (False, seen)


@requirement("registry.presence")
async def test_an_agent_without_a_worker_was_never_seen(world: World) -> None:
    runtime = {"kind": "builtin", "name": "summarizer"}
    agent = await world.register(runtime=runtime)
    world.clock.advance(seconds=3_600)
    record = await read(world, agent)
    assert (record["online"], record["last_seen"]) == (True, None)


@pytest.fixture
async def deaf(world: World, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> World:
    """A second process, which hears of no change of the first one."""
    monkeypatch.setattr(ViewRefresher, "keep_fresh", lambda _: asyncio.Event().wait())
    made: World = await make_world()
    return made


@pytest.mark.only("postgresql", reason="a process alone misses no change")
@requirement("scale.known-everywhere")
async def test_an_agent_can_be_used_at_once_in_every_process(world: World, deaf: World) -> None:
    by_name = await world.register("ann", capabilities=["sing"])
    assert (await deaf.admin.get("/api/v1/agents/ann")).json()["agent_id"] == by_name
    by_id = await world.register("bob", capabilities=["dance"])
    assert (await deaf.admin.post(f"/api/v1/agents/{by_id}/claims", json={})).status_code == 200
    await world.register("cid", capabilities=["act"])
    await deaf.submit(required_capabilities=["act"])
    await world.admin.post(f"{PATH}/{by_id}/suspend", json={"reason": "r"})
    await deaf.kernel.views.refresh(0)
    await world.admin.post(f"{PATH}/{by_id}/activate", json={"reason": "r"})
    assert (await deaf.admin.post(f"/api/v1/agents/{by_id}/claims", json={})).status_code == 200


@pytest.mark.only("postgresql", reason="a process alone misses no change")
@requirement("scale.known-everywhere")
async def test_a_change_is_read_also_if_its_commit_took_longer_than_it_is_awaited(world: World, deaf: World) -> None:
    agent = await world.register("ann", capabilities=["sing"])
    began = world.clock.now() + SECOND
    read_at = await deaf.kernel.views.refresh(0)
    driver = world.kernel.infra.db.driver
    assert isinstance(driver, PostgresDriver)
    with driver.connect() as commit_waits:
        suspend = "update agents set status = 'suspended', updated_at = %s where agent_id = %s"
        commit_waits.execute(suspend, (began, agent))
        # Some more rounds: when a transaction in another test's database ends, the time goes back as well.
        for _ in range(100):
            world.clock.advance(seconds=100)
            read_at = await deaf.kernel.views.refresh(read_at)
            if read_at > began:
                break
        assert read_at > began
    for _ in range(2):
        world.clock.advance(seconds=1)
        read_at = await deaf.kernel.views.refresh(read_at)
    assert [a.status for a in deaf.kernel.agents.registry.agents.list_capable("default", ["sing"])] == ["suspended"]


@pytest.mark.only("postgresql", reason="a process alone misses no change")
@requirement("scale.known-everywhere")
async def test_an_agent_is_in_the_lists_of_every_process_at_once(world: World, deaf: World) -> None:
    for number in range(BURST + 2):
        await world.register(f"n{number:02}")
        assert (await names(deaf))[-1] == f"n{number:02}"


@pytest.mark.only("postgresql", reason="a process alone misses no change")
@requirement("scale.known-everywhere")
async def test_the_trust_of_an_agent_is_shown_at_once_by_every_process(world: World, deaf: World) -> None:
    agent = await world.register()
    await read(deaf, agent)
    for score in (0.2, 0.8):
        assert (await world.admin.put(f"/api/v1/trust/{agent}", json={"score": score})).status_code == 200
        assert (await read(deaf, agent))["trust_score"] == score
    assert (await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.4})).status_code == 200
    (row,) = (await deaf.admin.get(PATH)).json()["agents"]
    assert row["trust_score"] == 0.4


@pytest.mark.only("postgresql", reason="a process alone misses no change")
@requirement("scale.known-everywhere")
async def test_made_up_agents_cause_few_reads(world: World, deaf: World) -> None:
    catch_up, reads = deaf.kernel.agents.registry.agents.catch_up, list[None]()
    read = catch_up.read
    assert read is not None

    async def count() -> None:
        reads.append(None)
        await read()

    catch_up.read, catch_up._now = count, lambda: catch_up._counted_at
    known = await world.register()
    await deaf.kernel.views.refresh(0)
    for _ in range(2 * BURST):
        assert (await deaf.admin.post(f"/api/v1/agents/{known}/claims", json={})).status_code == 200
    assert not reads
    for _ in range(2 * BURST):
        assert (await deaf.admin.get("/api/v1/agents/nobody")).status_code == 404
    assert len(reads) == BURST
