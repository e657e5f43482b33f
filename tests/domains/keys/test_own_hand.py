"""An agent's key moves nothing of its own agent, on whichever way it comes: BOSS has the role agent and admin."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conftest import MakeWorld, World
from tests.domains.governance.conftest import GovernanceClient, proposal
from tests.requirements import requirement

AGENTS = "/api/v1/registry/agents"


def refused(answer: Any) -> bool:
    return answer.status_code == 403 and answer.json()["error"]["code"] in ("FORBIDDEN", "GOVERNANCE_SELF_APPROVAL")


async def record(world: World, agent_id: str) -> dict[str, Any]:
    return dict((await world.admin.get(f"{AGENTS}/{agent_id}")).json())


async def moves(world: World, agent_id: str) -> list[Any]:
    """Every change of standing over REST by BOSS, as answers."""
    http = world.clients["BOSS"]
    clear = {"override_tier": "auto", "rationale": "I am fine."}
    other = await world.register(name="other", key_name="bob")
    link = {"agent1": other, "agent2": agent_id, "delta": 1.0}
    return [
        await http.put(f"/api/v1/trust/{agent_id}", json={"score": 0.99}),
        await http.post(f"/api/v1/trust/{agent_id}/success", json={"amount": 0.4}),
        await http.post(f"/api/v1/trust/{agent_id}/failure"),
        await http.put("/api/v1/trust/hebbian/weights", json=link),
        await http.patch(f"{AGENTS}/{agent_id}", json={"accuracy_score": 1.0}),
        await http.patch(f"{AGENTS}/{agent_id}", json={"trust_tier": "auto", "reason": "I am fine."}),
        await http.patch(f"{AGENTS}/{agent_id}", json={"key_name": "bob"}),
        await http.post(f"{AGENTS}/{agent_id}/clear-violations", json=clear),
        await http.post(f"{AGENTS}/{agent_id}/activate"),
        await http.post(f"/api/v1/governance/agents/{agent_id}/trust"),
    ]


@requirement("registry.own-hand")
async def test_a_key_with_admin_does_not_raise_the_agent_that_it_works_as(world: World) -> None:
    for key_name in ("boss", None):
        agent_id = await world.register(key_name=key_name)
        before = await record(world, agent_id)
        assert all(refused(answer) for answer in await moves(world, agent_id))
        assert await record(world, agent_id) == before


@requirement("registry.edit-needs-another-person")
async def test_only_a_person_loosens_a_tier_or_moves_a_key(world: World) -> None:
    agent_id = await world.register(key_name="bob", trust_tier="human")
    before = await record(world, agent_id)
    boss = world.clients["BOSS"]
    for body in ({"trust_tier": "monitored", "reason": "It is fine."}, {"key_name": "boss"}, {"key_name": None}):
        answer = await boss.patch(f"{AGENTS}/{agent_id}", json=body)
        assert refused(answer), body
        assert "person" in answer.json()["error"]["message"]
    clear = {"override_tier": "auto", "rationale": "It is fine."}
    assert refused(await boss.post(f"{AGENTS}/{agent_id}/clear-violations", json=clear))
    assert await record(world, agent_id) == before
    await world.admin.patch(f"{AGENTS}/{agent_id}", json={"trust_tier": "auto", "reason": "It is fine."})
    assert (await boss.patch(f"{AGENTS}/{agent_id}", json={"trust_tier": "human"})).status_code == 200


@requirement("registry.edit-needs-another-person")
async def test_a_persons_key_that_an_agent_has_neither_loosens_its_tier_nor_moves_its_key(world: World) -> None:
    agent_id = await world.register(key_name="admin", trust_tier="human")
    before = await record(world, agent_id)
    clear = {"override_tier": "monitored", "rationale": "It is fine."}
    for answer in (
        await world.admin.patch(f"{AGENTS}/{agent_id}", json={"trust_tier": "auto", "reason": "It is fine."}),
        await world.admin.patch(f"{AGENTS}/{agent_id}", json={"key_name": "bob"}),
        await world.admin.patch(f"{AGENTS}/{agent_id}", json={"accuracy_score": 0.9, "key_name": None}),
        await world.admin.post(f"{AGENTS}/{agent_id}/clear-violations", json=clear),
    ):
        assert refused(answer)
    assert await record(world, agent_id) == before
    same = {"trust_tier": "human", "key_name": "ADMIN", "accuracy_score": 0.9}
    assert (await world.admin.patch(f"{AGENTS}/{agent_id}", json=same)).status_code == 200


@requirement("registry.own-hand")
async def test_it_suspends_itself_and_does_not_come_back_alone(world: World) -> None:
    agent_id = await world.register(key_name="boss")
    http = world.clients["BOSS"]
    assert (await http.post(f"{AGENTS}/{agent_id}/suspend", json={"reason": "I am ill."})).status_code == 200
    assert refused(await http.post(f"{AGENTS}/{agent_id}/activate"))
    assert (await world.admin.post(f"{AGENTS}/{agent_id}/activate")).status_code == 200


@requirement("registry.own-hand")
async def test_it_does_not_register_itself_anew_when_it_is_quarantined(world: World) -> None:
    http = world.clients["BOSS"]
    agent_id = await world.register(key_name="boss")
    for _ in range(3):
        await http.post(f"{AGENTS}/{agent_id}/authorize", json={"tool": "shell", "operation": "run"})
    assert (await record(world, agent_id))["status"] == "quarantined"
    again = {"name": "again", "key_name": "boss", "capabilities": ["echo"]}
    assert refused(await http.post(AGENTS, json=again))
    assert (await world.admin.post(AGENTS, json=again)).status_code == 201


@requirement("registry.own-hand")
async def test_it_registers_nobody_above_the_defaults(world: World) -> None:
    for fields in ({"accuracy_score": 0.9}, {"trust_tier": "auto"}):
        answer = await world.clients["BOSS"].post(AGENTS, json={"name": "puppet", "key_name": "boss", **fields})
        assert refused(answer)
    answer = await world.clients["BOSS"].post(AGENTS, json={"name": "puppet", "key_name": "boss"})
    assert answer.status_code == 201


@requirement("registry.own-hand")
async def test_it_does_not_work_as_the_agent_of_another_key_which_it_may_move(world: World) -> None:
    http = world.clients["BOSS"]
    puppet = {"name": "puppet", "key_name": "nobody", "capabilities": ["pull"]}
    agent_id = (await http.post(AGENTS, json=puppet)).json()["agent_id"]
    assert (await http.put(f"/api/v1/trust/{agent_id}", json={"score": 1.0})).status_code == 200
    body = {"type": "pull", "input": 1, "required_capabilities": ["pull"]}
    task_id = (await world.admin.post("/api/v1/tasks", json=body)).json()["task_id"]
    assert refused(await http.post(f"/api/v1/agents/{agent_id}/claims", json={}))
    epoch = (await world.claim(agent_id))["epoch"]
    for path, fields in (
        ("heartbeat", {}),
        ("tokens", {"tokens": ["a"]}),
        ("complete", {"result": 1}),
        ("fail", {"error": {"message": "no"}}),
        ("grants", {"to_agent": agent_id, "capabilities": ["pull"]}),
    ):
        answer = await http.post(f"/api/v1/tasks/{task_id}/{path}", json={"epoch": epoch, **fields})
        assert refused(answer), (path, answer.text)


@requirement("registry.own-hand")
async def test_a_name_of_another_key_does_not_make_an_endpoint_somebody_elses(world: World) -> None:
    endpoint = {"kind": "http", "endpoint": "https://198.51.99.7/"}
    puppet = {"name": "puppet", "key_name": "nobody", "runtime": endpoint}
    registered = await world.clients["BOSS"].post(AGENTS, json=puppet)
    assert registered.status_code == 201, registered.text
    assert all(refused(answer) for answer in await moves(world, registered.json()["agent_id"]))


@requirement("registry.own-hand")
async def test_it_moves_the_agent_of_another_key(world: World) -> None:
    agent_id = await world.register(key_name="bob")
    answer = await world.clients["BOSS"].put(f"/api/v1/trust/{agent_id}", json={"score": 0.6})
    assert answer.status_code == 200


@requirement("governance.four-eyes", "registry.own-hand")
async def test_it_neither_approves_nor_rolls_back_the_agent_that_it_works_as(make_world: MakeWorld) -> None:
    governance = GovernanceClient(await make_world(SERVICE_GOVERNANCE_SELF_APPROVAL="true"))
    for key_name in ("boss", None):
        agent_id = await governance.register_trusted(0.8, key_name=key_name)
        taken = await governance.checkpoint(agent_id)
        update = await governance.propose(agent_id)
        assert refused(await governance.post(f"updates/{update['update_id']}/approve", None, "BOSS"))
        body = {"checkpoint_id": taken["checkpoint_id"], "reason": "It was better.", "initiated_by": "boss"}
        assert refused(await governance.post("rollbacks", {**body, "details": "x"}, "BOSS"))
        assert (await governance.update(update["update_id"]))["status"] == "submitted"


@requirement("governance.four-eyes")
async def test_an_agents_key_does_not_approve_its_own_proposal_even_where_one_admin_is_enough(
    make_world: MakeWorld,
) -> None:
    governance = GovernanceClient(await make_world(SERVICE_GOVERNANCE_SELF_APPROVAL="true"))
    body = proposal(await governance.register_trusted(0.8, key_name="bob"))
    assert (await governance.post("updates", body, "BOSS")).status_code == 202
    assert refused(await governance.post(f"updates/{body['update_id']}/approve", None, "BOSS"))


@requirement("governance.propose-permission")
async def test_a_key_with_propose_proposes_updates_of_its_own_agent_and_nothing_else(
    governance: GovernanceClient,
) -> None:
    own, other = (
        await governance.register_trusted(0.8, key_name="proposer"),
        await governance.register_trusted(0.8, name="other"),
    )
    body = proposal(own)
    answer = await governance.post("updates", body, "PROPOSER")
    assert (answer.status_code, answer.json()["status"]) == (202, "submitted")
    for whom in (other, str(uuid.uuid4())):
        assert refused(await governance.post("updates", proposal(whom), "PROPOSER"))
    http = governance.world.clients["PROPOSER"]
    path = f"/api/v1/governance/updates/{body['update_id']}"
    assert (await http.get(path)).json()["proposed_by"] == "proposer"
    foreign = await governance.propose(other)
    assert (await http.get(f"/api/v1/governance/updates/{foreign['update_id']}")).status_code == 404
    assert refused(await governance.post(f"updates/{body['update_id']}/approve", None, "PROPOSER"))
    assert (await http.get("/api/v1/governance/updates")).status_code == 403
    assert (await http.put(f"/api/v1/trust/{own}", json={"score": 1.0})).status_code == 403


@pytest.fixture
def governance(world: World) -> GovernanceClient:
    return GovernanceClient(world)


@requirement("registry.own-hand")
async def test_it_approves_no_task_that_it_asked_for_or_would_do(world: World) -> None:
    await world.register(key_name="boss", trust_tier="human")
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    to_itself = await world.submit()
    asked = (await world.clients["BOSS"].post("/api/v1/tasks", json=body)).json()["task_id"]
    for task_id in (to_itself, asked):
        assert refused(await world.clients["BOSS"].post(f"/api/v1/tasks/{task_id}/approve"))
        assert (await world.admin.post(f"/api/v1/tasks/{task_id}/approve")).status_code == 200


@requirement("registry.own-hand")
async def test_it_approves_no_task_whose_ancestor_it_asked_for(world: World) -> None:
    await world.register(name="careful", key_name="bob", trust_tier="human")
    boss = world.clients["BOSS"]
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    asked = (await boss.post("/api/v1/tasks", json=body)).json()["task_id"]
    child = await world.submit(metadata={"parent_task_id": asked})
    grandchild = await world.submit(metadata={"parent_task_id": child})
    for task_id in (child, grandchild):
        assert refused(await boss.post(f"/api/v1/tasks/{task_id}/approve"))
    assert (await boss.post(f"/api/v1/tasks/{await world.submit()}/approve")).status_code == 200
    assert (await world.admin.post(f"/api/v1/tasks/{grandchild}/approve")).status_code == 200
