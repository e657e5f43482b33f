"""What a program's key may do in governance: nothing that widens an agent, and nothing for the agent it works as."""

from __future__ import annotations

from typing import Any

import pytest

from tests.domains.governance.conftest import GovernanceClient, proposal
from tests.domains.governance.test_deployment import FAILED_TESTS, PASSED_TESTS
from tests.domains.governance.test_updates import error_of
from tests.requirements import requirement

SELF_APPROVAL = (403, "GOVERNANCE_SELF_APPROVAL")
FORBIDDEN = (403, "FORBIDDEN")


async def make_key(governance: GovernanceClient, name: str, role: str, maker: str = "ADMIN", **fields: Any) -> str:
    """Make a key and return its secret; `maker` is a client's name or a secret."""
    headers = {} if maker.isupper() else {"X-API-Key": maker}
    client = governance.world.clients[maker if maker.isupper() else "ADMIN"]
    response = await client.post("/api/v1/keys", json={"name": name, "role": role, **fields}, headers=headers)
    assert response.is_success, response.text
    return str(response.json()["key"])


async def edit(governance: GovernanceClient, agent: str, **fields: Any) -> None:
    """Change an agent's record; its capabilities by an update, because the registry does not change them."""
    if (capabilities := fields.pop("capabilities", None)) is not None:
        update = await governance.propose(agent, {"agent_patch": {"capabilities": capabilities}})
        assert update["status"] == "deployed", update
    if fields:
        response = await governance.world.admin.patch(f"/api/v1/registry/agents/{agent}", json=fields)
        assert response.status_code == 200, response.text


@requirement("governance.own-failure")
@pytest.mark.parametrize("results", [FAILED_TESTS, PASSED_TESTS])
async def test_an_agent_does_not_report_the_tests_of_its_own_update(
    governance: GovernanceClient, results: dict[str, Any]
) -> None:
    agent = await governance.register_trusted(key_name="boss", trust_tier="monitored")
    update = await governance.propose(agent)
    assert update["status"] == "approved"
    await edit(governance, agent, trust_tier="human")
    before = await governance.agent(agent)
    path = f"updates/{update['update_id']}/deployed"
    assert error_of(await governance.post(path, {"test_results": results}, "BOSS")) == SELF_APPROVAL
    assert await governance.agent(agent) == before
    assert (await governance.update(update["update_id"]))["status"] == "approved"
    assert (await governance.post(path, {"test_results": results})).status_code == 200


@requirement("governance.own-failure")
async def test_an_agents_own_checkpoint_is_not_restored_when_its_update_fails(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(key_name="boss", capabilities=["echo", "deploy"], trust_tier="auto")
    checkpoint = await governance.checkpoint(agent)
    await edit(governance, agent, capabilities=["echo"], trust_tier="human")
    body = proposal(agent, checkpoint_id=checkpoint["checkpoint_id"])
    response = await governance.post("updates", body, "BOSS")
    assert response.status_code == 202, response.text
    update = await governance.update(response.json()["update_id"])
    assert update["status"] == "approved"
    path = f"updates/{update['update_id']}/deployed"
    assert (await governance.post(path, {"test_results": FAILED_TESTS})).json()["status"] == "rolled_back"
    after = await governance.agent(agent)
    assert (after["capabilities"], after["trust_tier"]) == (["echo"], "human")


@requirement("governance.rollback-widens")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"trust_tier": "auto"}, {"trust_tier": "human"}),
        ({"capabilities": ["echo", "deploy"]}, {"capabilities": ["echo"]}),
    ],
)
async def test_a_program_does_not_roll_another_agent_back_to_more(
    governance: GovernanceClient, before: dict[str, Any], after: dict[str, Any]
) -> None:
    agent = await governance.register_trusted(key_name="bob", **before)
    checkpoint = await governance.checkpoint(agent)
    await edit(governance, agent, **after)
    narrow = await governance.checkpoint(agent)
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    assert error_of(await governance.post("rollbacks", body, "BOSS")) == SELF_APPROVAL
    assert error_of(await governance.post("rollbacks", body, "BOB")) == FORBIDDEN, "it needs admin"
    same = {"checkpoint_id": narrow["checkpoint_id"], "reason": "x"}
    assert (await governance.post("rollbacks", same, "BOSS")).status_code == 202
    await governance.wait_until_idle()
    assert (await governance.rollback(checkpoint["checkpoint_id"]))["verified"] is True


@requirement("governance.rollback-widens")
async def test_a_person_with_the_agents_key_does_not_loosen_its_tier_by_a_rollback(
    governance: GovernanceClient,
) -> None:
    agent = await governance.register_trusted(key_name="second", trust_tier="auto")
    checkpoint = await governance.checkpoint(agent)
    await edit(governance, agent, trust_tier="human")
    body = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    assert error_of(await governance.post("rollbacks", body, "SECOND")) == SELF_APPROVAL
    assert (await governance.rollback(checkpoint["checkpoint_id"]))["verified"] is True


@requirement("governance.four-eyes", "keys.four-eyes")
async def test_a_key_made_by_a_key_made_for_the_purpose_cannot_approve(governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8))
    first = await make_key(governance, "first", "admin")
    second = await make_key(governance, "second-hop", "approver", first)
    path = f"updates/{update['update_id']}/approve"
    assert error_of(await governance.post(path, {}, **{"X-API-Key": second})) == SELF_APPROVAL
    colleague = await make_key(governance, "colleague", "admin", "SECOND")
    theirs = await make_key(governance, "theirs", "approver", colleague)
    assert (await governance.post(path, {}, **{"X-API-Key": theirs})).status_code == 200


@requirement("governance.programs-decide")
async def test_a_program_with_approve_decides_no_update_of_another(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, key_name="bob")
    key = {"X-API-Key": await make_key(governance, "helper", "agent", permissions=["read", "propose", "approve"])}
    governance.world.clock.advance(seconds=1)
    update = await governance.propose(agent)
    path = f"updates/{update['update_id']}"
    seen = await governance.world.admin.get(f"/api/v1/governance/{path}", headers=key)
    assert seen.json()["may_approve"] is False
    for verb in ("approve", "reject"):
        assert error_of(await governance.post(f"{path}/{verb}", {}, **key)) == FORBIDDEN
    assert (await governance.post(f"{path}/approve", {}, "BOSS")).status_code == 200, "with admin, for others' agents"


@requirement("governance.programs-decide")
async def test_only_a_person_accepts_a_risk(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(key_name="bob")
    update = await governance.propose(agent, {"agent_patch": {"capabilities": ["echo", "deploy"]}})
    assert update["risks"] == ["widens_access"]
    path = f"updates/{update['update_id']}/approve"
    assert error_of(await governance.post(path, {"override_risk": True}, "BOSS")) == FORBIDDEN
    assert (await governance.approve(update, override_risk=True))["status"] == "deployed"


@requirement("governance.programs-decide")
async def test_an_agent_does_not_reject_what_restricts_it(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, key_name="boss", capabilities=["echo", "deploy"])
    update = await governance.propose(agent, {"agent_patch": {"capabilities": ["echo"]}})
    path = f"updates/{update['update_id']}/reject"
    assert error_of(await governance.post(path, {}, "BOSS")) == FORBIDDEN
    assert (await governance.post(path, {}, "SECOND")).status_code == 200
