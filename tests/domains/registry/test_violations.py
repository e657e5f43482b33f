"""Authorize, violations, quarantine, suspension: through the API."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.domains.registry import store
from tests.conftest import World
from tests.requirements import requirement

PATH = "/api/v1/registry/agents"
WHITELIST = {
    "tools": [
        {"name": "files", "paths": ["notes/**"], "operations": ["read"]},
        {"name": "clock", "operations": ["read"], "rate_limit": 2},
        {"name": "web", "operations": ["get"]},
    ],
    "network": {"allowlist": ["api.example.com"], "ports": [443]},
}
GOOD = {"tool": "files", "operation": "read", "path": "notes/a"}
BAD = {"tool": "shell", "operation": "run"}


async def authorize(world: World, agent: str, call: dict[str, Any]) -> dict[str, Any]:
    answer = await world.admin.post(f"{PATH}/{agent}/authorize", json=call)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def violations(world: World, agent: str) -> dict[str, Any]:
    return dict((await world.admin.get(f"{PATH}/{agent}/violations")).json())


async def clear(world: World, agent: str, **fields: Any) -> Any:
    return await world.admin.post(
        f"{PATH}/{agent}/clear-violations", json={"override_tier": "human", "rationale": "seen", **fields}
    )


async def status(world: World, agent: str) -> str:
    return str((await world.admin.get(f"{PATH}/{agent}")).json()["status"])


@requirement("registry.authorize-answers")
async def test_what_the_allowlist_names_is_allowed(world: World) -> None:
    agent = await world.register(sandbox_whitelist=WHITELIST)
    web = {"tool": "web", "operation": "get", "host": "api.example.com", "port": 443}
    for call in (GOOD, {"tool": "clock", "operation": "read"}, web):
        answer = await authorize(world, agent, call)
        assert (answer["allowed"], answer["violation"], answer["violation_count"]) == (True, None, 0)
    assert (await violations(world, agent))["violations"] == []


@requirement("registry.authorize-denial-recorded", "registry.violations-read")
@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (BAD, "unauthorized_tool"),
        ({**GOOD, "operation": "delete"}, "unauthorized_tool"),
        ({**GOOD, "path": "notes/../secret"}, "unauthorized_path"),
        ({**GOOD, "path": "/etc/passwd"}, "unauthorized_path"),
        ({"tool": "web", "operation": "get", "host": "evil.com", "port": 443}, "unsafe_network"),
        ({"tool": "web", "operation": "get", "host": "api.example.com", "port": 22}, "unsafe_network"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_denial_is_recorded_with_its_type(world: World, call: dict[str, Any], kind: str) -> None:
    agent = await world.register(sandbox_whitelist=WHITELIST)
    answer = await authorize(world, agent, call)
    assert (answer["allowed"], answer["violation"], answer["violation_count"]) == (False, kind, 1)
    found = await violations(world, agent)
    assert (found["agent_id"], found["violation_count"], found["quarantined"]) == (agent, 1, False)
    (violation,) = found["violations"]
    assert set(violation) >= {"violation_id", "timestamp", "type", "details"}
    assert violation["type"] == kind


@requirement("registry.authorize-denial-recorded")
async def test_calls_above_the_rate_are_denied_until_time_has_passed(world: World) -> None:
    agent = await world.register(sandbox_whitelist=WHITELIST)
    call = {"tool": "clock", "operation": "read"}
    assert [(await authorize(world, agent, call))["allowed"] for _ in range(3)] == [True, True, False]
    assert [v["type"] for v in (await violations(world, agent))["violations"]] == ["rate_limit"]
    world.clock.advance(seconds=31)
    assert (await authorize(world, agent, call))["allowed"] is True


@requirement("registry.authorize-denial-recorded")
async def test_a_rate_frees_calls_again_though_the_clock_went_back(world: World) -> None:
    agent = await world.register(sandbox_whitelist=WHITELIST)
    call = {"tool": "clock", "operation": "read"}
    for _ in range(2):
        await authorize(world, agent, call)
    world.clock.advance(seconds=-3600)
    assert (await authorize(world, agent, call))["allowed"] is False
    world.clock.advance(seconds=31)
    assert (await authorize(world, agent, call))["allowed"] is True


@requirement("registry.authorize-fails-closed")
async def test_nothing_is_allowed_without_a_whitelist_or_out_of_service(world: World) -> None:
    bare = await world.register("bare")
    assert (await authorize(world, bare, GOOD))["allowed"] is False
    agent = await world.register("able", sandbox_whitelist=WHITELIST)
    await world.admin.post(f"{PATH}/{agent}/suspend", json={"reason": "ill"})
    assert (await authorize(world, agent, GOOD))["allowed"] is False
    other = await world.register("other", sandbox_whitelist=WHITELIST)
    for _ in range(3):
        await authorize(world, other, BAD)
    assert (await authorize(world, other, GOOD))["allowed"] is False


@requirement("registry.authorize-fails-closed")
async def test_when_the_check_cannot_be_recorded_nothing_is_allowed(world: World) -> None:
    agent = await world.register(sandbox_whitelist=WHITELIST)
    world.runlog.broken = True
    assert (await world.admin.post(f"{PATH}/{agent}/authorize", json=GOOD)).status_code == 503
    assert (await world.admin.post(f"{PATH}/{agent}/authorize", json=BAD)).status_code == 503
    world.runlog.broken = False
    assert (await violations(world, agent))["violation_count"] == 0


@requirement("registry.third-violation-quarantines")
async def test_a_third_violation_quarantines_the_agent(world: World) -> None:
    agent = await world.register()
    for expected in ("active", "active", "quarantined"):
        answer = await authorize(world, agent, BAD)
        assert answer["quarantined"] is (expected == "quarantined")
        assert await status(world, agent) == expected
    row = Sql("select violation_count, status from agents where agent_id = :agent_id")
    last = Sql("select max(happened_at) from violations where agent_id = :agent_id")
    stored = await world.kernel.infra.db.read(lambda tx: (tx.row(row, agent_id=agent), tx.row(last, agent_id=agent)))
    assert stored == ((3, "quarantined"), (world.clock.now(),))
    lifted = await world.admin.post(f"{PATH}/{agent}/activate")
    assert lifted.status_code == 409


@requirement("registry.third-violation-quarantines")
async def test_routing_learns_of_the_quarantine_though_the_clock_went_back(world: World) -> None:
    agent = await world.register()
    await world.admin.patch(f"{PATH}/{agent}", json={"accuracy_score": 0.9})
    world.clock.advance(seconds=-5)
    for _ in range(3):
        await authorize(world, agent, BAD)
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    answer = await world.admin.post("/api/v1/tasks", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "ROUTING_AGENT_UNAVAILABLE")


@requirement("registry.third-violation-quarantines")
async def test_every_violation_is_a_new_version_of_the_agent_though_the_clock_stands_still(world: World) -> None:
    """By it a process sees at a claim that what it knows of an agent is old."""
    agent, seen = await world.register(), []
    for _ in range(3):
        seen.append(world.kernel.agents.registry.agents.version(agent))
        await authorize(world, agent, BAD)
        stored = await world.kernel.infra.db.read(lambda tx: store.find(tx, "default", agent))
        assert stored is not None
        assert stored.updated_at not in seen


@requirement("registry.clear-violations", "registry.clear-applies-tier", "registry.violations-read")
async def test_clearing_lifts_quarantine_and_applies_the_tier(world: World) -> None:
    agent = await world.register(trust_tier="auto")
    for _ in range(3):
        await authorize(world, agent, BAD)
    cleared = (await clear(world, agent)).json()
    assert (cleared["agent_id"], cleared["violation_count"], cleared["quarantined"]) == (agent, 0, False)
    assert cleared["overridden_by"] == "admin"
    assert cleared["override_timestamp"].endswith("Z")
    read = (await world.admin.get(f"{PATH}/{agent}")).json()
    assert (read["status"], read["trust_tier"], read["violation_count"]) == ("active", "human", 0)
    assert (await violations(world, agent))["violations"] == []
    kept = await world.admin.get(f"{PATH}/{agent}/violations", params={"include_cleared": True})
    assert len(kept.json()["violations"]) == 3
    assert (await authorize(world, agent, BAD))["quarantined"] is False


@requirement("registry.clear-violations")
@pytest.mark.parametrize("wrong", [{"override_tier": "root"}, {"rationale": ""}, {"rationale": None}])
async def test_clearing_needs_a_tier_and_a_reason(world: World, wrong: dict[str, Any]) -> None:
    agent = await world.register()
    await authorize(world, agent, BAD)
    assert (await clear(world, agent, **wrong)).status_code == 400
    assert (await violations(world, agent))["violation_count"] == 1


@requirement("registry.clear-never-lifts-suspension")
async def test_clearing_never_lifts_a_suspension(world: World) -> None:
    agent = await world.register()
    await authorize(world, agent, BAD)
    await world.admin.post(f"{PATH}/{agent}/suspend", json={"reason": "ill"})
    cleared = (await clear(world, agent)).json()
    assert cleared["violation_count"] == 0
    read = (await world.admin.get(f"{PATH}/{agent}")).json()
    assert (read["status"], read["status_reason"]) == ("suspended", "ill")


@requirement("registry.suspend-and-activate")
async def test_a_suspended_agent_gets_no_work_until_it_is_active_again(world: World) -> None:
    agent = await world.register()
    waiting = await world.submit()
    suspended = await world.admin.post(f"{PATH}/{agent}/suspend", json={"reason": "ill"})
    assert (suspended.json()["status"], suspended.json()["reason"]) == ("suspended", "ill")
    claim = await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert (claim.status_code, claim.json()["error"]["code"]) == (409, "ROUTING_AGENT_UNAVAILABLE")
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    assert (await world.admin.post("/api/v1/tasks", json=body)).status_code == 409
    assert (await world.admin.post(f"{PATH}/{agent}/suspend", json={"reason": "x"})).status_code == 409
    active = await world.admin.post(f"{PATH}/{agent}/activate")
    assert active.json()["status"] == "active"
    assert (await world.admin.post(f"{PATH}/{agent}/activate")).status_code == 409
    assert (await world.claim(agent))["task_id"] == waiting


async def test_an_agents_own_key_may_ask_for_itself_and_for_nobody_else(world: World) -> None:
    own = await world.register("bob", key_name="BOB", sandbox_whitelist=WHITELIST)
    other = await world.register("ann", sandbox_whitelist=WHITELIST)
    bob = world.clients["BOB"]
    assert (await bob.post(f"{PATH}/{own}/authorize", json=GOOD)).json()["allowed"] is True
    assert (await bob.post(f"{PATH}/{other}/authorize", json=GOOD)).status_code == 403
