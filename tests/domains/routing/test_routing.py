"""Routing through the API: the six denials, the decision record, and admission again at dispatch."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import Tx
from stentor.core.errors import StoreUnavailable
from stentor.domains.trust import store
from tests.conftest import MakeWorld, World
from tests.requirements import requirement

BODY: dict[str, Any] = {"type": "echo", "input": "hi", "required_capabilities": ["echo"]}
NOBODY = "00000000-0000-4000-8000-000000000000"


async def denied(world: World, key: str = "ADMIN", **fields: Any) -> tuple[int, str, dict[str, Any]]:
    """Submit what must be denied; answers status, code and the stored task."""
    answer = await world.clients[key].post("/api/v1/tasks", json={**BODY, **fields})
    error = answer.json()["error"]
    stored = await world.clients[key].get(f"/api/v1/tasks/{error['details']['task_id']}")
    return answer.status_code, error["code"], stored.json()


def check_stored(task: dict[str, Any], code: str) -> None:
    assert (task["status"], task["outcome_class"], task["learning_eligible"]) == ("failed", "routing_failed", False)
    assert task["error"]["code"] == code
    assert task["assigned_agent"] is None


async def chosen(world: World, **fields: Any) -> str:
    return str((await world.task(await world.submit(**fields)))["assigned_agent"])


@requirement("routing.capability-unavailable-422", "tasks.routing-happens-at-submit")
async def test_without_a_capable_agent_routing_fails_with_422(world: World) -> None:
    await world.register(capabilities=["echo"])
    status, code, task = await denied(world, required_capabilities=["echo", "paint"])
    assert (status, code) == (422, "ROUTING_CAPABILITY_UNAVAILABLE")
    check_stored(task, code)


@requirement("routing.tenant-denied-403", "routing.tenant-scope")
async def test_agents_of_another_tenant_are_never_chosen(world: World) -> None:
    await world.register()
    status, code, task = await denied(world, "OTHER")
    assert (status, code) == (403, "ROUTING_TENANT_DENIED")
    check_stored(task, code)
    assert "ann" not in str(task)


@requirement("routing.tenant-scope")
async def test_tasks_and_agents_carry_the_tenant_of_their_key(world: World) -> None:
    ours = await world.register("ours")
    made = await world.clients["OTHER"].post("/api/v1/registry/agents", json={"name": "his", "capabilities": ["echo"]})
    his = made.json()["agent_id"]
    assert await chosen(world) == ours
    task = await world.clients["OTHER"].post("/api/v1/tasks", json=BODY)
    task_id = task.json()["task_id"]
    read = await world.clients["OTHER"].get(f"/api/v1/tasks/{task_id}")
    assert read.json()["assigned_agent"] == his
    assert (await world.admin.get(f"/api/v1/tasks/{task_id}")).status_code == 404
    crossed, code, _ = await denied(world, agent_preference=his)
    assert (crossed, code) == (409, "ROUTING_AGENT_INELIGIBLE")


@requirement("routing.agent-unavailable-409")
async def test_when_all_capable_agents_are_out_of_service_routing_fails_with_409(world: World) -> None:
    suspended = await world.register("one")
    quarantined = await world.register("two")
    await world.admin.post(f"/api/v1/registry/agents/{suspended}/suspend", json={"reason": "ill"})
    for _ in range(3):
        call = {"tool": "shell", "operation": "run"}
        await world.admin.post(f"/api/v1/registry/agents/{quarantined}/authorize", json=call)
    status, code, task = await denied(world)
    assert (status, code) == (409, "ROUTING_AGENT_UNAVAILABLE")
    check_stored(task, code)


@requirement("routing.admission-before-ranking", "routing.authority-denied-403")
async def test_the_key_of_an_agent_that_is_out_of_service_has_no_authority(world: World) -> None:
    await world.register("able")
    bobs = await world.register("bob", capabilities=["other"], key_name="BOB")
    await world.admin.post(f"/api/v1/registry/agents/{bobs}/suspend", json={"reason": "ill"})
    status, code, task = await denied(world, "BOB")
    assert (status, code) == (403, "ROUTING_AUTHORITY_DENIED")
    check_stored(task, code)


@requirement("routing.trust-floor-409", "routing.floor-before-scoring")
async def test_the_trust_floor_excludes_before_scoring_and_never_falls_back(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_ROUTING_TRUST_FLOOR="0.6")
    low = await world.register("low", alignment_score=1.0)
    status, code, task = await denied(world)
    assert (status, code) == (409, "ROUTING_TRUST_FLOOR")
    check_stored(task, code)
    trusted = await world.register("trusted", alignment_score=0.0)
    await world.admin.put(f"/api/v1/trust/{trusted}", json={"score": 0.6})
    assert await chosen(world) == trusted
    assert low != trusted


@requirement("routing.denial-is-never-passed-on")
@pytest.mark.parametrize("which", ["suspended", "incapable", "unknown"])
async def test_a_denied_preference_is_never_passed_on(world: World, which: str) -> None:
    await world.register("able")
    preferred = NOBODY
    if which != "unknown":
        preferred = await world.register("wanted", capabilities=["other"] if which == "incapable" else ["echo"])
    if which == "suspended":
        await world.admin.post(f"/api/v1/registry/agents/{preferred}/suspend", json={"reason": "ill"})
    status, code, task = await denied(world, agent_preference=preferred)
    assert (status, code) == (409, "ROUTING_AGENT_INELIGIBLE")
    check_stored(task, code)


@requirement("routing.preference-is-honoured", "tasks.agent-preference-nullable")
async def test_an_admitted_preference_wins_over_the_ranking(world: World) -> None:
    best = await world.register("best", alignment_score=1.0, accuracy_score=1.0)
    worst = await world.register("worst", alignment_score=0.0, accuracy_score=0.0)
    assert await chosen(world) == best
    assert await chosen(world, agent_preference=None) == best
    assert await chosen(world, agent_preference=worst) == worst


@requirement("routing.evidence-outweighs-declaration", "routing.blend-formula")
async def test_an_agent_that_succeeds_overtakes_one_with_a_slightly_better_composite(world: World) -> None:
    better = await world.register("better", alignment_score=0.55)
    proven = await world.register("proven", alignment_score=0.5)
    assert await chosen(world) == better
    await world.claim(better)
    task_id = await world.submit(agent_preference=proven)
    claim = await world.claim(proven)
    await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": claim["epoch"], "result": 1})
    assert await chosen(world) == proven


@requirement("routing.decision-record", "routing.blend-formula")
async def test_the_decision_says_who_was_chosen_by_which_terms_and_who_was_denied(world: World) -> None:
    await world.register("ann", alignment_score=0.9)
    ill = await world.register("ill")
    await world.admin.post(f"/api/v1/registry/agents/{ill}/suspend", json={"reason": "ill"})
    task_id = await world.submit()
    routing = (await world.admin.get(f"/api/v1/tasks/{task_id}/activity")).json()["routing"]
    assert (routing["agent_name"], routing["alpha"], routing["beta"]) == ("ann", 0.2, 0.0)
    (terms,) = routing["candidates"]
    assert terms["composite"] == pytest.approx(0.66)
    assert (terms["hebbian"], terms["trust"], terms["outcomes"]) == (None, 0.5, 0)
    assert (terms["prior"], terms["strength"], terms["expected"]) == pytest.approx((0.63, 4.0, 0.63))
    assert terms["uncertainty"] == pytest.approx((0.63 + 0.5 + (0.63 * 0.37 + 0.25) ** 0.5) / 2 - 0.63)
    assert terms["blended"] == pytest.approx(terms["expected"] + terms["uncertainty"])
    assert routing["denied"] == [{"agent_id": ill, "name": "ill", "code": "ROUTING_AGENT_UNAVAILABLE"}]
    assert routing["duration_us"] >= 0
    assert routing["trust_available"] is True


@requirement("routing.trust-source-unreadable")
async def test_an_unreadable_trust_source_switches_floor_and_beta_off(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(SERVICE_ROUTING_TRUST_FLOOR="0.9", SERVICE_HEBBIAN_ROUTING_BETA="0.5")
    agent = await world.register()

    def out(tx: Tx, since: int) -> None:
        raise StoreUnavailable("The scores are out.")

    monkeypatch.setattr(store, "changed_since", out)
    with pytest.raises(StoreUnavailable):
        await world.kernel.views.refresh(0)
    task_id = await world.submit()
    routing = (await world.admin.get(f"/api/v1/tasks/{task_id}/activity")).json()["routing"]
    assert (routing["beta"], routing["trust_floor"], routing["trust_available"]) == (0.0, 0.0, False)
    assert (await world.claim(agent))["task_id"] == task_id


@requirement("routing.readmission-at-dispatch")
async def test_a_denial_at_dispatch_fails_the_task(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_ROUTING_TRUST_FLOOR="0.4")
    agent = await world.register()
    task_id = await world.submit()
    await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.1})
    claims = await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert claims.json() == {"tasks": []}
    check = await world.task(task_id)
    assert (check["status"], check["error"]["code"]) == ("failed", "ROUTING_TRUST_FLOOR")
    assert check["outcome_class"] == "routing_failed"
    assert [e["event_type"] for e in await world.events(task_id)][-3:] == [
        "dispatch_denied",
        "task_failed",
        "learning_skipped",
    ]


@requirement("routing.readmission-at-dispatch")
async def test_a_task_of_an_agent_suspended_before_dispatch_fails(world: World) -> None:
    agent = await world.register("slow", runtime={"kind": "builtin", "name": "summarizer"}, trust_tier="human")
    task_id = await world.submit(input="One sentence here.")
    await world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "ill"})
    approved = await world.admin.post(f"/api/v1/tasks/{task_id}/approve")
    assert approved.status_code == 200
    task = await world.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "ROUTING_AGENT_UNAVAILABLE")
    assert task["start_time"] is None
