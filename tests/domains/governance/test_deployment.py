"""Deployments: checkpoint, apply, probe, then deployed or back; and what a kill leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stentor.core.errors import SandboxUnavailable
from stentor.domains.governance import probes
from stentor.domains.governance.impact import AgentConfig
from stentor.domains.governance.probes import ProbeResult
from stentor.domains.registry.model import Agent
from tests.conftest import MakeWorld
from tests.domains.endpoint import answering, serving
from tests.domains.governance.conftest import Office
from tests.domains.governance.test_updates import code
from tests.requirements import requirement

FEWER = {"agent_patch": {"capabilities": ["echo"]}}
RESULTS = {"unit_tests": {"passed": 9, "failed": 0}, "integration_tests": {"passed": 3, "failed": 0}}
FAILED = {**RESULTS, "integration_tests": {"passed": 2, "failed": 1}}


def finding(office: Office, found: ProbeResult) -> list[Agent]:
    """Have every probe find this; answers the agents that are probed."""
    seen: list[Agent] = []

    async def probe(agent: Agent) -> ProbeResult:
        seen.append(agent)
        return found

    office.world.kernel.governance.deployer.probe = probe
    return seen


@requirement("governance.deploy-steps", "governance.auto-approved-at-once")
async def test_an_auto_patch_is_deployed_at_once_and_routing_sees_it(office: Office) -> None:
    agent = await office.trusted(capabilities=["echo", "sum"])
    seen = finding(office, ProbeResult(True, "It answers."))
    update = await office.propose(agent, FEWER)
    assert (update["status"], update["notes"]) == ("deployed", "It answers.")
    assert update["deployed_at"] is not None
    assert [probed.capabilities for probed in seen] == [("echo",)], "it is probed as it is with the patch"
    assert (await office.agent(agent))["capabilities"] == ["echo"]
    answer = await office.world.admin.post(
        "/api/v1/tasks", json={"type": "x", "input": 1, "required_capabilities": ["sum"]}
    )
    assert code(answer) == (422, "ROUTING_CAPABILITY_UNAVAILABLE")
    checkpoint = await office.get(f"checkpoints/{update['checkpoint_id']}")
    assert (checkpoint["cause"], checkpoint["state"]["config"]["capabilities"]) == ("deployment", ["echo", "sum"])


@requirement("governance.deploy-steps")
async def test_a_failed_probe_sets_the_agent_back_and_keeps_what_it_learned(office: Office) -> None:
    agent = await office.trusted(capabilities=["echo", "sum"])
    before = await office.agent(agent)

    async def probe(probed: Agent) -> ProbeResult:
        await office.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.9})
        return ProbeResult(False, "Nothing answers.")

    office.world.kernel.governance.deployer.probe = probe
    update = await office.propose(agent, FEWER)
    assert (update["status"], update["notes"], update["deployed_at"]) == ("rolled_back", "Nothing answers.", None)
    after = await office.agent(agent)
    assert (after["capabilities"], after["accuracy_score"]) == (before["capabilities"], 0.9)
    kinds = [kind for kind, meta in await office.events() if meta.get("update_id") == update["update_id"]]
    assert kinds[-2:] == ["update_deploying", "update_rolled_back"]


async def test_a_queued_task_is_not_given_to_an_agent_that_lost_the_capability(office: Office) -> None:
    agent = await office.trusted(capabilities=["echo", "sum"])
    task = await office.world.submit(required_capabilities=["sum"])
    await office.propose(agent, FEWER)
    answer = await office.world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert answer.json()["tasks"] == []
    ended = await office.world.task(task)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "ROUTING_CAPABILITY_UNAVAILABLE")


@requirement("governance.patch-drift")
async def test_a_patch_is_applied_only_to_what_it_was_judged_against(office: Office) -> None:
    agent = await office.trusted(0.8, capabilities=["echo", "sum", "tell"])
    first = await office.propose(agent, {"agent_patch": {"capabilities": ["echo", "sum"]}})
    second = await office.propose(agent, {"agent_patch": {"capabilities": ["echo", "sum"]}})
    assert (await office.approve(first))["status"] == "deployed"
    answer = await office.post(f"updates/{second['update_id']}/approve", {}, "SECOND")
    assert code(answer) == (409, "CONFLICT")
    assert (await office.update(second["update_id"]))["status"] == "submitted"


@requirement("governance.deploy-steps")
async def test_an_approved_patch_that_the_registry_would_not_take_any_more_ends(office: Office) -> None:
    agent = await office.trusted(0.8, capabilities=["echo", "sum"])
    update = await office.propose(agent, FEWER)
    reviewer = office.world.kernel.governance.deployer._reviewer

    def refusing(agent: Agent, document: dict[str, Any]) -> AgentConfig:
        raise SandboxUnavailable("There is no cage any more.")

    reviewer._build_config = refusing
    ended = await office.approve(update)
    assert (ended["status"], ended["deployed_at"]) == ("rolled_back", None)
    assert "There is no cage any more." in ended["notes"]
    assert (await office.agent(agent))["capabilities"] == ["echo", "sum"]


@requirement("governance.survives-a-kill")
async def test_what_a_killed_process_left_is_taken_up_again(make_world: MakeWorld) -> None:
    office = Office(await make_world())
    agent = await office.trusted(0.8, capabilities=["echo", "sum"])
    approved, deploying = [await office.propose(agent, FEWER) for _ in range(2)]
    checkpoint = await office.checkpoint(agent)
    runner = office.world.kernel.governance.runner
    await runner.stop()
    answer = await office.post(f"updates/{deploying['update_id']}/approve", {}, "SECOND")
    assert answer.json()["status"] == "approved"
    begun = await office.world.kernel.infra.db.write(
        lambda tx: office.world.kernel.governance.deployer.begin(tx, "default", deploying["update_id"])
    )
    assert begun is not None
    assert (await office.update(deploying["update_id"]))["status"] == "deploying"
    rollback = await office.post("rollbacks", {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"})
    assert (await office.update(approved["update_id"]))["status"] == "submitted"

    later = Office(await make_world())
    later.world.clock.advance(seconds=61)
    later.world.kernel.governance.runner.wake()
    await later.idle()
    found = await later.get(f"rollbacks/{rollback.json()['rollback_id']}")
    assert (found["status"], found["verified"]) == ("completed", True)
    ended = await later.update(deploying["update_id"])
    assert ended["status"] in ("deployed", "rolled_back")
    assert (await later.agent(agent))["capabilities"] == ["echo", "sum"]


async def test_an_update_approved_before_the_kill_is_deployed_by_the_next_process(make_world: MakeWorld) -> None:
    office = Office(await make_world())
    agent = await office.trusted(0.8, capabilities=["echo", "sum"])
    update = await office.propose(agent, FEWER)
    await office.world.kernel.governance.runner.stop()
    await office.post(f"updates/{update['update_id']}/approve", {}, "SECOND")
    later = Office(await make_world())
    await later.idle()
    assert (await later.update(update["update_id"]))["status"] == "deployed"
    assert (await later.agent(agent))["capabilities"] == ["echo"]


async def test_a_deployment_that_cannot_be_undone_takes_the_agent_out_of_routing(office: Office) -> None:
    agent = await office.trusted(capabilities=["echo", "sum"])

    async def probe(probed: Agent) -> ProbeResult:
        await office.sql("update checkpoints set state = '{}' where agent_id = :id", id=agent)
        return ProbeResult(False, "Nothing answers.")

    office.world.kernel.governance.deployer.probe = probe
    update = await office.propose(agent, FEWER)
    assert update["status"] == "deploying"
    assert (await office.agent(agent))["status"] == "suspended"
    seen = finding(office, ProbeResult(True, "It answers."))
    await office.world.kernel.governance.deployer.deploy("default", update["update_id"])
    assert (await office.update(update["update_id"]))["status"] == "deploying"
    assert seen == []


@requirement("governance.deployed-report")
async def test_an_outside_update_is_deployed_when_its_tests_passed(office: Office) -> None:
    update = await office.propose(await office.trusted())
    assert (update["status"], update["deployed_at"]) == ("approved", None)
    path = f"updates/{update['update_id']}/deployed"
    shown = (await office.post(path, {"test_results": RESULTS})).json()
    assert (shown["status"], shown["test_results"]) == ("deployed", RESULTS)
    assert shown["deployed_at"] is not None
    assert code(await office.post(path, {"test_results": RESULTS})) == (409, "CONFLICT")


@requirement("governance.deployed-report")
@pytest.mark.parametrize("named", [True, False])
async def test_failed_tests_roll_back_to_the_named_checkpoint_or_the_one_of_the_approval(
    office: Office, named: bool
) -> None:
    agent = await office.trusted()
    await office.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.1})
    first = (await office.checkpoint(agent))["checkpoint_id"]
    await office.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.2})
    update = await office.propose(agent, checkpoint_id=first if named else None)
    await office.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.3})
    answer = await office.post(f"updates/{update['update_id']}/deployed", {"test_results": FAILED})
    assert (answer.status_code, answer.json()["status"]) == (200, "rolled_back")
    assert answer.json()["test_results"] == FAILED
    assert (await office.agent(agent))["accuracy_score"] == (0.1 if named else 0.2)
    (rollback,) = (await office.get("rollbacks"))["rollbacks"]
    assert (rollback["update_id"], rollback["verified"]) == (update["update_id"], True)


async def test_failed_tests_of_an_agent_of_elsewhere_leave_nothing_to_set_back(office: Office) -> None:
    update = await office.propose("00000000-0000-7000-8000-00000000000a")
    await office.approve(update)
    answer = await office.post(f"updates/{update['update_id']}/deployed", {"test_results": FAILED})
    assert answer.json()["status"] == "rolled_back"
    assert "nothing was restored" in answer.json()["notes"]


@requirement("governance.deployed-report")
async def test_only_an_approved_outside_update_can_be_reported(office: Office) -> None:
    body = {"test_results": RESULTS}
    waiting = await office.propose(await office.trusted(0.8))
    assert code(await office.post(f"updates/{waiting['update_id']}/deployed", body)) == (409, "CONFLICT")
    own = await office.propose(await office.trusted(name="bob", capabilities=["a", "echo"]), FEWER)
    assert code(await office.post(f"updates/{own['update_id']}/deployed", body)) == (409, "CONFLICT")
    for wrong in ({}, {"unit_tests": {"passed": -1, "failed": 0}}, {"unit_tests": {"passed": 1}}):
        answer = await office.post(f"updates/{waiting['update_id']}/deployed", {"test_results": wrong})
        assert code(answer) == (400, "INVALID_REQUEST")


@requirement("governance.probes")
@pytest.mark.parametrize(("status", "ended"), [(200, "deployed"), (405, "deployed"), (500, "rolled_back")])
async def test_an_http_agent_is_asked_whether_anything_answers(make_world: MakeWorld, status: int, ended: str) -> None:
    office = Office(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"))
    async with serving(answering({}, status)) as endpoint:
        runtime = {"kind": "http", "endpoint": endpoint.url}
        agent = await office.trusted(capabilities=["echo", "sum"], runtime=runtime)
        update = await office.propose(agent, FEWER)
    assert (update["status"], update["notes"]) == (ended, f"The endpoint responded to HEAD with {status}.")
    assert [call["body"] for call in endpoint.calls] == [None], "it is given no work"


@requirement("governance.probes")
async def test_an_endpoint_that_is_gone_or_inside_is_not_well(office: Office, make_world: MakeWorld) -> None:
    allowed = Office(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"))
    runtime = {"kind": "http", "endpoint": "http://127.0.0.1:1/gone"}
    agent = await allowed.trusted(0.8, capabilities=["echo", "sum"], runtime=runtime)
    update = await allowed.approve(await allowed.propose(agent, FEWER))
    assert update["status"] == "rolled_back"
    assert "cannot be reached" in update["notes"]
    known = allowed.world.kernel.agents.registry.agents.get("default", agent)
    assert known is not None
    found = await office.world.kernel.governance.deployer.probe(known)
    assert (found.is_ok, "not public" in found.detail) == (False, True), "another process may allow less"


@requirement("governance.probes")
async def test_a_builtin_agent_is_there_or_not(office: Office) -> None:
    for name, status in (("summarizer", "deployed"), ("nobody", "rolled_back")):
        runtime = {"kind": "builtin", "name": name}
        agent = await office.trusted(name=name, capabilities=["echo", "sum"], runtime=runtime)
        update = await office.propose(agent, FEWER)
        assert (update["status"], name in update["notes"]) == (status, True)


@requirement("governance.probes")
async def test_a_worker_is_said_not_to_be_probed(office: Office) -> None:
    agent = await office.trusted(capabilities=["echo", "sum"])
    assert "cannot be probed" in (await office.propose(agent, FEWER))["notes"]


@requirement("governance.probes")
async def test_a_probe_that_hangs_and_a_kind_without_one_are_not_well(office: Office) -> None:
    agent = await office.trusted(capabilities=["echo", "sum"])
    known = office.world.kernel.agents.registry.agents.get("default", agent)
    assert known is not None

    async def hangs(probed: Agent) -> ProbeResult:
        await asyncio.sleep(3600)
        raise AssertionError

    assert (await probes.probe_by_kind({"worker": hangs}, 0.01)(known)).is_ok is False
    assert (await probes.probe_by_kind({})(known)).is_ok is False
