"""Updates: proposing, deciding, listing, and what a run log that cannot be written does to them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from stentor.core.db import Sql
from tests.conftest import MakeWorld
from tests.domains.governance.conftest import BASE, Office, proposal
from tests.requirements import requirement

REFUSED = "(?i)does not make this move|constraint"
UNKNOWN = "00000000-0000-7000-8000-000000000000"


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@requirement("governance.update-answers-202", "governance.auto-approved-at-once", "governance.deadlines")
@pytest.mark.parametrize(
    ("trust", "status", "tier", "seconds"),
    [(0.95, "approved", 1, 300), (0.8, "submitted", 2, 86_400), (0.3, "submitted", 3, 3 * 86_400)],
)
async def test_a_proposal_answers_its_tier_and_until_when(
    office: Office, trust: float, status: str, tier: int, seconds: int
) -> None:
    agent = await office.trusted(trust)
    body = proposal(agent)
    answer = await office.post("updates", body)
    assert answer.status_code == 202
    shown = answer.json()
    assert set(shown) == {"update_id", "status", "tier", "approval_deadline"}
    assert (shown["update_id"], shown["status"], shown["tier"]) == (body["update_id"], status, tier)
    update = await office.update(body["update_id"])
    office.world.clock.advance(seconds=seconds - 1)
    waiting = await office.get("approvals")
    assert waiting["overdue"] == 0
    office.world.clock.advance(seconds=2)
    late = await office.get("approvals")
    assert late["overdue"] == late["count"] == (0 if status == "approved" else 1)
    assert (await office.update(body["update_id"]))["status"] == update["status"], "nothing approves itself"


@requirement("governance.update-read")
async def test_reading_an_update_shows_what_its_tier_was_decided_on(office: Office) -> None:
    agent = await office.trusted(0.8)
    update = await office.propose(agent)
    assert (update["agent_id"], update["status"], update["tier"]) == (agent, "submitted", 2)
    assert [update[name] for name in ("approved_at", "deployed_at", "test_results", "decided_by")] == [None] * 4
    assert (update["trust"], update["ratio"], update["proposed_by"]) == (0.8, 0.001, "admin")
    assert update["reasons"] == ["trust is not above 0.9"]
    assert code(await office.world.admin.get(f"{BASE}/updates/{UNKNOWN}")) == (404, "NOT_FOUND")
    foreign = await office.world.clients["OTHER"].get(f"{BASE}/updates/{update['update_id']}")
    assert code(foreign) == (404, "NOT_FOUND")


@requirement("governance.trust-is-decayed")
async def test_the_trust_that_counts_is_the_decayed_one_and_it_is_kept(office: Office) -> None:
    agent = await office.trusted(0.905)
    office.world.clock.advance(days=1)
    update = await office.propose(agent)
    assert update["tier"] == 2
    assert update["trust"] == pytest.approx(0.905 * 0.99)
    await office.trust(agent, 0.99)
    assert (await office.update(update["update_id"]))["trust"] == update["trust"]


async def test_an_agent_that_nobody_knows_needs_a_human(office: Office) -> None:
    update = await office.propose(UNKNOWN)
    assert (update["status"], update["tier"], update["trust"]) == ("submitted", 3, None)
    assert "the agent is unknown" in update["reasons"]
    impossible = await office.propose(UNKNOWN, {"agent_patch": {"capabilities": []}})
    assert (impossible["status"], impossible["decided_by"]) == ("rejected", "system")


async def test_a_suspended_agent_needs_a_human(office: Office) -> None:
    agent = await office.trusted()
    await office.world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "x"})
    assert (await office.propose(agent))["tier"] == 3


@requirement("governance.same-id-same-answer")
async def test_the_same_id_answers_the_same_and_another_body_is_a_conflict(office: Office) -> None:
    agent = await office.trusted(0.8)
    body = proposal(agent)
    first = (await office.post("updates", body)).json()
    await office.approve(first)
    again = await office.post("updates", body, "SECOND")
    assert (again.status_code, again.json()) == (202, first)
    assert code(await office.post("updates", {**body, "description": "Other."})) == (409, "CONFLICT")
    assert len((await office.get("updates"))["updates"]) == 1


@requirement("governance.idempotency-key", "http.idempotency-governance-and-webhooks")
async def test_the_same_idempotency_key_makes_one_update_and_one_rollback(office: Office) -> None:
    agent = await office.trusted(0.8)
    body = {name: value for name, value in proposal(agent).items() if name != "update_id"}
    key = {"Idempotency-Key": "k1"}
    first = await office.post("updates", body, **key)
    again = await office.post("updates", body, **key)
    assert first.json() == again.json()
    assert code(await office.post("updates", {**body, "description": "x"}, **key)) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert len((await office.get("updates"))["updates"]) == 1
    checkpoint = await office.checkpoint(agent)
    rollback = {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}
    started = await office.post("rollbacks", rollback, **key)
    await office.idle()
    assert (await office.post("rollbacks", rollback, **key)).json() == started.json()
    reused = await office.post("rollbacks", {**rollback, "reason": "y"}, **key)
    assert code(reused) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert len((await office.get("rollbacks"))["rollbacks"]) == 1


@requirement("governance.approvals-list")
async def test_approvals_are_what_waits_oldest_first_by_tier_and_status(office: Office) -> None:
    agent = await office.trusted(0.8)
    ids = []
    for changes in ({}, {"breaking": True}, {}):
        ids.append((await office.propose(agent, changes))["update_id"])
        office.world.clock.advance(seconds=1)
    await office.approve(await office.update(ids[2]))
    waiting = await office.get("approvals")
    assert set(waiting) == {"pending", "count", "overdue"}
    assert [row["update_id"] for row in waiting["pending"]] == ids[:2]
    assert {"update_id", "agent_id", "tier", "submitted_at", "deadline"} <= set(waiting["pending"][0])
    for tier in ("3", "human"):
        assert [row["update_id"] for row in (await office.get("approvals", tier=tier))["pending"]] == [ids[1]]
    approved = await office.get("approvals", status="approved")
    assert ([row["update_id"] for row in approved["pending"]], approved["count"]) == ([ids[2]], 1)
    assert (await office.get("approvals", limit=1))["count"] == 2
    for query in ({"tier": "4"}, {"status": "gone"}, {"limit": 0}):
        answer = await office.world.admin.get(f"{BASE}/approvals", params=query)
        assert code(answer) == (400, "INVALID_REQUEST")


async def test_updates_are_listed_newest_first_page_by_page(office: Office) -> None:
    agent = await office.trusted(0.8)
    ids = [(await office.propose(agent))["update_id"] for _ in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await office.get("updates", limit=2, **cursor)
        seen += [update["update_id"] for update in page["updates"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert sorted(seen) == sorted(ids)
    assert len((await office.get("updates", agent_id=agent, status="submitted", tier="monitored"))["updates"]) == 5
    assert (await office.get("updates", status="deployed"))["updates"] == []


@requirement("governance.approve")
async def test_approving_answers_whether_and_when_it_is_deployed(office: Office) -> None:
    agent = await office.trusted(0.8)
    outside = await office.propose(agent)
    body = {"approved_by": "dana", "rationale": "Fine.", "override_risk": False}
    answer = await office.post(f"updates/{outside['update_id']}/approve", body, "SECOND")
    assert answer.json() == {
        "update_id": outside["update_id"],
        "status": "approved",
        "deployment_scheduled": False,
        "deployment_time": None,
    }
    update = await office.update(outside["update_id"])
    assert update["approved_at"] is not None
    assert (update["decided_by"], update["decision"]["claimed"]) == ("second", "dana")
    patch = await office.propose(agent, {"agent_patch": {"capabilities": []}})
    told = (await office.post(f"updates/{patch['update_id']}/approve", {}, "SECOND")).json()
    assert told["deployment_scheduled"] is True
    assert told["deployment_time"] is not None


@requirement("governance.reject")
async def test_rejecting_keeps_reason_and_feedback(office: Office) -> None:
    update = await office.propose(await office.trusted(0.8))
    body = {"rejected_by": "dana", "reason": "No.", "feedback": "Smaller."}
    answer = (await office.post(f"updates/{update['update_id']}/reject", body, "SECOND")).json()
    assert set(answer) == {"update_id", "status", "rejected_at"}
    assert (answer["status"], answer["update_id"]) == ("rejected", update["update_id"])
    after = await office.update(update["update_id"])
    assert after["decision"] == {"claimed": "dana", "reason": "No.", "feedback": "Smaller."}


@requirement("governance.four-eyes")
async def test_nobody_approves_their_own_update(office: Office) -> None:
    update = await office.propose(await office.trusted(0.8, key_name="second"))
    path = f"updates/{update['update_id']}/approve"
    for override in (False, True):
        own = await office.post(path, {"override_risk": override})
        assert code(own) == (403, "GOVERNANCE_SELF_APPROVAL")
    assert code(await office.post(path, {}, "SECOND")) == (403, "GOVERNANCE_SELF_APPROVAL"), "the agent's own key"
    other = await office.propose(await office.trusted(0.8, name="bob"))
    path = f"updates/{other['update_id']}/approve"
    for claimed in ("admin", " ADMIN"):
        in_its_name = await office.post(path, {"approved_by": claimed}, "SECOND")
        assert code(in_its_name) == (403, "GOVERNANCE_SELF_APPROVAL"), "in the name of who proposed it"
    assert (await office.update(update["update_id"]))["status"] == "submitted"
    own = await office.post(f"updates/{update['update_id']}/reject", {"reason": "Changed my mind."})
    assert own.status_code == 200


@requirement("governance.four-eyes")
async def test_an_installation_of_one_admin_may_say_so(make_world: MakeWorld) -> None:
    office = Office(await make_world(SERVICE_GOVERNANCE_SELF_APPROVAL="true"))
    update = await office.propose(await office.trusted(0.8))
    approved = await office.approve(update, "ADMIN")
    assert approved["decision"]["self_approved"] is True
    own_agent = await office.propose(await office.trusted(0.8, key_name="admin"))
    refused = await office.post(f"updates/{own_agent['update_id']}/approve", {})
    assert code(refused) == (403, "GOVERNANCE_SELF_APPROVAL")


@requirement("governance.override-risk", "governance.widening-is-human")
async def test_a_patch_that_widens_is_approved_only_in_so_many_words(office: Office) -> None:
    agent = await office.trusted(1.0)
    patch = {"agent_patch": {"capabilities": ["echo", "deploy"]}}
    update = await office.propose(agent, patch)
    assert (update["tier"], update["status"], update["risks"]) == (3, "submitted", ["widens_access"])
    path = f"updates/{update['update_id']}/approve"
    refused = await office.post(path, {"override_risk": False}, "SECOND")
    assert code(refused) == (409, "GOVERNANCE_RISK_NOT_OVERRIDDEN")
    assert (await office.agent(agent))["capabilities"] == ["echo"]
    assert (await office.approve(update, override_risk=True))["status"] == "deployed"
    assert (await office.agent(agent))["capabilities"] == ["echo", "deploy"]


@requirement("governance.decide-only-submitted")
async def test_what_is_decided_is_decided_once(office: Office) -> None:
    agent = await office.trusted(0.8)
    for first, second in (("approve", "approve"), ("approve", "reject"), ("reject", "approve"), ("reject", "reject")):
        update = await office.propose(agent)
        path = f"updates/{update['update_id']}"
        assert (await office.post(f"{path}/{first}", {}, "SECOND")).status_code == 200
        assert code(await office.post(f"{path}/{second}", {}, "SECOND")) == (409, "CONFLICT")
    for verb in ("approve", "reject"):
        assert code(await office.post(f"updates/{UNKNOWN}/{verb}", {})) == (404, "NOT_FOUND")


@requirement("governance.decide-only-submitted")
async def test_of_many_decisions_at_once_exactly_one_wins(office: Office) -> None:
    agent = await office.trusted(0.8)
    for _ in range(5):
        update = await office.propose(agent)
        path = f"updates/{update['update_id']}"
        verbs = ["approve", "reject"] * 8
        answers = await asyncio.gather(*(office.post(f"{path}/{verb}", {}, "SECOND") for verb in verbs))
        won = [verb for verb, answer in zip(verbs, answers, strict=True) if answer.status_code == 200]
        assert len(won) == 1
        assert all(code(answer) == (409, "CONFLICT") for answer in answers if answer.status_code != 200)
        expected = {"approve": "approved", "reject": "rejected"}[won[0]]
        assert (await office.update(update["update_id"]))["status"] == expected


@requirement("governance.update-states")
async def test_the_database_makes_no_move_that_is_not_drawn(office: Office) -> None:
    update = await office.propose(await office.trusted(0.8))
    key = {"id": update["update_id"]}
    for status in ("deploying", "deployed", "rolled_back"):
        with pytest.raises(Exception, match=REFUSED):
            await office.sql(
                "update governance_updates set status = :to, decided_by = 'x', approved_at = 1, deployed_at = 1, "
                f"rolled_back_at = {'1' if status == 'rolled_back' else 'null'} where update_id = :id",
                to=status,
                **key,
            )
    with pytest.raises(Exception, match=REFUSED):
        await office.sql("update governance_updates set status = 'approved' where update_id = :id", **key)
    await office.post(f"updates/{update['update_id']}/reject", {}, "SECOND")
    for status in ("submitted", "approved"):
        with pytest.raises(Exception, match=REFUSED):
            await office.sql(
                "update governance_updates set status = :to, decided_by = null, rejected_at = null "
                "where update_id = :id",
                to=status,
                **key,
            )
    assert (await office.update(update["update_id"]))["status"] == "rejected"


@requirement("governance.events")
async def test_every_move_has_its_event_and_they_hang_together(office: Office) -> None:
    agent = await office.trusted()
    update = await office.propose(agent, {"agent_patch": {"capabilities": []}})
    assert update["status"] == "deployed"
    found = await office.events()
    moves = [kind for kind, meta in found if meta.get("update_id") == update["update_id"]]
    assert moves == ["update_submitted", "update_approved", "update_deploying", "update_deployed"]
    sql = Sql("select event_id, parent_id from events where component = 'governance' order by event_id")
    parents: dict[str, str | None] = dict(await office.world.kernel.infra.db.read(lambda tx: tx.rows(sql)))
    assert update["provenance_id"] in parents
    assert sum(parent is None for parent in parents.values()) == 2, "the proposal, and the checkpoint of the trust"


METRICS = {"recent_violation_count": 0, "successful_executions": 1, "total_executions": 1}


@requirement("governance.events")
async def test_without_a_run_log_nothing_happens(office: Office) -> None:
    agent = await office.trusted(0.8)
    update = await office.propose(agent)
    checkpoint = await office.checkpoint(agent)
    office.world.runlog.broken = True
    path = f"updates/{update['update_id']}"
    calls = [
        ("updates", proposal(agent)),
        (f"{path}/approve", {}),
        (f"{path}/reject", {}),
        ("checkpoints", {"agent_id": agent}),
        ("rollbacks", {"checkpoint_id": checkpoint["checkpoint_id"], "reason": "x"}),
        (f"agents/{agent}/trust", {"metrics": METRICS}),
    ]
    for where, body in calls:
        assert code(await office.post(where, body, "SECOND")) == (503, "SERVICE_UNAVAILABLE"), where
    office.world.runlog.broken = False
    assert (await office.update(update["update_id"]))["status"] == "submitted"
    assert len((await office.get("updates"))["updates"]) == 1
    assert (await office.get("rollbacks"))["rollbacks"] == []
    assert len((await office.get("checkpoints"))["checkpoints"]) == 2


@requirement("governance.needs-admin")
async def test_every_route_needs_the_permission_of_an_admin(office: Office) -> None:
    agent = await office.trusted(0.8)
    update = (await office.propose(agent))["update_id"]
    checkpoint = (await office.checkpoint(agent))["checkpoint_id"]
    calls: list[tuple[str, Any]] = [
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
        for path, body in calls:
            assert code(await office.post(path, body, client)) == (403, "FORBIDDEN")
        for path in reads:
            answer = await office.world.clients[client].get(f"{BASE}/{path}")
            assert code(answer) == (403, "FORBIDDEN")


async def test_another_tenant_sees_and_moves_nothing(office: Office) -> None:
    agent = await office.trusted(0.8)
    update = (await office.propose(agent))["update_id"]
    checkpoint = (await office.checkpoint(agent))["checkpoint_id"]
    for path in (f"updates/{update}", f"checkpoints/{checkpoint}"):
        assert code(await office.world.clients["OTHER"].get(f"{BASE}/{path}")) == (404, "NOT_FOUND")
    for path, body in (
        (f"updates/{update}/approve", {}),
        (f"updates/{update}/reject", {}),
        ("checkpoints", {"agent_id": agent}),
        ("rollbacks", {"checkpoint_id": checkpoint, "reason": "x"}),
        (f"agents/{agent}/trust", {"metrics": {"recent_violation_count": 0}}),
    ):
        assert code(await office.post(path, body, "OTHER")) == (404, "NOT_FOUND"), path
    for path, name in (("updates", "updates"), ("approvals", "pending"), ("checkpoints", "checkpoints")):
        assert (await office.get(path, "OTHER"))[name] == []
    foreign = await office.post("updates", proposal(agent, update_id=update), "OTHER")
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
async def test_a_patch_that_no_agent_could_have_is_refused(office: Office, patch: dict[str, Any]) -> None:
    agent = await office.trusted()
    answer = await office.post("updates", proposal(agent, {"agent_patch": patch}))
    assert code(answer) == (400, "INVALID_REQUEST")
    assert "changes.agent_patch" in answer.json()["error"]["message"]
    assert (await office.get("updates"))["updates"] == []


@requirement("governance.agent-patch")
async def test_a_patched_endpoint_passes_the_guard_that_every_endpoint_passes(office: Office) -> None:
    runtime = {"kind": "http", "endpoint": "https://agents.example/a"}
    agent = await office.trusted(runtime=runtime)
    inside = {"agent_patch": {"runtime": {"endpoint": "http://127.0.0.1:1/x"}}}
    assert code(await office.post("updates", proposal(agent, inside))) == (400, "INVALID_REQUEST")
    outside = {"agent_patch": {"runtime": {"endpoint": "https://agents.example/b"}}}
    assert (await office.propose(agent, outside))["tier"] == 3, "how an agent runs is a human's matter"


async def test_a_generated_id_is_a_uuid(office: Office) -> None:
    body = {name: value for name, value in proposal(UNKNOWN).items() if name != "update_id"}
    answer = await office.post("updates", body)
    assert uuid.UUID(answer.json()["update_id"]).version == 7
