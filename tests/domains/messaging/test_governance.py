"""Messages to the zone governance act as its routes do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.domains.governance.conftest import GovernanceClient, proposal
from tests.domains.messaging.conftest import Post, form
from tests.patience import soon
from tests.requirements import requirement

NOBODY = "00000000-0000-7000-8000-000000000000"
ZONE = "governance"


async def settled(governance: GovernanceClient) -> None:
    await governance.wait_until_idle()
    await asyncio.sleep(0)


@requirement("atp.messages-act-on-governance")
async def test_an_update_is_proposed_and_decided_by_message(post: Post) -> None:
    governance = GovernanceClient(post.world)
    agent = await governance.register_trusted(0.8)
    body = proposal(agent)
    told = await post.do(body, ZONE, "propose_update", mode="async")
    over_rest = await governance.post("updates", body)
    assert over_rest.json() == told, "the same proposal, whichever way it came"
    assert (told["status"], told["tier"]) == ("submitted", 2)
    own = await post.fail({"update_id": body["update_id"]}, ZONE, "approve")
    assert own["code"] == "GOVERNANCE_SELF_APPROVAL"
    done = await post.do({"update_id": body["update_id"], "rationale": "Fine."}, ZONE, "approve", client="SECOND")
    assert (done["status"], done["deployment_scheduled"]) == ("approved", False)
    ((_, meta),) = await governance.events("update_approved")
    assert meta["message_id"]
    other = proposal(agent)
    await post.do(other, ZONE, "propose_update")
    gone = {"update_id": other["update_id"], "reason": "No.", "feedback": "Smaller."}
    assert (await post.do(gone, ZONE, "reject", client="SECOND"))["status"] == "rejected"
    assert (await post.fail(gone, ZONE, "reject", client="SECOND"))["code"] == "CONFLICT"
    conflict = await post.fail({**other, "description": "Other."}, ZONE, "propose_update")
    assert conflict["code"] == "CONFLICT"


@requirement("atp.messages-act-on-governance", "governance.override-risk")
async def test_override_approves_what_carries_a_risk(post: Post) -> None:
    governance = GovernanceClient(post.world)
    agent = await governance.register_trusted(1.0)
    body = proposal(agent, {"agent_patch": {"capabilities": ["echo", "deploy"]}})
    await post.do(body, ZONE, "propose_update")
    update = {"update_id": body["update_id"]}
    refused = await post.fail(update, ZONE, "approve", client="SECOND")
    assert refused["code"] == "GOVERNANCE_RISK_NOT_OVERRIDDEN"
    own = await post.fail({**update, "rationale": "Mine."}, ZONE, "override")
    assert own["code"] == "GOVERNANCE_SELF_APPROVAL", "four eyes are no risk that one accepts"
    done = await post.do({**update, "rationale": "It is wanted."}, ZONE, "override", client="SECOND")
    assert (done["status"], done["deployment_scheduled"]) == ("approved", True)
    await settled(governance)
    assert (await governance.agent(agent))["capabilities"] == ["echo", "deploy"]


@requirement("atp.messages-act-on-governance")
async def test_a_rollback_is_started_by_message(post: Post) -> None:
    governance = GovernanceClient(post.world)
    agent = await governance.register_trusted(0.8)
    checkpoint = (await governance.checkpoint(agent))["checkpoint_id"]
    await governance.set_trust(agent, 0.2)
    told = await post.do({"checkpoint_id": checkpoint, "reason": "Worse."}, ZONE, "rollback")
    assert (told["status"], told["checkpoint_id"]) == ("initiated", checkpoint)
    await settled(governance)
    assert (await governance.get(f"rollbacks/{told['rollback_id']}"))["verified"] is True
    assert (await governance.agent(agent))["trust_score"] == 0.8
    missing = await post.fail({"checkpoint_id": NOBODY, "reason": "x"}, ZONE, "rollback")
    assert missing["code"] == "NOT_FOUND"
    await governance.execute_sql("update checkpoints set state = '' where checkpoint_id = :id", id=checkpoint)
    corrupt = await post.fail({"checkpoint_id": checkpoint, "reason": "x"}, ZONE, "rollback")
    assert corrupt["code"] == "CHECKPOINT_CORRUPT"


@requirement("atp.same-permission-as-rest")
@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("propose_update", proposal(NOBODY)),
        ("approve", {"update_id": NOBODY}),
        ("override", {"update_id": NOBODY, "rationale": "x"}),
        ("reject", {"update_id": NOBODY}),
        ("rollback", {"checkpoint_id": NOBODY, "reason": "x"}),
    ],
)
async def test_each_needs_the_permission_of_its_route(post: Post, action: str, body: Any) -> None:
    for client in ("WRITER", "BOB", "READER"):
        answer = await post.ask("send", client, json=form(body, ZONE, action))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert (await post.ask("queue")).json()["data"]["depth"] == 0


@requirement("governance.only-admin")
async def test_a_blank_rationale_is_none_in_a_message_too(post: Post) -> None:
    sole = post.world.clients["OTHER"]
    agent = (await sole.post("/api/v1/registry/agents", json={"name": "ann"})).json()["agent_id"]
    update = proposal(agent)
    await sole.post("/api/v1/governance/updates", json=update)
    decision = {"update_id": update["update_id"], "rationale": " "}
    refused = await post.ask("send", "OTHER", json=form(decision, ZONE, "override"))
    assert refused.status_code == 400, refused.text
    sent = await post.ask("send", "OTHER", json=form(decision, ZONE, "approve"))

    async def response() -> Any:
        answer = await post.ask(f"response/{sent.json()['messageId']}", "OTHER")
        data = answer.json()["data"] if answer.status_code == 200 else {}
        return data if data.get("status") in ("completed", "failed") else None

    ended = await soon(response)
    assert ended["response"]["error"]["message"] == "rationale: required to approve your own update"
