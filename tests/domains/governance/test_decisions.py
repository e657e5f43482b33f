"""What a decision must say, and who may decide alone."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.conftest import World
from tests.domains.governance.conftest import NEEDED, Office, proposal
from tests.requirements import requirement

BASE = "/api/v1/governance"


@requirement("governance.decision-fields")
@pytest.mark.parametrize("verb", ["approve", "reject", "rollbacks"])
async def test_a_decision_without_one_of_its_fields_is_refused_and_names_it(office: Office, verb: str) -> None:
    agent = await office.trusted(0.8)
    taken = await office.checkpoint(agent)
    update = await office.propose(agent)
    path = f"{BASE}/{verb}" if verb == "rollbacks" else f"{BASE}/updates/{update['update_id']}/{verb}"
    whole = dict(NEEDED[verb])
    if verb == "rollbacks":
        whole |= {"checkpoint_id": taken["checkpoint_id"], "reason": "It got worse."}
    http = office.world.clients["SECOND"]
    for name in whole:
        answer = await http.post(path, json={field: value for field, value in whole.items() if field != name})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["details"]["fields"]
    assert (await http.post(path)).status_code == 400
    assert (await office.update(update["update_id"]))["status"] == "submitted"
    assert (await http.post(path, json=whole)).status_code in (200, 202)


def of_other(world: World) -> Any:
    """The only person of its tenant."""
    return world.clients["OTHER"]


async def proposed(world: World, **fields: Any) -> dict[str, Any]:
    """An update by the only person of a tenant, of an agent there."""
    http = of_other(world)
    agent = (await http.post("/api/v1/registry/agents", json={"name": "ann", **fields})).json()["agent_id"]
    body = proposal(agent)
    assert (await http.post(f"{BASE}/updates", json=body)).json()["tier"] == 3
    return body


@requirement("governance.only-admin")
@pytest.mark.parametrize("key_name", [None, "other"])
async def test_who_holds_the_only_key_of_a_person_approves_alone(office: Office, key_name: str | None) -> None:
    http = of_other(office.world)
    body = await proposed(office.world, **({"key_name": key_name} if key_name else {}))
    path = f"{BASE}/updates/{body['update_id']}"
    decision = {"approved_by": "other", "rationale": "I own this machine.", "override_risk": False}
    assert (await http.post(f"{path}/approve", json={**decision, "rationale": ""})).status_code == 400
    assert (await http.post(f"{path}/approve", json=decision)).status_code == 200
    after = (await http.get(path)).json()
    assert (after["status"], after["decided_by"]) == ("approved", "other")
    assert after["decision"]["self_approved"] is True
    ((_, meta),) = await office.events("update_approved")
    assert meta["self_approved"] is True


@requirement("governance.only-admin", "governance.four-eyes")
async def test_where_two_people_have_keys_the_other_one_approves(office: Office) -> None:
    update = await office.propose(await office.trusted(0.8))
    own = await office.post(f"updates/{update['update_id']}/approve")
    assert (own.status_code, own.json()["error"]["code"]) == (403, "GOVERNANCE_SELF_APPROVAL")
    approved = await office.approve(update)
    assert "self_approved" not in approved["decision"]


@requirement("governance.checkpoint-exists")
async def test_a_proposal_names_a_checkpoint_that_is_there_and_its_agents(office: Office) -> None:
    agent, other = await office.trusted(0.95), await office.trusted(0.95, name="other")
    unknown = await office.post("updates", proposal(agent, checkpoint_id=str(uuid.uuid4())))
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "NOT_FOUND")
    foreign = (await office.checkpoint(other))["checkpoint_id"]
    assert (await office.post("updates", proposal(agent, checkpoint_id=foreign))).status_code == 409
    assert (await office.get("updates"))["updates"] == []
    own = (await office.checkpoint(agent))["checkpoint_id"]
    assert (await office.post("updates", proposal(agent, checkpoint_id=own))).status_code == 202


@requirement("governance.trust-needs-enough")
async def test_a_score_of_a_single_metric_is_shown_and_not_stored(office: Office) -> None:
    agent = await office.trusted(0.3)
    for metrics in ({"recent_violation_count": 0}, {"successful_executions": 9, "total_executions": 9}):
        answer = (await office.post(f"agents/{agent}/trust", {"metrics": metrics})).json()
        assert (answer["trust_score"], answer["persisted"]) == (1.0, False)
        assert "must be known" in answer["reason"]
    assert (await office.agent(agent))["trust_score"] == 0.3
    both = {"recent_violation_count": 0, "successful_executions": 9, "total_executions": 9}
    answer = (await office.post(f"agents/{agent}/trust", {"metrics": both})).json()
    assert (answer["persisted"], answer["reason"]) == (True, None)
    assert (await office.agent(agent))["trust_score"] == 1.0


@requirement("trust.type-kept")
async def test_setting_a_score_without_a_type_keeps_the_type(world: World) -> None:
    path = "/api/v1/trust/dana"
    await world.admin.put(path, json={"score": 0.4, "entityType": "user"})
    await world.admin.put(path, json={"score": 0.6})
    assert (await world.admin.get(path)).json()["data"]["entityType"] == "user"
    await world.admin.put(path, json={"score": 0.6, "entityType": "service"})
    assert (await world.admin.get(path)).json()["data"]["entityType"] == "service"
    await world.admin.put("/api/v1/trust/new", json={"score": 0.6})
    assert (await world.admin.get("/api/v1/trust/new")).json()["data"]["entityType"] == "agent"
