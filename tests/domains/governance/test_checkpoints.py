"""Checkpoints and rollbacks of agents: contents, hashes, retention, verification and refusals."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from stentor.core.formats import canonical_json
from tests.conftest import MakeWorld
from tests.domains.governance.conftest import BASE, GovernanceClient
from tests.domains.governance.test_updates import INVALID_MOVE_ERROR, UNKNOWN_ID, error_of
from tests.requirements import requirement

WHITELIST = {"tools": [{"name": "files", "paths": ["notes/**"], "operations": ["read"], "rate_limit": 60}]}


@requirement("governance.checkpoint-routes")
async def test_checkpoint_holds_the_agent_state_and_its_hash(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, sandbox_whitelist=WHITELIST, accuracy_score=0.9)
    checkpoint = await governance.checkpoint(agent)
    state = checkpoint["state"]
    assert checkpoint["state_hash"] == hashlib.sha256(canonical_json.dumps(state).encode()).hexdigest()
    assert (state["agent_id"], state["trust_score"], state["accuracy_score"]) == (agent, 0.8, 0.9)
    assert state["config"]["sandbox_whitelist"]["tools"] == WHITELIST["tools"]
    assert (checkpoint["cause"], checkpoint["taken_by"], checkpoint["intact"]) == ("manual", "admin", True)
    assert await governance.get(f"checkpoints/{checkpoint['checkpoint_id']}") == checkpoint
    listed = (await governance.get("checkpoints", agent_id=agent))["checkpoints"]
    assert listed[0] == {**checkpoint, "state": None}
    assert error_of(await governance.post("checkpoints", {"agent_id": UNKNOWN_ID})) == (404, "NOT_FOUND")


async def test_equal_states_have_equal_hashes(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    first, second = [await governance.checkpoint(agent) for _ in range(2)]
    assert first["state_hash"] == second["state_hash"]
    await governance.set_trust(agent, 0.81)
    assert (await governance.checkpoint(agent))["state_hash"] != first["state_hash"]


@requirement("governance.checkpoint-automatic")
async def test_checkpoint_is_taken_before_each_admin_override(governance: GovernanceClient) -> None:
    agent = await governance.world.register()
    await governance.set_trust(agent, 0.8)
    override = {"override_tier": "auto", "rationale": "A mistake."}
    await governance.world.admin.post(f"/api/v1/registry/agents/{agent}/clear-violations", json=override)
    await governance.post(f"agents/{agent}/trust", {"metrics": METRICS})
    await governance.propose(agent)
    checkpoints = (await governance.get("checkpoints", agent_id=agent))["checkpoints"]
    assert [row["cause"] for row in checkpoints[::-1]] == ["trust_change", "clear_violations", "trust_change"]
    states = [(await governance.get(f"checkpoints/{row['checkpoint_id']}"))["state"] for row in checkpoints[::-1]]
    assert [state.get("trust_score") for state in states] == [None, 0.8, 0.8]
    assert [state["trust_tier"] for state in states] == ["monitored", "monitored", "auto"]
    await governance.world.admin.put("/api/v1/trust/somebody", json={"score": 0.5, "entityType": "person"})
    assert len((await governance.get("checkpoints"))["checkpoints"]) == 3


METRICS = {"recent_violation_count": 3, "successful_executions": 1, "total_executions": 1}


@requirement("governance.rollback-answers-202", "governance.rollback-read", "governance.rollback-verified")
async def test_rollback_restores_the_whole_state(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, capabilities=["echo", "sum"], sandbox_whitelist=WHITELIST)
    before = await governance.agent(agent)
    checkpoint = await governance.checkpoint(agent)
    await governance.set_trust(agent, 0.2)
    await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"alignment_score": 0.1})
    patch = {"agent_patch": {"capabilities": ["echo"], "sandbox_whitelist": None}}
    update = await governance.approve(await governance.propose(agent, patch))
    assert update["status"] == "deployed"
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "initiated_by": "dana", "reason": "Worse.", "details": "d"}
    response = await governance.post("rollbacks", body)
    assert response.status_code == 202
    assert set(response.json()) == {"rollback_id", "checkpoint_id", "status", "estimated_completion"}
    assert response.json()["status"] == "initiated"
    await governance.wait_until_idle()
    ended = await governance.get(f"rollbacks/{response.json()['rollback_id']}")
    assert (ended["status"], ended["verified"], ended["checkpoint_id"]) == ("completed", True, body["checkpoint_id"])
    assert (ended["initiated_by"], ended["claimed_by"], ended["reason"]) == ("admin", "dana", "Worse.")
    assert ended["completed_at"] >= ended["initiated_at"]
    after = await governance.agent(agent)
    assert {**after, "updated_at": None} == {**before, "updated_at": None}
    assert (await governance.checkpoint(agent))["state_hash"] == checkpoint["state_hash"]
    assert (await governance.update(update["update_id"]))["status"] == "rolled_back"
    kinds = [
        kind for kind, _ in await governance.events("rollback_started", "rollback_in_progress", "rollback_completed")
    ]
    assert kinds == ["rollback_started", "rollback_in_progress", "rollback_completed"]


async def test_rollback_does_not_lift_quarantine(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    checkpoint = await governance.checkpoint(agent)
    for _ in range(3):
        await governance.world.admin.post(
            f"/api/v1/registry/agents/{agent}/authorize", json={"tool": "rm", "operation": "run"}
        )
    assert (await governance.rollback(checkpoint["checkpoint_id"]))["verified"] is True
    after = await governance.agent(agent)
    assert (after["status"], after["violation_count"]) == ("quarantined", 3)


async def test_rollback_to_state_without_score_keeps_current_trust(governance: GovernanceClient) -> None:
    agent = await governance.world.register()
    checkpoint = await governance.checkpoint(agent)
    await governance.set_trust(agent, 0.4)
    assert (await governance.rollback(checkpoint["checkpoint_id"]))["verified"] is True
    assert (await governance.agent(agent))["trust_score"] == 0.4


@requirement("governance.checkpoint-corrupt-409")
@pytest.mark.parametrize(
    "damage",
    [
        "state = replace(state, 'monitored', 'auto')",
        "state = ''",
        "state = state || ' '",
        "state_hash = '0000000000000000000000000000000000000000000000000000000000000000'",
        "state_hash = ''",
    ],
)
async def test_corrupt_checkpoint_is_not_restored(governance: GovernanceClient, damage: str) -> None:
    agent = await governance.register_trusted(0.8)
    checkpoint = await governance.checkpoint(agent)
    await governance.execute_sql(
        f"update checkpoints set {damage} where checkpoint_id = :id", id=checkpoint["checkpoint_id"]
    )
    before = await governance.agent(agent)
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    assert error_of(await governance.post("rollbacks", body)) == (409, "CHECKPOINT_CORRUPT")
    assert (await governance.get("rollbacks"))["rollbacks"] == []
    assert await governance.agent(agent) == before
    checkpoint_after = await governance.get(f"checkpoints/{checkpoint['checkpoint_id']}")
    assert (checkpoint_after["intact"], checkpoint_after["state"]) == (False, None)


@requirement("governance.checkpoint-corrupt-409")
async def test_checkpoint_of_another_agent_is_not_restored(governance: GovernanceClient) -> None:
    agent, other = await governance.register_trusted(0.8), await governance.register_trusted(0.8, name="bob")
    checkpoint = await governance.checkpoint(agent)
    await governance.execute_sql(
        "update checkpoints set agent_id = :other where checkpoint_id = :id",
        other=other,
        id=checkpoint["checkpoint_id"],
    )
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    assert error_of(await governance.post("rollbacks", body)) == (409, "CHECKPOINT_CORRUPT")


@requirement("governance.rollback-verified")
async def test_checkpoint_damaged_after_start_fails_the_rollback(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    checkpoint = await governance.checkpoint(agent)
    await governance.set_trust(agent, 0.5)
    await governance.world.kernel.governance.runner.stop()
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    started = (await governance.post("rollbacks", body)).json()
    await governance.execute_sql(
        "update checkpoints set state_hash = 'x' where checkpoint_id = :id", id=body["checkpoint_id"]
    )
    await governance.world.kernel.governance.rollbacks.execute("default", started["rollback_id"])
    rollback = await governance.get(f"rollbacks/{started['rollback_id']}")
    assert (rollback["status"], rollback["verified"], "corrupt" in rollback["notes"]) == ("failed", False, True)
    assert (await governance.agent(agent))["trust_score"] == 0.5


@requirement("governance.rollback-verified")
async def test_rollback_that_differs_from_the_checkpoint_is_undone(
    governance: GovernanceClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await governance.register_trusted(0.8, capabilities=["echo", "sum"])
    checkpoint = await governance.checkpoint(agent)
    await governance.set_trust(agent, 0.5)
    registry = governance.world.kernel.agents.registry
    original = registry.prepare_reconfigure

    def drop_capability(tenant: str, agent_id: str, fields: dict[str, Any], *rest: Any) -> Any:
        return original(tenant, agent_id, {**fields, "capabilities": ("echo",)}, *rest)

    monkeypatch.setattr(registry, "prepare_reconfigure", drop_capability)
    rollback = await governance.rollback(checkpoint["checkpoint_id"])
    assert (rollback["status"], rollback["verified"]) == ("failed", False)
    after = await governance.agent(agent)
    assert (after["capabilities"], after["trust_score"]) == (["echo", "sum"], 0.5), "nothing was changed"


@requirement("governance.rollback-read")
async def test_database_rejects_invalid_rollback_transitions(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    rollback = await governance.rollback((await governance.checkpoint(agent))["checkpoint_id"])
    for status in ("initiated", "in_progress", "failed"):
        with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
            await governance.execute_sql(
                "update rollbacks set status = :to, verified = 0, "
                f"completed_at = {'1' if status == 'failed' else 'null'} where rollback_id = :id",
                to=status,
                id=rollback["rollback_id"],
            )
    with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
        await governance.execute_sql(
            "update rollbacks set verified = 0 where rollback_id = :id", id=rollback["rollback_id"]
        )


async def test_unknown_checkpoint_and_rollback_return_404(governance: GovernanceClient) -> None:
    assert error_of(await governance.post("rollbacks", {"checkpoint_id": UNKNOWN_ID, "reason": "x"})) == (
        404,
        "NOT_FOUND",
    )
    for path in (f"rollbacks/{UNKNOWN_ID}", f"checkpoints/{UNKNOWN_ID}"):
        assert error_of(await governance.world.admin.get(f"{BASE}/{path}")) == (404, "NOT_FOUND")


@requirement("governance.checkpoint-retention")
async def test_checkpoints_expire_after_the_configured_retention(make_world: MakeWorld) -> None:
    governance = GovernanceClient(await make_world(SERVICE_CHECKPOINT_RETENTION_DAYS="10"))
    agent = await governance.world.register()
    expired = await governance.checkpoint(agent)
    governance.world.clock.advance(days=5)
    needed = await governance.checkpoint(agent)
    update = await governance.propose(agent, checkpoint_id=needed["checkpoint_id"])
    await governance.approve(update)
    governance.world.clock.advance(days=5, seconds=1)
    checkpoints = governance.world.kernel.governance.checkpoints
    assert await checkpoints.expire(governance.world.clock.now()) == 1
    remaining_ids = [checkpoint["checkpoint_id"] for checkpoint in (await governance.get("checkpoints"))["checkpoints"]]
    assert expired["checkpoint_id"] not in remaining_ids
    assert needed["checkpoint_id"] in remaining_ids
    ((_, meta),) = await governance.events("checkpoints_expired")
    assert meta["checkpoint_ids"] == [expired["checkpoint_id"]]
    governance.world.clock.advance(days=20)
    assert await checkpoints.expire(governance.world.clock.now()) == 0, "an open update needs them"


@requirement("governance.checkpoint-retention")
async def test_default_checkpoint_retention_is_60_days(governance: GovernanceClient) -> None:
    assert governance.world.kernel.infra.settings.governance.checkpoint_days == 60


@requirement("governance.four-eyes")
async def test_agent_key_cannot_roll_back_its_own_agent_to_more_access(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.95, key_name="second", capabilities=["echo", "sum"])
    update = await governance.propose(agent, {"agent_patch": {"capabilities": ["echo"]}})
    body = {"checkpoint_id": update["checkpoint_id"], "reason": "x"}
    response = await governance.post("rollbacks", body, "SECOND")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "GOVERNANCE_SELF_APPROVAL")
    assert (await governance.agent(agent))["capabilities"] == ["echo"]
    assert (await governance.rollback(update["checkpoint_id"]))["verified"] is True


@requirement("governance.four-eyes")
async def test_agent_key_cannot_roll_back_its_own_agent_to_another_kind_of_option(governance: GovernanceClient) -> None:
    agent = await governance.world.register(runtime={"kind": "worker", "options": {"confirm": 0}})
    update = await governance.propose(agent, {"agent_patch": {"runtime": {"options": {"confirm": False}}}})
    deployed = await governance.approve(update)
    await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"key_name": "second"})
    body = {"checkpoint_id": deployed["checkpoint_id"], "reason": "x"}
    response = await governance.post("rollbacks", body, "SECOND")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "GOVERNANCE_SELF_APPROVAL")
    assert (await governance.agent(agent))["runtime"]["options"] == {"confirm": False}
