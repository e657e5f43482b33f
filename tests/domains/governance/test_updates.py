"""Updates: proposals, decisions, lists, and behaviour when the run log cannot be written."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from stentor.core.db import Sql
from tests.conftest import MakeWorld
from tests.domains.governance.conftest import BASE, GovernanceClient, proposal
from tests.requirements import requirement

INVALID_MOVE_ERROR = "(?i)does not make this move|constraint"
UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


def error_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@requirement("governance.update-answers-202", "governance.auto-approved-at-once", "governance.deadlines")
@pytest.mark.parametrize(
    ("trust", "status", "tier", "seconds"),
    [(0.95, "approved", 1, 300), (0.8, "submitted", 2, 86_400), (0.3, "submitted", 3, 3 * 86_400)],
)
async def test_proposal_returns_its_tier_and_approval_deadline(
    governance: GovernanceClient, trust: float, status: str, tier: int, seconds: int
) -> None:
    agent = await governance.register_trusted(trust)
    body = proposal(agent)
    response = await governance.post("updates", body)
    assert response.status_code == 202
    receipt = response.json()
    assert set(receipt) == {"update_id", "status", "tier", "approval_deadline"}
    assert (receipt["update_id"], receipt["status"], receipt["tier"]) == (body["update_id"], status, tier)
    update = await governance.update(body["update_id"])
    governance.world.clock.advance(seconds=seconds - 1)
    before_deadline = await governance.get("approvals")
    assert before_deadline["overdue"] == 0
    governance.world.clock.advance(seconds=2)
    after_deadline = await governance.get("approvals")
    assert after_deadline["overdue"] == after_deadline["count"] == (0 if status == "approved" else 1)
    assert (await governance.update(body["update_id"]))["status"] == update["status"], "the deadline approves nothing"


@requirement("governance.update-read")
async def test_update_shows_the_facts_behind_its_tier(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    update = await governance.propose(agent)
    assert (update["agent_id"], update["status"], update["tier"]) == (agent, "submitted", 2)
    assert [update[name] for name in ("approved_at", "deployed_at", "test_results", "decided_by")] == [None] * 4
    assert (update["trust"], update["ratio"], update["proposed_by"]) == (0.8, 0.001, "admin")
    assert update["reasons"] == ["trust is not above 0.9"]
    assert error_of(await governance.world.admin.get(f"{BASE}/updates/{UNKNOWN_ID}")) == (404, "NOT_FOUND")
    foreign = await governance.world.clients["OTHER"].get(f"{BASE}/updates/{update['update_id']}")
    assert error_of(foreign) == (404, "NOT_FOUND")


@requirement("governance.trust-is-decayed")
async def test_update_keeps_the_decayed_trust_of_its_proposal(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.905)
    governance.world.clock.advance(days=1)
    update = await governance.propose(agent)
    assert update["tier"] == 2
    assert update["trust"] == pytest.approx(0.905 * 0.99)
    await governance.set_trust(agent, 0.99)
    assert (await governance.update(update["update_id"]))["trust"] == update["trust"]


async def test_update_of_an_unknown_agent_needs_a_human(governance: GovernanceClient) -> None:
    update = await governance.propose(UNKNOWN_ID)
    assert (update["status"], update["tier"], update["trust"]) == ("submitted", 3, None)
    assert "the agent is unknown" in update["reasons"]
    impossible = await governance.propose(UNKNOWN_ID, {"agent_patch": {"capabilities": []}})
    assert (impossible["status"], impossible["decided_by"]) == ("rejected", "system")


async def test_update_of_a_suspended_agent_needs_a_human(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted()
    await governance.world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "x"})
    assert (await governance.propose(agent))["tier"] == 3


@requirement("governance.same-id-same-answer")
async def test_repeated_update_id_replays_the_response_or_returns_409(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    body = proposal(agent)
    first = (await governance.post("updates", body)).json()
    await governance.approve(first)
    repeated = await governance.post("updates", body, "SECOND")
    assert (repeated.status_code, repeated.json()) == (202, first)
    assert error_of(await governance.post("updates", {**body, "description": "Other."})) == (409, "CONFLICT")
    assert len((await governance.get("updates"))["updates"]) == 1


@requirement("governance.idempotency-key", "http.idempotency-governance-and-webhooks")
async def test_idempotency_key_makes_one_update_and_one_rollback(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    body = {name: value for name, value in proposal(agent).items() if name != "update_id"}
    key = {"Idempotency-Key": "k1"}
    first = await governance.post("updates", body, **key)
    repeated = await governance.post("updates", body, **key)
    assert first.json() == repeated.json()
    assert error_of(await governance.post("updates", {**body, "description": "x"}, **key)) == (
        422,
        "IDEMPOTENCY_KEY_REUSED",
    )
    assert len((await governance.get("updates"))["updates"]) == 1
    checkpoint = await governance.checkpoint(agent)
    rollback = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    started = await governance.post("rollbacks", rollback, **key)
    await governance.wait_until_idle()
    assert (await governance.post("rollbacks", rollback, **key)).json() == started.json()
    reused = await governance.post("rollbacks", {**rollback, "reason": "y"}, **key)
    assert error_of(reused) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert len((await governance.get("rollbacks"))["rollbacks"]) == 1


@requirement("governance.approvals-list")
async def test_approvals_list_pending_updates_oldest_first_with_filters(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    ids = []
    for changes in ({}, {"breaking": True}, {}):
        ids.append((await governance.propose(agent, changes))["update_id"])
        governance.world.clock.advance(seconds=1)
    await governance.approve(await governance.update(ids[2]))
    approvals = await governance.get("approvals")
    assert set(approvals) == {"pending", "count", "overdue"}
    assert [row["update_id"] for row in approvals["pending"]] == ids[:2]
    assert {"update_id", "agent_id", "tier", "submitted_at", "deadline"} <= set(approvals["pending"][0])
    for tier in ("3", "human"):
        assert [row["update_id"] for row in (await governance.get("approvals", tier=tier))["pending"]] == [ids[1]]
    approved = await governance.get("approvals", status="approved")
    assert ([row["update_id"] for row in approved["pending"]], approved["count"]) == ([ids[2]], 1)
    assert (await governance.get("approvals", limit=1))["count"] == 2
    for query in ({"tier": "4"}, {"status": "gone"}, {"limit": 0}):
        response = await governance.world.admin.get(f"{BASE}/approvals", params=query)
        assert error_of(response) == (400, "INVALID_REQUEST")


async def test_updates_list_returns_every_update_across_pages_newest_first(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    ids = []
    for _ in range(5):
        ids.append((await governance.propose(agent))["update_id"])
        governance.world.clock.advance(seconds=1)
    listed_ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await governance.get("updates", limit=2, **cursor)
        listed_ids += [update["update_id"] for update in page["updates"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert listed_ids == ids[::-1]
    assert len((await governance.get("updates", agent_id=agent, status="submitted", tier="monitored"))["updates"]) == 5
    assert (await governance.get("updates", status="deployed"))["updates"] == []


@requirement("governance.approve")
async def test_approval_returns_whether_and_when_it_deploys(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    external = await governance.propose(agent)
    body = {"approved_by": "dana", "rationale": "Fine.", "override_risk": False}
    response = await governance.post(f"updates/{external['update_id']}/approve", body, "SECOND")
    assert response.json() == {
        "update_id": external["update_id"],
        "status": "approved",
        "deployment_scheduled": False,
        "deployment_time": None,
    }
    update = await governance.update(external["update_id"])
    assert update["approved_at"] is not None
    assert (update["decided_by"], update["decision"]["claimed"]) == ("second", "dana")
    patch = await governance.propose(agent, {"agent_patch": {"capabilities": []}})
    approval = (await governance.post(f"updates/{patch['update_id']}/approve", {}, "SECOND")).json()
    assert approval["deployment_scheduled"] is True
    assert approval["deployment_time"] is not None


@requirement("governance.reject")
async def test_rejection_stores_reason_and_feedback(governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8))
    body = {"rejected_by": "dana", "reason": "No.", "feedback": "Smaller."}
    response = (await governance.post(f"updates/{update['update_id']}/reject", body, "SECOND")).json()
    assert set(response) == {"update_id", "status", "rejected_at"}
    assert (response["status"], response["update_id"]) == ("rejected", update["update_id"])
    after = await governance.update(update["update_id"])
    assert after["decision"] == {"claimed": "dana", "reason": "No.", "feedback": "Smaller."}


@requirement("governance.needs-admin")
async def test_an_update_can_be_read_by_those_who_may_approve_and_by_its_proposer(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8, name="nora", key_name="program")
    update = await governance.propose(agent)
    path = f"/api/v1/governance/updates/{update['update_id']}"

    async def read(name: str, *permissions: str, role: str = "approver") -> tuple[int, Any]:
        body = {"name": name, "role": role, "permissions": ["read", *permissions]}
        made = await governance.world.admin.post("/api/v1/keys", json=body)
        response = await governance.world.admin.get(path, headers={"X-API-Key": made.json()["key"]})
        return response.status_code, response.json()

    status, shown = await read("judge", "approve")
    assert (status, shown["agent_name"], shown["may_approve"]) == (200, "nora", False), "its key is newer"
    assert (await read("author", "propose"))[0] == 404
    status, refused = await read("guest")
    assert (status, "'approve' or 'propose'" in refused["error"]["message"]) == (403, True)


@requirement("governance.four-eyes")
async def test_proposer_cannot_approve_their_own_update(governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8, key_name="second"))
    path = f"updates/{update['update_id']}/approve"
    for override in (False, True):
        own = await governance.post(path, {"override_risk": override})
        assert error_of(own) == (403, "GOVERNANCE_SELF_APPROVAL")
    assert error_of(await governance.post(path, {}, "SECOND")) == (403, "GOVERNANCE_SELF_APPROVAL"), (
        "the agent's own key"
    )
    other = await governance.propose(await governance.register_trusted(0.8, name="bob"))
    path = f"updates/{other['update_id']}/approve"
    for claimed in ("admin", " ADMIN"):
        in_proposers_name = await governance.post(path, {"approved_by": claimed}, "SECOND")
        assert error_of(in_proposers_name) == (403, "GOVERNANCE_SELF_APPROVAL"), "in the proposer's name"
    assert (await governance.update(update["update_id"]))["status"] == "submitted"
    own = await governance.post(f"updates/{update['update_id']}/reject", {"reason": "Changed my mind."})
    assert own.status_code == 200


@requirement("governance.four-eyes", "keys.four-eyes")
async def test_a_key_made_for_the_purpose_cannot_approve(governance: GovernanceClient) -> None:
    world = governance.world

    async def made(method: str, path: str, maker: str = "ADMIN", **body: Any) -> str:
        response = await world.clients[maker].request(method, f"/api/v1/keys{path}", json=body or None)
        assert response.is_success, response.text
        return str(response.json()["key"])

    async def approve(update: dict[str, Any], key: str) -> Any:
        return await governance.post(f"updates/{update['update_id']}/approve", {}, **{"X-API-Key": key})

    before = await made("POST", "", name="dana", role="approver")
    world.clock.advance(seconds=1)
    agent = await governance.register_trusted(0.8)
    update = await governance.propose(agent)
    own = await made("POST", "", name="second-me", role="approver")
    rotated = await made("POST", "/dana/rotate")
    for key in (own, rotated):
        assert error_of(await approve(update, key)) == (403, "GOVERNANCE_SELF_APPROVAL")
    assert (await approve(update, before)).status_code == 401, "the old secret"
    by_another = await made("POST", "", "SECOND", name="erin", role="approver")
    assert (await approve(update, by_another)).status_code == 200
    world.clock.advance(seconds=1)
    later = await governance.propose(agent)
    read = await world.admin.get(f"/api/v1/governance/updates/{later['update_id']}", headers={"X-API-Key": rotated})
    assert read.status_code == 200, "an approver reads what it decides on"
    assert (await approve(later, rotated)).status_code == 200, "a colleague's key from before the proposal"


@requirement("governance.four-eyes")
async def test_self_approval_setting_allows_a_single_admin_to_approve(make_world: MakeWorld) -> None:
    governance = GovernanceClient(await make_world(SERVICE_GOVERNANCE_SELF_APPROVAL="true"))
    update = await governance.propose(await governance.register_trusted(0.8))
    approved = await governance.approve(update, "ADMIN")
    assert approved["decision"]["self_approved"] is True
    own_agent = await governance.propose(await governance.register_trusted(0.8, key_name="admin"))
    refused = await governance.post(f"updates/{own_agent['update_id']}/approve", {})
    assert error_of(refused) == (403, "GOVERNANCE_SELF_APPROVAL")


@requirement("governance.override-risk", "governance.widening-is-human")
async def test_widening_patch_needs_an_explicit_risk_override(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(1.0)
    patch = {"agent_patch": {"capabilities": ["echo", "deploy"]}}
    update = await governance.propose(agent, patch)
    assert (update["tier"], update["status"], update["risks"]) == (3, "submitted", ["widens_access"])
    path = f"updates/{update['update_id']}/approve"
    refused = await governance.post(path, {"override_risk": False}, "SECOND")
    assert error_of(refused) == (409, "GOVERNANCE_RISK_NOT_OVERRIDDEN")
    assert (await governance.agent(agent))["capabilities"] == ["echo"]
    assert (await governance.approve(update, override_risk=True))["status"] == "deployed"
    assert (await governance.agent(agent))["capabilities"] == ["echo", "deploy"]


@requirement("governance.decide-only-submitted")
async def test_second_decision_on_an_update_returns_409(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    for first, second in (("approve", "approve"), ("approve", "reject"), ("reject", "approve"), ("reject", "reject")):
        update = await governance.propose(agent)
        path = f"updates/{update['update_id']}"
        assert (await governance.post(f"{path}/{first}", {}, "SECOND")).status_code == 200
        assert error_of(await governance.post(f"{path}/{second}", {}, "SECOND")) == (409, "CONFLICT")
    for verb in ("approve", "reject"):
        assert error_of(await governance.post(f"updates/{UNKNOWN_ID}/{verb}", {})) == (404, "NOT_FOUND")


@requirement("governance.decide-only-submitted")
async def test_exactly_one_of_many_concurrent_decisions_succeeds(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    for _ in range(5):
        update = await governance.propose(agent)
        path = f"updates/{update['update_id']}"
        verbs = ["approve", "reject"] * 8
        responses = await asyncio.gather(*(governance.post(f"{path}/{verb}", {}, "SECOND") for verb in verbs))
        accepted = [verb for verb, response in zip(verbs, responses, strict=True) if response.status_code == 200]
        assert len(accepted) == 1
        assert all(error_of(response) == (409, "CONFLICT") for response in responses if response.status_code != 200)
        expected = {"approve": "approved", "reject": "rejected"}[accepted[0]]
        assert (await governance.update(update["update_id"]))["status"] == expected


@requirement("governance.update-states")
async def test_database_rejects_invalid_update_transitions(governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8))
    key = {"id": update["update_id"]}
    for status in ("deploying", "deployed", "rolled_back"):
        with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
            await governance.execute_sql(
                "update governance_updates set status = :to, decided_by = 'x', approved_at = 1, deployed_at = 1, "
                f"rolled_back_at = {'1' if status == 'rolled_back' else 'null'} where update_id = :id",
                to=status,
                **key,
            )
    with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
        await governance.execute_sql("update governance_updates set status = 'approved' where update_id = :id", **key)
    await governance.post(f"updates/{update['update_id']}/reject", {}, "SECOND")
    for status in ("submitted", "approved"):
        with pytest.raises(Exception, match=INVALID_MOVE_ERROR):
            await governance.execute_sql(
                "update governance_updates set status = :to, decided_by = null, rejected_at = null "
                "where update_id = :id",
                to=status,
                **key,
            )
    assert (await governance.update(update["update_id"]))["status"] == "rejected"


@requirement("governance.events")
async def test_each_transition_has_an_event_with_its_parent(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted()
    update = await governance.propose(agent, {"agent_patch": {"capabilities": []}})
    assert update["status"] == "deployed"
    events = await governance.events()
    update_events = [kind for kind, meta in events if meta.get("update_id") == update["update_id"]]
    assert update_events == ["update_submitted", "update_approved", "update_deploying", "update_deployed"]
    sql = Sql("select event_id, parent_id from events where component = 'governance' order by event_id")
    parents: dict[str, str | None] = dict(await governance.world.kernel.infra.db.read(lambda tx: tx.rows(sql)))
    assert update["provenance_id"] in parents
    assert sum(parent is None for parent in parents.values()) == 2, "the proposal, and the checkpoint of the trust"


METRICS = {"recent_violation_count": 0, "successful_executions": 1, "total_executions": 1}


@requirement("governance.events")
async def test_failed_run_log_write_returns_503_and_changes_nothing(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    update = await governance.propose(agent)
    checkpoint = await governance.checkpoint(agent)
    governance.world.runlog.broken = True
    update_path = f"updates/{update['update_id']}"
    requests = [
        ("updates", proposal(agent)),
        (f"{update_path}/approve", {}),
        (f"{update_path}/reject", {}),
        ("checkpoints", {"agent_id": agent}),
        ("rollbacks", {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}),
        (f"agents/{agent}/trust", {"metrics": METRICS}),
    ]
    for path, body in requests:
        assert error_of(await governance.post(path, body, "SECOND")) == (503, "SERVICE_UNAVAILABLE"), path
    governance.world.runlog.broken = False
    assert (await governance.update(update["update_id"]))["status"] == "submitted"
    assert len((await governance.get("updates"))["updates"]) == 1
    assert (await governance.get("rollbacks"))["rollbacks"] == []
    assert len((await governance.get("checkpoints"))["checkpoints"]) == 2


@requirement("governance.needs-admin")
async def test_routes_without_admin_permission_return_403(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    update = (await governance.propose(agent))["update_id"]
    checkpoint = (await governance.checkpoint(agent))["checkpoint_id"]
    writes: list[tuple[str, Any]] = [
        ("updates", proposal(agent)),
        (f"updates/{update}/approve", {}),
        (f"updates/{update}/reject", {}),
        (f"updates/{update}/deployed", {"test_results": {"unit_tests": {"passed": 1, "failed": 0}}}),
        ("checkpoints", {"agent_id": agent}),
        ("rollbacks", {"checkpoint_id": checkpoint, "reason": "x"}),
        (f"agents/{agent}/trust", {}),
    ]
    reads = ["updates", f"updates/{update}", "approvals", "checkpoints", f"checkpoints/{checkpoint}", "rollbacks"]
    for client in ("READER", "WRITER", "BOB"):
        for path, body in writes:
            assert error_of(await governance.post(path, body, client)) == (403, "FORBIDDEN")
        for path in reads:
            response = await governance.world.clients[client].get(f"{BASE}/{path}")
            assert error_of(response) == (403, "FORBIDDEN")


async def test_another_tenant_cannot_read_or_decide_updates(governance: GovernanceClient) -> None:
    agent = await governance.register_trusted(0.8)
    update = (await governance.propose(agent))["update_id"]
    checkpoint = (await governance.checkpoint(agent))["checkpoint_id"]
    for path in (f"updates/{update}", f"checkpoints/{checkpoint}"):
        assert error_of(await governance.world.clients["OTHER"].get(f"{BASE}/{path}")) == (404, "NOT_FOUND")
    for path, body in (
        (f"updates/{update}/approve", {}),
        (f"updates/{update}/reject", {}),
        ("checkpoints", {"agent_id": agent}),
        ("rollbacks", {"checkpoint_id": checkpoint, "reason": "x"}),
        (f"agents/{agent}/trust", {"metrics": {"recent_violation_count": 0}}),
    ):
        assert error_of(await governance.post(path, body, "OTHER")) == (404, "NOT_FOUND"), path
    for path, name in (("updates", "updates"), ("approvals", "pending"), ("checkpoints", "checkpoints")):
        assert (await governance.get(path, "OTHER"))[name] == []
    foreign = await governance.post("updates", proposal(agent, update_id=update), "OTHER")
    assert foreign.status_code == 202, "ids of updates belong to a tenant"


@pytest.mark.parametrize(
    "patch",
    [
        {"name": "eve"},
        {"trust_tier": "auto"},
        {"capabilities": "echo"},
        {"capabilities": [1]},
        {"runtime": {"kind": "http", "endpoint": "https://a.example/x"}},
        {"runtime": {"kind": "builtin", "name": "summarizer"}},
        {"sandbox_whitelist": {"tools": [{"name": ""}]}},
        {"sandbox_whitelist": {"network": {"ports": [0]}}},
        {"sandbox_whitelist": {"surprise": 1}},
    ],
)
@requirement("governance.agent-patch")
async def test_invalid_agent_patch_returns_400(governance: GovernanceClient, patch: dict[str, Any]) -> None:
    agent = await governance.register_trusted()
    response = await governance.post("updates", proposal(agent, {"agent_patch": patch}))
    assert error_of(response) == (400, "INVALID_REQUEST")
    assert "changes.agent_patch" in response.json()["error"]["message"]
    assert (await governance.get("updates"))["updates"] == []


@requirement("governance.agent-patch")
async def test_patched_endpoint_passes_the_outbound_guard(governance: GovernanceClient) -> None:
    runtime = {"kind": "http", "endpoint": "https://agents.example/a"}
    agent = await governance.register_trusted(runtime=runtime)
    private_endpoint = {"agent_patch": {"runtime": {"endpoint": "http://127.0.0.1:1/x"}}}
    assert error_of(await governance.post("updates", proposal(agent, private_endpoint))) == (400, "INVALID_REQUEST")
    public_endpoint = {"agent_patch": {"runtime": {"endpoint": "https://agents.example/b"}}}
    assert (await governance.propose(agent, public_endpoint))["tier"] == 3, "a changed runtime needs a human"


async def test_generated_update_id_is_a_uuid7(governance: GovernanceClient) -> None:
    body = {name: value for name, value in proposal(UNKNOWN_ID).items() if name != "update_id"}
    response = await governance.post("updates", body)
    assert uuid.UUID(response.json()["update_id"]).version == 7
