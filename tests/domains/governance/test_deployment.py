"""Deployments: checkpoint, apply, probe, then deployed or rolled back; recovery after a kill."""

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
from tests.domains.governance.conftest import GovernanceClient
from tests.domains.governance.test_updates import error_of
from tests.requirements import requirement

FEWER_CAPABILITIES = {"agent_patch": {"capabilities": ["echo"]}}
PASSED_TESTS = {"unit_tests": {"passed": 9, "failed": 0}, "integration_tests": {"passed": 3, "failed": 0}}
FAILED_TESTS = {**PASSED_TESTS, "integration_tests": {"passed": 2, "failed": 1}}


def set_probe_result(governance: GovernanceClient, result: ProbeResult) -> list[Agent]:
    """Make every probe return `result`; return the list that collects the probed agents."""
    probed_agents: list[Agent] = []

    async def probe(agent: Agent) -> ProbeResult:
        probed_agents.append(agent)
        return result

    governance.world.kernel.governance.deployer.probe = probe
    return probed_agents


@requirement("governance.deploy-steps", "governance.auto-approved-at-once")
async def test_auto_tier_patch_is_deployed_at_once_and_affects_routing(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(capabilities=["echo", "sum"])
    probed_agents = set_probe_result(governance, ProbeResult(True, "It answers."))
    update = await governance.propose(agent, FEWER_CAPABILITIES)
    assert (update["status"], update["notes"]) == ("deployed", "It answers.")
    assert update["deployed_at"] is not None
    assert [probed.capabilities for probed in probed_agents] == [("echo",)], "the probed agent has the patch"
    assert (await governance.agent(agent))["capabilities"] == ["echo"]
    response = await governance.world.admin.post(
        "/api/v1/tasks", json={"type": "x", "input": 1, "required_capabilities": ["sum"]}
    )
    assert error_of(response) == (422, "ROUTING_CAPABILITY_UNAVAILABLE")
    checkpoint = await governance.get(f"checkpoints/{update['checkpoint_id']}")
    assert (checkpoint["cause"], checkpoint["state"]["config"]["capabilities"]) == ("deployment", ["echo", "sum"])


@requirement("governance.tier-human")
async def test_a_number_that_becomes_a_value_of_another_type_changes_how_the_agent_runs(
    governance: GovernanceClient,
) -> None:
    runtime = {"kind": "worker", "options": {"dry_run": 1, "steps": [{"confirm": 0}], "retries": 1}}
    agent = await governance.register_trusted(runtime=runtime)
    options = {"dry_run": True, "steps": [{"confirm": False}], "retries": 1.0}
    update = await governance.propose(agent, {"agent_patch": {"runtime": {"options": options}}})
    assert (update["status"], update["tier"]) == ("submitted", 3)
    assert update["reasons"] == ["the patch changes how the agent runs"]
    names = ("dry_run", "steps", "retries")
    assert [change["path"] for change in update["diff"]] == [f"runtime.options.{name}" for name in names]


@requirement("governance.deploy-steps")
async def test_failed_probe_restores_configuration_but_keeps_learned_scores(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(capabilities=["echo", "sum"])
    before = await governance.agent(agent)

    async def probe(probed: Agent) -> ProbeResult:
        await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.9})
        return ProbeResult(False, "Nothing answers.")

    governance.world.kernel.governance.deployer.probe = probe
    update = await governance.propose(agent, FEWER_CAPABILITIES)
    assert (update["status"], update["notes"], update["deployed_at"]) == ("rolled_back", "Nothing answers.", None)
    after = await governance.agent(agent)
    assert (after["capabilities"], after["accuracy_score"]) == (before["capabilities"], 0.9)
    kinds = [kind for kind, meta in await governance.events() if meta.get("update_id") == update["update_id"]]
    assert kinds[-2:] == ["update_deploying", "update_rolled_back"]


async def test_queued_task_fails_when_its_agent_loses_the_capability(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(capabilities=["echo", "sum"])
    task = await governance.world.submit(required_capabilities=["sum"])
    await governance.propose(agent, FEWER_CAPABILITIES)
    response = await governance.world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert response.json()["tasks"] == []
    final = await governance.world.task(task)
    assert (final["status"], final["error"]["code"]) == ("failed", "ROUTING_CAPABILITY_UNAVAILABLE")


@requirement("governance.patch-drift")
async def test_patch_of_a_changed_agent_returns_409(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, capabilities=["echo", "sum", "tell"])
    first = await governance.propose(agent, {"agent_patch": {"capabilities": ["echo", "sum"]}})
    second = await governance.propose(agent, {"agent_patch": {"capabilities": ["echo", "sum"]}})
    assert (await governance.approve(first))["status"] == "deployed"
    response = await governance.post(f"updates/{second['update_id']}/approve", {}, "SECOND")
    assert error_of(response) == (409, "CONFLICT")
    assert (await governance.update(second["update_id"]))["status"] == "submitted"


@requirement("governance.deploy-steps")
async def test_approved_patch_that_became_invalid_is_rolled_back(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, capabilities=["echo", "sum"])
    update = await governance.propose(agent, FEWER_CAPABILITIES)
    reviewer = governance.world.kernel.governance.deployer._reviewer

    def refuse(agent: Agent, document: dict[str, Any]) -> AgentConfig:
        raise SandboxUnavailable("There is no cage any more.")

    reviewer._build_config = refuse
    final = await governance.approve(update)
    assert (final["status"], final["deployed_at"]) == ("rolled_back", None)
    assert "There is no cage any more." in final["notes"]
    assert (await governance.agent(agent))["capabilities"] == ["echo", "sum"]


@requirement("governance.survives-a-kill")
async def test_killed_deployment_and_rollback_are_resumed_after_restart(make_world: MakeWorld) -> None:
    governance = GovernanceClient(await make_world())
    agent = await governance.register_trusted(0.8, capabilities=["echo", "sum"])
    pending, deploying = [await governance.propose(agent, FEWER_CAPABILITIES) for _ in range(2)]
    checkpoint = await governance.checkpoint(agent)
    runner = governance.world.kernel.governance.runner
    await runner.stop()
    response = await governance.post(f"updates/{deploying['update_id']}/approve", {}, "SECOND")
    assert response.json()["status"] == "approved"
    deployment = await governance.world.kernel.infra.db.write(
        lambda tx: governance.world.kernel.governance.deployer.begin(tx, "default", deploying["update_id"])
    )
    assert deployment is not None
    assert (await governance.update(deploying["update_id"]))["status"] == "deploying"
    rollback = await governance.post("rollbacks", {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"})
    assert (await governance.update(pending["update_id"]))["status"] == "submitted"

    restarted = GovernanceClient(await make_world())
    restarted.world.clock.advance(seconds=61)
    restarted.world.kernel.governance.runner.wake()
    await restarted.wait_until_idle()
    rollback_after = await restarted.get(f"rollbacks/{rollback.json()['rollback_id']}")
    assert (rollback_after["status"], rollback_after["verified"]) == ("completed", True)
    final = await restarted.update(deploying["update_id"])
    assert final["status"] in ("deployed", "rolled_back")
    assert (await restarted.agent(agent))["capabilities"] == ["echo", "sum"]


async def test_update_approved_before_a_kill_is_deployed_after_restart(make_world: MakeWorld) -> None:
    governance = GovernanceClient(await make_world())
    agent = await governance.register_trusted(0.8, capabilities=["echo", "sum"])
    update = await governance.propose(agent, FEWER_CAPABILITIES)
    await governance.world.kernel.governance.runner.stop()
    await governance.post(f"updates/{update['update_id']}/approve", {}, "SECOND")
    restarted = GovernanceClient(await make_world())
    await restarted.wait_until_idle()
    assert (await restarted.update(update["update_id"]))["status"] == "deployed"
    assert (await restarted.agent(agent))["capabilities"] == ["echo"]


async def test_agent_is_suspended_when_its_deployment_cannot_be_undone(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(capabilities=["echo", "sum"])

    async def probe(probed: Agent) -> ProbeResult:
        await governance.execute_sql("update checkpoints set state = '{}' where agent_id = :id", id=agent)
        return ProbeResult(False, "Nothing answers.")

    governance.world.kernel.governance.deployer.probe = probe
    update = await governance.propose(agent, FEWER_CAPABILITIES)
    assert update["status"] == "deploying"
    assert (await governance.agent(agent))["status"] == "suspended"
    probed_agents = set_probe_result(governance, ProbeResult(True, "It answers."))
    await governance.world.kernel.governance.deployer.deploy("default", update["update_id"])
    assert (await governance.update(update["update_id"]))["status"] == "deploying"
    assert probed_agents == []


@requirement("governance.deployed-report")
async def test_external_update_is_deployed_when_its_tests_passed(governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted())
    assert (update["status"], update["deployed_at"]) == ("approved", None)
    path = f"updates/{update['update_id']}/deployed"
    deployed = (await governance.post(path, {"test_results": PASSED_TESTS})).json()
    assert (deployed["status"], deployed["test_results"]) == ("deployed", PASSED_TESTS)
    assert deployed["deployed_at"] is not None
    assert error_of(await governance.post(path, {"test_results": PASSED_TESTS})) == (409, "CONFLICT")


@requirement("governance.deployed-report")
@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_failed_tests_roll_back_to_the_named_or_approval_checkpoint(
    governance: GovernanceClient, has_checkpoint: bool
) -> None:
    agent = await governance.register_trusted()
    await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.1})
    first = (await governance.checkpoint(agent))["checkpoint_id"]
    await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.2})
    update = await governance.propose(agent, checkpoint_id=first if has_checkpoint else None)
    await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"accuracy_score": 0.3})
    response = await governance.post(f"updates/{update['update_id']}/deployed", {"test_results": FAILED_TESTS})
    assert (response.status_code, response.json()["status"]) == (200, "rolled_back")
    assert response.json()["test_results"] == FAILED_TESTS
    assert (await governance.agent(agent))["accuracy_score"] == (0.1 if has_checkpoint else 0.2)
    (rollback,) = (await governance.get("rollbacks"))["rollbacks"]
    assert (rollback["update_id"], rollback["verified"]) == (update["update_id"], True)


async def test_failed_tests_of_an_unknown_agent_restore_nothing(governance: GovernanceClient) -> None:
    update = await governance.propose("00000000-0000-7000-8000-00000000000a")
    await governance.approve(update)
    response = await governance.post(f"updates/{update['update_id']}/deployed", {"test_results": FAILED_TESTS})
    assert response.json()["status"] == "rolled_back"
    assert "nothing was restored" in response.json()["notes"]


@requirement("governance.deployed-report")
async def test_deployed_report_needs_an_approved_external_update(governance: GovernanceClient) -> None:
    body = {"test_results": PASSED_TESTS}
    waiting = await governance.propose(await governance.register_trusted(0.8))
    assert error_of(await governance.post(f"updates/{waiting['update_id']}/deployed", body)) == (409, "CONFLICT")
    patch = await governance.propose(
        await governance.register_trusted(name="bob", capabilities=["a", "echo"]), FEWER_CAPABILITIES
    )
    assert error_of(await governance.post(f"updates/{patch['update_id']}/deployed", body)) == (
        409,
        "CONFLICT",
    )
    for results in ({}, {"unit_tests": {"passed": -1, "failed": 0}}, {"unit_tests": {"passed": 1}}):
        response = await governance.post(f"updates/{waiting['update_id']}/deployed", {"test_results": results})
        assert error_of(response) == (400, "INVALID_REQUEST")


@requirement("governance.probes")
@pytest.mark.parametrize(("status", "expected"), [(200, "deployed"), (405, "deployed"), (500, "rolled_back")])
async def test_http_agent_probe_accepts_statuses_below_500(make_world: MakeWorld, status: int, expected: str) -> None:
    governance = GovernanceClient(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"))
    async with serving(answering({}, status)) as endpoint:
        runtime = {"kind": "http", "endpoint": endpoint.url}
        agent = await governance.register_trusted(capabilities=["echo", "sum"], runtime=runtime)
        update = await governance.propose(agent, FEWER_CAPABILITIES)
    assert (update["status"], update["notes"]) == (expected, f"The endpoint responded to HEAD with {status}.")
    assert [call["body"] for call in endpoint.calls] == [None], "the probe sends no task"


@requirement("governance.probes")
async def test_unreachable_or_private_endpoint_fails_the_probe(
    governance: GovernanceClient, make_world: MakeWorld
) -> None:
    allowed = GovernanceClient(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"))
    runtime = {"kind": "http", "endpoint": "http://127.0.0.1:1/gone"}
    agent = await allowed.register_trusted(0.8, capabilities=["echo", "sum"], runtime=runtime)
    update = await allowed.approve(await allowed.propose(agent, FEWER_CAPABILITIES))
    assert update["status"] == "rolled_back"
    assert "cannot be reached" in update["notes"]
    stored_agent = allowed.world.kernel.agents.registry.agents.get("default", agent)
    assert stored_agent is not None
    result = await governance.world.kernel.governance.deployer.probe(stored_agent)
    assert (result.is_ok, "not public" in result.detail) == (False, True), "the address is not allowed here"


@requirement("governance.probes")
async def test_builtin_agent_probe_checks_that_the_builtin_exists(governance: GovernanceClient) -> None:
    for name, status in (("summarizer", "deployed"), ("nobody", "rolled_back")):
        runtime = {"kind": "builtin", "name": name}
        agent = await governance.register_trusted(name=name, capabilities=["echo", "sum"], runtime=runtime)
        update = await governance.propose(agent, FEWER_CAPABILITIES)
        assert (update["status"], name in update["notes"]) == (status, True)


@requirement("governance.probes")
async def test_worker_deployment_notes_that_workers_cannot_be_probed(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(capabilities=["echo", "sum"])
    assert "cannot be probed" in (await governance.propose(agent, FEWER_CAPABILITIES))["notes"]


@requirement("governance.probes")
async def test_hanging_or_missing_probe_counts_as_failed(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(capabilities=["echo", "sum"])
    stored_agent = governance.world.kernel.agents.registry.agents.get("default", agent)
    assert stored_agent is not None

    async def hanging_probe(probed: Agent) -> ProbeResult:
        await asyncio.sleep(3600)
        raise AssertionError

    assert (await probes.probe_by_kind({"worker": hanging_probe}, 0.01)(stored_agent)).is_ok is False
    assert (await probes.probe_by_kind({})(stored_agent)).is_ok is False
