"""Required fields of decisions, approval by the only person, named checkpoints and stored trust scores."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conftest import World
from tests.domains.governance.conftest import DECISION_FIELDS, GovernanceClient, proposal
from tests.requirements import requirement

BASE = "/api/v1/governance"


@requirement("governance.decision-fields")
@pytest.mark.parametrize("verb", ["approve", "reject", "rollbacks"])
async def test_decision_with_a_missing_field_returns_400_and_names_it(governance: GovernanceClient, verb: str) -> None:
    agent = await governance.register_trusted(0.8)
    checkpoint = await governance.checkpoint(agent)
    update = await governance.propose(agent)
    path = f"{BASE}/{verb}" if verb == "rollbacks" else f"{BASE}/updates/{update['update_id']}/{verb}"
    body = dict(DECISION_FIELDS[verb])
    if verb == "rollbacks":
        body |= {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "It got worse."}
    client = governance.world.clients["SECOND"]
    for name in body:
        response = await client.post(path, json={field: value for field, value in body.items() if field != name})
        assert response.status_code == 400
        assert name in response.json()["error"]["details"]["fields"]
    assert (await client.post(path)).status_code == 400
    assert (await governance.update(update["update_id"]))["status"] == "submitted"
    assert (await client.post(path, json=body)).status_code in (200, 202)


@requirement("governance.decision-fields")
@pytest.mark.only("sqlite", reason="the body is checked before the database is asked")
async def test_a_blank_rationale_or_reason_is_400_and_named(governance: GovernanceClient) -> None:
    for path, field in (("approve", "rationale"), ("reject", "reason"), ("rollbacks", "reason")):
        target = f"updates/{uuid.uuid4()}/{path}" if path != "rollbacks" else path
        ids = {"checkpoint_id": str(uuid.uuid4())} if path == "rollbacks" else {}
        response = await governance.post(target, {**ids, field: " \n"})
        assert response.status_code == 400, response.text
        assert list(response.json()["error"]["details"]["fields"]) == [field]
    agent = f"/api/v1/registry/agents/{uuid.uuid4()}"
    bodies = {"suspend": {"reason": " "}, "clear-violations": {"override_tier": "human", "rationale": " "}}
    for name, body in bodies.items():
        assert (await governance.world.admin.post(f"{agent}/{name}", json=body)).status_code == 400


def sole_person_client(world: World) -> Any:
    """The client of the only person in the tenant `other`."""
    return world.clients["OTHER"]


async def propose_as_sole_person(world: World, **fields: Any) -> dict[str, Any]:
    """Propose an update as the only person of a tenant, for an agent of that tenant; return its body."""
    client = sole_person_client(world)
    agent = (await client.post("/api/v1/registry/agents", json={"name": "ann", **fields})).json()["agent_id"]
    body = proposal(agent)
    assert (await client.post(f"{BASE}/updates", json=body)).json()["tier"] == 3
    return body


@requirement("governance.only-admin")
@pytest.mark.parametrize("key_name", [None, "other"])
async def test_only_person_of_a_tenant_approves_their_own_update(
    governance: GovernanceClient, key_name: str | None
) -> None:
    client = sole_person_client(governance.world)
    body = await propose_as_sole_person(governance.world, **({"key_name": key_name} if key_name else {}))
    path = f"{BASE}/updates/{body['update_id']}"
    decision = {"approved_by": "other", "rationale": "I own this machine.", "override_risk": False}
    assert (await client.post(f"{path}/approve", json={**decision, "rationale": " "})).status_code == 400
    assert (await client.post(f"{path}/approve", json=decision)).status_code == 200
    after = (await client.get(path)).json()
    assert (after["status"], after["decided_by"]) == ("approved", "other")
    assert after["decision"]["self_approved"] is True
    ((_, meta),) = await governance.events("update_approved")
    assert meta["self_approved"] is True


@requirement("governance.only-admin", "governance.four-eyes")
async def test_second_person_must_approve_when_two_have_keys(governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8))
    own = await governance.post(f"updates/{update['update_id']}/approve")
    assert (own.status_code, own.json()["error"]["code"]) == (403, "GOVERNANCE_SELF_APPROVAL")
    approved = await governance.approve(update)
    assert "self_approved" not in approved["decision"]


@requirement("governance.only-admin", "governance.four-eyes")
@pytest.mark.parametrize(
    ("method", "path", "change"), [("PATCH", "dana", {"role": "viewer"}), ("POST", "dana/revoke", None)]
)
async def test_who_takes_the_approval_from_the_others_cannot_approve_alone_for_a_day(
    governance: GovernanceClient, method: str, path: str, change: dict[str, str] | None
) -> None:
    world, client = governance.world, sole_person_client(governance.world)
    assert (await client.post("/api/v1/keys", json={"name": "dana", "role": "approver"})).status_code == 201
    body = await propose_as_sole_person(world)
    assert (await client.request(method, f"/api/v1/keys/{path}", json=change)).is_success
    approve = f"{BASE}/updates/{body['update_id']}/approve"
    decision = {"approved_by": "other", "rationale": "Nobody else is here.", "override_risk": False}
    refused = await client.post(approve, json=decision)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "GOVERNANCE_SELF_APPROVAL")
    world.clock.advance(seconds=86_400)
    assert (await client.post(approve, json=decision)).status_code == 200


@requirement("governance.checkpoint-exists")
async def test_proposal_needs_an_existing_checkpoint_of_its_agent(governance: GovernanceClient) -> None:
    agent, other = await governance.register_trusted(0.95), await governance.register_trusted(0.95, name="other")
    unknown = await governance.post("updates", proposal(agent, checkpoint_id=str(uuid.uuid4())))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "NOT_FOUND")
    foreign = (await governance.checkpoint(other))["checkpoint_id"]
    assert (await governance.post("updates", proposal(agent, checkpoint_id=foreign))).status_code == 409
    assert (await governance.get("updates"))["updates"] == []
    own = (await governance.checkpoint(agent))["checkpoint_id"]
    assert (await governance.post("updates", proposal(agent, checkpoint_id=own))).status_code == 202


@requirement("governance.trust-needs-enough")
async def test_score_from_a_single_metric_is_returned_but_not_stored(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.3)
    for metrics in ({"recent_violation_count": 0}, {"successful_executions": 9, "total_executions": 9}):
        response = (await governance.post(f"agents/{agent}/trust", {"metrics": metrics})).json()
        assert (response["trust_score"], response["persisted"]) == (1.0, False)
        assert "must be known" in response["reason"]
    assert (await governance.agent(agent))["trust_score"] == 0.3
    both = {"recent_violation_count": 0, "successful_executions": 9, "total_executions": 9}
    response = (await governance.post(f"agents/{agent}/trust", {"metrics": both})).json()
    assert (response["persisted"], response["reason"]) == (True, None)
    assert (await governance.agent(agent))["trust_score"] == 1.0


@requirement("trust.type-kept")
async def test_score_update_without_entity_type_keeps_the_type(world: World) -> None:
    path = "/api/v1/trust/dana"
    await world.admin.put(path, json={"score": 0.4, "entityType": "user"})
    await world.admin.put(path, json={"score": 0.6})
    assert (await world.admin.get(path)).json()["data"]["entityType"] == "user"
    await world.admin.put(path, json={"score": 0.6, "entityType": "service"})
    assert (await world.admin.get(path)).json()["data"]["entityType"] == "service"
    await world.admin.put("/api/v1/trust/new", json={"score": 0.6})
    assert (await world.admin.get("/api/v1/trust/new")).json()["data"]["entityType"] == "agent"
