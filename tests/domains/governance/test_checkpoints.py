"""Checkpoints and rollbacks of agents: contents, hashes, retention, verification and refusals."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from stentor.core import canonical_json
from tests.conftest import MakeWorld
from tests.domains.governance.conftest import BASE, Office
from tests.domains.governance.test_updates import INVALID_MOVE_ERROR, UNKNOWN_ID, error_of
from tests.requirements import requirement

WHITELIST = {"tools": [{"name": "files", "paths": ["notes/**"], "operations": ["read"], "rate_limit": 60}]}


@requirement("governance.checkpoint-routes")
async def test_checkpoint_holds_the_agent_state_and_its_hash(office: Office) -> None:
    agent = await office.trusted(0.8, sandbox_whitelist=WHITELIST, accuracy_score=0.9)
    checkpoint = await office.checkpoint(agent)
    state = checkpoint["state"]
    assert checkpoint["state_hash"] == hashlib.sha256(canonical_json.dumps(state).encode()).hexdigest()
    assert (state["agent_id"], state["trust_score"], state["accuracy_score"]) == (agent, 0.8, 0.9)
    assert state["config"]["sandbox_whitelist"]["tools"] == WHITELIST["tools"]
    assert (checkpoint["cause"], checkpoint["taken_by"], checkpoint["intact"]) == ("manual", "admin", True)
    assert await office.get(f"checkpoints/{checkpoint['checkpoint_id']}") == checkpoint
    listed = (await office.get("checkpoints", agent_id=agent))["checkpoints"]
    assert listed[0] == {**checkpoint, "state": None}
    assert error_of(await office.post("checkpoints", {"agent_id": UNKNOWN_ID})) == (404, "NOT_FOUND")


async def test_equal_states_have_equal_hashes(office: Office) -> None:
    agent = await office.trusted(0.8)
    first, second = [await office.checkpoint(agent) for _ in range(2)]
    assert first["state_hash"] == second["state_hash"]
    await office.trust(agent, 0.81)
    assert (await office.checkpoint(agent))["state_hash"] != first["state_hash"]


@requirement("governance.checkpoint-automatic")
async def test_checkpoint_is_taken_before_each_admin_override(office: Office) -> None:
    agent = await office.world.register()
    await office.trust(agent, 0.8)
    override = {"override_tier": "auto", "rationale": "A mistake."}
    await office.world.admin.post(f"/api/v1/registry/agents/{agent}/clear-violations", json=override)
    await office.post(f"agents/{agent}/trust", {"metrics": METRICS})
    await office.propose(agent)
    checkpoints = (await office.get("checkpoints", agent_id=agent))["checkpoints"]
    assert [row["cause"] for row in checkpoints[::-1]] == ["trust_change", "clear_violations", "trust_change"]
    states = [(await office.get(f"checkpoints/{row['checkpoint_id']}"))["state"] for row in checkpoints[::-1]]
    assert [state.get("trust_score") for state in states] == [None, 0.8, 0.8]
    assert [state["trust_tier"] for state in states] == ["monitored", "monitored", "auto"]
    await office.world.admin.put("/api/v1/trust/somebody", json={"score": 0.5, "entityType": "person"})
    assert len((await office.get("checkpoints"))["checkpoints"]) == 3


METRICS = {"recent_violation_count": 3, "successful_executions": 1, "total_executions": 1}


@requirement("governance.rollback-answers-202", "governance.rollback-read", "governance.rollback-verified")
async def test_rollback_restores_the_whole_state(office: Office) -> None:
    agent = await office.trusted(0.8, capabilities=["echo", "sum"], sandbox_whitelist=WHITELIST)
    before = await office.agent(agent)
    checkpoint = await office.checkpoint(agent)
    await office.trust(agent, 0.2)
    await office.world.admin.patch(f"/api/v1/registry/agents/{agent}", json={"alignment_score": 0.1})
    patch = {"agent_patch": {"capabilities": ["echo"], "sandbox_whitelist": None}}
    update = await office.approve(await office.propose(agent, patch))
    assert update["status"] == "deployed"
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "initiated_by": "dana", "reason": "Worse.", "details": "d"}
    response = await office.post("rollbacks", body)
    assert response.status_code == 202
    assert set(response.json()) == {"rollback_id", "checkpoint_id", "status", "estimated_completion"}
    assert response.json()["status"] == "initiated"
    await office.idle()
    ended = await office.get(f"rollbacks/{response.json()['rollback_id']}")
    assert (ended["status"], ended["verified"], ended["checkpoint_id"]) == ("completed", True, body["checkpoint_id"])
    assert (ended["initiated_by"], ended["claimed_by"], ended["reason"]) == ("admin", "dana", "Worse.")
    assert ended["completed_at"] >= ended["initiated_at"]
    after = await office.agent(agent)
    assert {**after, "updated_at": None} == {**before, "updated_at": None}
    assert (await office.checkpoint(agent))["state_hash"] == checkpoint["state_hash"]
    assert (await office.update(update["update_id"]))["status"] == "rolled_back"
    kinds = [kind for kind, _ in await office.events("rollback_started", "rollback_in_progress", "rollback_completed")]
    assert kinds == ["rollback_started", "rollback_in_progress", "rollback_completed"]


async def test_rollback_does_not_lift_quarantine(office: Office) -> None:
    agent = await office.trusted(0.8)
    checkpoint = await office.checkpoint(agent)
    for _ in range(3):
        await office.world.admin.post(
            f"/api/v1/registry/agents/{agent}/authorize", json={"tool": "rm", "operation": "run"}
        )
    assert (await office.rollback(checkpoint["checkpoint_id"]))["verified"] is True
    after = await office.agent(agent)
    assert (after["status"], after["violation_count"]) == ("quarantined", 3)


async def test_rollback_to_state_without_score_keeps_current_trust(office: Office) -> None:
    agent = await office.world.register()
    checkpoint = await office.checkpoint(agent)
    await office.trust(agent, 0.4)
    assert (await office.rollback(checkpoint["checkpoint_id"]))["verified"] is True
    assert (await office.agent(agent))["trust_score"] == 0.4


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
async def test_corrupt_checkpoint_is_not_restored(office: Office, damage: str) -> None:
    agent = await office.trusted(0.8)
    checkpoint = await office.checkpoint(agent)
    await office.sql(f"update checkpoints set {damage} where checkpoint_id = :id", id=checkpoint["checkpoint_id"])
    before = await office.agent(agent)
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    assert error_of(await office.post("rollbacks", body)) == (409, "CHECKPOINT_CORRUPT")
    assert (await office.get("rollbacks"))["rollbacks"] == []
    assert await office.agent(agent) == before
    checkpoint_after = await office.get(f"checkpoints/{checkpoint['checkpoint_id']}")
    assert (checkpoint_after["intact"], checkpoint_after["state"]) == (False, None)


@requirement("governance.checkpoint-corrupt-409")
async def test_checkpoint_of_another_agent_is_not_restored(office: Office) -> None:
    agent, other = await office.trusted(0.8), await office.trusted(0.8, name="bob")
    checkpoint = await office.checkpoint(agent)
    await office.sql(
        "update checkpoints set agent_id = :other where checkpoint_id = :id",
        other=other,
        id=checkpoint["checkpoint_id"],
    )
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    assert error_of(await office.post("rollbacks", body)) == (409, "CHECKPOINT_CORRUPT")


@requirement("governance.rollback-verified")
async def test_checkpoint_damaged_after_start_fails_the_rollback(office: Office) -> None:
    agent = await office.trusted(0.8)
    checkpoint = await office.checkpoint(agent)
    await office.trust(agent, 0.5)
    await office.world.kernel.governance.runner.stop()
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    started = (await office.post("rollbacks", body)).json()
    await office.sql("update checkpoints set state_hash = 'x' where checkpoint_id = :id", id=body["checkpoint_id"])
    await office.world.kernel.governance.rollbacks.execute("default", started["rollback_id"])
    rollback = await office.get(f"rollbacks/{started['rollback_id']}")
    assert (rollback["status"], rollback["verified"], "corrupt" in rollback["notes"]) == ("failed", False, True)
    assert (await office.agent(agent))["trust_score"] == 0.5


@requirement("governance.rollback-verified")
async def test_rollback_that_differs_from_the_checkpoint_is_undone(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await office.trusted(0.8, capabilities=["echo", "sum"])
    checkpoint = await office.checkpoint(agent)
    await office.trust(agent, 0.5)
    registry = office.world.kernel.agents.registry
    original = registry.prepare_reconfigure

    def drop_capability(tenant: str, agent_id: str, fields: dict[str, Any], *rest: Any) -> Any:
        return original(tenant, agent_id, {**fields, "capabilities": ("echo",)}, *rest)

    monkeypatch.setattr(registry, "prepare_reconfigure", drop_capability)
    rollback = await office.rollback(checkpoint["checkpoint_id"])
    assert (rollback["status"], rollback["verified"]) == ("failed", False)
    after = await office.agent(agent)
    assert (after["capabilities"], after["trust_score"]) == (["echo", "sum"], 0.5), "nothing was changed"


@requirement("governance.rollback-read")
async def test_database_rejects_invalid_rollback_transitions(office: Office) -> None:
    agent = await office.trusted(0.8)
    rollback = await office.rollback((await office.checkpoint(agent))["checkpoint_id"])
    for status in ("initiated", "in_progress", "failed"):
        with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
            await office.sql(
                "update rollbacks set status = :to, verified = 0, "
                f"completed_at = {'1' if status == 'failed' else 'null'} where rollback_id = :id",
                to=status,
                id=rollback["rollback_id"],
            )
    with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
        await office.sql("update rollbacks set verified = 0 where rollback_id = :id", id=rollback["rollback_id"])


async def test_unknown_checkpoint_and_rollback_return_404(office: Office) -> None:
    assert error_of(await office.post("rollbacks", {"checkpoint_id": UNKNOWN_ID, "reason": "x"})) == (
        404,
        "NOT_FOUND",
    )
    for path in (f"rollbacks/{UNKNOWN_ID}", f"checkpoints/{UNKNOWN_ID}"):
        assert error_of(await office.world.admin.get(f"{BASE}/{path}")) == (404, "NOT_FOUND")


@requirement("governance.checkpoint-retention")
async def test_checkpoints_expire_after_the_configured_retention(make_world: MakeWorld) -> None:
    office = Office(await make_world(SERVICE_CHECKPOINT_RETENTION_DAYS="10"))
    agent = await office.world.register()
    expired = await office.checkpoint(agent)
    office.world.clock.advance(days=5)
    needed = await office.checkpoint(agent)
    update = await office.propose(agent, checkpoint_id=needed["checkpoint_id"])
    await office.approve(update)
    office.world.clock.advance(days=5, seconds=1)
    checkpoints = office.world.kernel.governance.checkpoints
    assert await checkpoints.expire(office.world.clock.now()) == 1
    remaining_ids = [checkpoint["checkpoint_id"] for checkpoint in (await office.get("checkpoints"))["checkpoints"]]
    assert expired["checkpoint_id"] not in remaining_ids
    assert needed["checkpoint_id"] in remaining_ids
    ((_, meta),) = await office.events("checkpoints_expired")
    assert meta["checkpoint_ids"] == [expired["checkpoint_id"]]
    office.world.clock.advance(days=20)
    assert await checkpoints.expire(office.world.clock.now()) == 0, "an open update needs them"


@requirement("governance.checkpoint-retention")
async def test_default_checkpoint_retention_is_60_days(office: Office) -> None:
    assert office.world.kernel.infra.settings.governance.checkpoint_days == 60


@requirement("governance.four-eyes")
async def test_agent_key_cannot_roll_back_its_own_agent_to_more_access(office: Office) -> None:
    agent = await office.trusted(0.95, key_name="second", capabilities=["echo", "sum"])
    update = await office.propose(agent, {"agent_patch": {"capabilities": ["echo"]}})
    body = {"checkpoint_id": update["checkpoint_id"], "reason": "x"}
    response = await office.post("rollbacks", body, "SECOND")
    assert (response.status_code, response.json()["error"]["code"]) == (403, "GOVERNANCE_SELF_APPROVAL")
    assert (await office.agent(agent))["capabilities"] == ["echo"]
    assert (await office.rollback(update["checkpoint_id"]))["verified"] is True
