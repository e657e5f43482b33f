"""The states of a task: cancel, approve, reject, retry, and every move that must not happen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.core.errors import StoreUnavailable
from stentor.domains.tasks.model import LEARNABLE_OUTCOMES, TASK_STATUSES
from tests.conftest import World
from tests.requirements import requirement

PATH = "/api/v1/tasks"
MOVES = {
    ("queued", "executing"),
    ("queued", "cancelled"),
    ("queued", "failed"),  # denied at dispatch
    ("queued", "aborted"),  # waited longer than its queue_timeout_seconds
    ("pending_approval", "queued"),
    ("pending_approval", "waiting"),  # approved before its time
    ("pending_approval", "aborted"),
    ("pending_approval", "cancelled"),
    ("executing", "completed"),
    ("executing", "failed"),
    ("executing", "aborted"),
    ("executing", "queued"),
    ("executing", "cancelled"),
    ("executing", "waiting"),
    ("waiting", "queued"),
    ("waiting", "cancelled"),
    ("waiting", "aborted"),  # a task that it comes after did not complete
    ("failed", "queued"),
    ("failed", "pending_approval"),
    ("aborted", "queued"),
    ("aborted", "pending_approval"),
}


async def post(world: World, task_id: str, verb: str, key: str = "ADMIN", **body: Any) -> Any:
    return await world.clients[key].post(f"{PATH}/{task_id}/{verb}", json=body or None)


async def task_in(world: World, status: str) -> str:
    """A task in this state, of a worker registered for it alone."""
    agent = await world.register(capabilities=[status], trust_tier="human" if status == "pending_approval" else "auto")
    task_id = await world.submit(required_capabilities=[status])
    if status in ("queued", "pending_approval"):
        return task_id
    if status == "cancelled":
        await post(world, task_id, "cancel")
        return task_id
    claim = await world.claim(agent)
    if status == "completed":
        await post(world, task_id, "complete", epoch=claim["epoch"], result=1)
    elif status == "failed":
        await post(world, task_id, "fail", epoch=claim["epoch"], error={"message": "no"})
    elif status == "waiting":
        wait = {"epoch": claim["epoch"], "key": "nap", "name": "nap", "kind": "sleep", "seconds": 60}
        await world.admin.post(f"{PATH}/{task_id}/waits", json=wait)
        await post(world, task_id, "suspend", epoch=claim["epoch"], keys=["nap"])
    elif status == "aborted":
        world.clock.advance(seconds=301)
        await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == status
    return task_id


@requirement("tasks.read-in-any-status")
@pytest.mark.parametrize("status", TASK_STATUSES)
async def test_a_task_is_readable_in_every_state(world: World, status: str) -> None:
    task_id = await task_in(world, status)
    assert (await world.task(task_id))["status"] == status


@requirement("tasks.cancel-answers-cancelled-at", "tasks.cancel-terminal-409")
@pytest.mark.parametrize("status", TASK_STATUSES)
async def test_a_task_can_be_cancelled_until_it_has_ended(world: World, status: str) -> None:
    task_id = await task_in(world, status)
    before = await world.task(task_id)
    answer = await post(world, task_id, "cancel")
    if status in ("queued", "pending_approval", "executing", "waiting"):
        body = answer.json()
        assert (answer.status_code, body["task_id"], body["status"]) == (200, task_id, "cancelled")
        task = await world.task(task_id)
        assert (task["status"], task["completion_time"]) == ("cancelled", body["cancelled_at"])
        assert (task["outcome_class"], task["learning_eligible"], task["result"]) == ("cancelled", False, None)
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
        assert await world.task(task_id) == before


@requirement("tasks.cancel-is-final", "execution.cancel-reaches-runtime")
async def test_a_result_after_a_cancel_is_refused(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    epoch = (await world.claim(agent))["epoch"]
    await post(world, task_id, "cancel")
    late: list[tuple[str, dict[str, Any]]] = [
        ("heartbeat", {}),
        ("tokens", {"tokens": ["x"]}),
        ("complete", {"result": 1}),
        ("fail", {"error": {"message": "no"}}),
    ]
    for verb, body in late:
        answer = await post(world, task_id, verb, epoch=epoch, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "LEASE_LOST"), verb
    assert (await world.task(task_id))["status"] == "cancelled"


async def test_a_cancelled_task_is_passed_over_by_claims(world: World) -> None:
    agent = await world.register()
    cancelled, waiting = await world.submit(), await world.submit()
    await post(world, cancelled, "cancel")
    claims = await world.admin.post(f"/api/v1/agents/{agent}/claims", json={"max": 5})
    assert [task["task_id"] for task in claims.json()["tasks"]] == [waiting]


@requirement("tasks.human-tier-waits-for-approval", "tasks.approve-queues")
async def test_a_task_for_a_human_tier_agent_waits_for_approval(world: World) -> None:
    agent = await world.register(trust_tier="human")
    answer = await world.admin.post(PATH, json={"type": "echo", "input": 1, "required_capabilities": ["echo"]})
    assert answer.json()["status"] == "pending_approval"
    task_id = answer.json()["task_id"]
    claims = await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert claims.json() == {"tasks": []}
    refused = await post(world, task_id, "approve", "WRITER")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "FORBIDDEN")
    approved = await post(world, task_id, "approve")
    assert (approved.status_code, approved.json()["status"]) == (200, "queued")
    assert (await world.claim(agent))["task_id"] == task_id
    kinds = [event["event_type"] for event in await world.events(task_id)]
    assert kinds[2:5] == ["approval_requested", "approval_given", "task_queued"]


@requirement("tasks.reject-aborts")
async def test_a_rejected_task_is_aborted(world: World) -> None:
    task_id = await task_in(world, "pending_approval")
    assert (await post(world, task_id, "reject", "WRITER")).status_code == 403
    rejected = await post(world, task_id, "reject", reason="too dear")
    assert (rejected.status_code, rejected.json()["status"]) == (200, "aborted")
    error = (await world.task(task_id))["error"]
    assert (error["code"], error["message"]) == ("APPROVAL_REJECTED", "too dear")


@requirement("tasks.approve-elsewhere-409")
@pytest.mark.parametrize("status", [s for s in TASK_STATUSES if s != "pending_approval"])
@pytest.mark.parametrize("verb", ["approve", "reject"])
async def test_only_a_waiting_task_is_approved_or_rejected(world: World, status: str, verb: str) -> None:
    task_id = await task_in(world, status)
    answer = await post(world, task_id, verb)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
    assert (await world.task(task_id))["status"] == status


@requirement("tasks.retry-makes-new-attempt")
@pytest.mark.parametrize("status", TASK_STATUSES)
async def test_only_a_failed_or_aborted_task_is_retried(world: World, status: str) -> None:
    task_id = await task_in(world, status)
    attempts = (await world.task(task_id))["attempts"]
    answer = await post(world, task_id, "retry")
    if status not in ("failed", "aborted"):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
        return
    task = answer.json()
    assert (answer.status_code, task["task_id"], task["status"]) == (202, task_id, "queued")
    assert (task["error"], task["outcome_class"], task["completion_time"]) == (None, None, None)
    assert task["metadata"]["retry_count"] == 1
    claim = await world.claim(task["assigned_agent"])
    assert claim["epoch"] == attempts + 1
    await post(world, task_id, "complete", epoch=claim["epoch"], result="at last")
    assert (await world.task(task_id))["status"] == "completed"


@requirement("tasks.retry-makes-new-attempt")
async def test_a_retry_is_routed_anew_and_counts(world: World) -> None:
    first = await world.register("first", alignment_score=1.0)
    task_id = await world.do(first, ok=False)
    await world.admin.post(f"/api/v1/registry/agents/{first}/suspend", json={"reason": "ill"})
    denied = await post(world, task_id, "retry")
    assert (denied.status_code, denied.json()["error"]["code"]) == (409, "ROUTING_AGENT_UNAVAILABLE")
    assert (await world.task(task_id))["status"] == "failed"
    second = await world.register("second", trust_tier="human")
    retried = (await post(world, task_id, "retry")).json()
    assert (retried["assigned_agent"], retried["status"]) == (second, "pending_approval")
    await post(world, task_id, "reject")
    assert (await post(world, task_id, "retry")).json()["metadata"]["retry_count"] == 2


@requirement("tasks.retry-makes-new-attempt")
async def test_a_retry_that_was_denied_while_the_task_still_ran_is_denied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await world.register()
    task_id = await world.submit()
    claim = await world.claim(agent)
    await world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "ill"})
    prepare = world.kernel.tasks.service.prepare_retry

    @asynccontextmanager
    async def prepare_and_let_it_fail(*args: Any) -> AsyncIterator[Any]:
        async with prepare(*args) as work:
            await post(world, task_id, "fail", epoch=claim["epoch"], error={"message": "no"})
            yield work

    monkeypatch.setattr(world.kernel.tasks.service, "prepare_retry", prepare_and_let_it_fail)
    denied = await post(world, task_id, "retry")
    assert (denied.status_code, denied.json()["error"]["code"]) == (409, "ROUTING_AGENT_UNAVAILABLE")
    assert (await world.task(task_id))["status"] == "failed"


@requirement("tasks.only-listed-moves")
@pytest.mark.parametrize("source", TASK_STATUSES)
async def test_the_database_refuses_every_move_that_is_not_listed(world: World, source: str) -> None:
    task_id = await task_in(world, source)
    row = "select count(*) from tasks where task_id = :task_id and status = :status"
    complete = {"completed", "failed", "aborted", "cancelled"}
    for target in TASK_STATUSES:
        if target == source or (source, target) in MOVES:
            continue
        ended = "coalesce(completion_time, 1)" if target in complete else "null"
        move = Sql(
            f"update tasks set status = '{target}', completion_time = {ended}, epoch = epoch + 1, lease_until = 1, "
            "deadline_at = 1 where task_id = :task_id"
        )
        with pytest.raises(Exception, match="does not make this move") as refused:
            await world.kernel.infra.db.write(lambda tx, sql=move: tx.run(sql, task_id=task_id))
        assert not isinstance(refused.value, StoreUnavailable)
        still = await world.kernel.infra.db.read(lambda tx: tx.row(Sql(row), task_id=task_id, status=source))
        assert still == (1,), target


@requirement("tasks.outcome-classes", "tasks.learning-eligible-classes")
async def test_every_outcome_has_its_class_and_only_three_are_eligible(world: World) -> None:
    agent = await world.register()
    ended = [
        await world.do(agent),
        await world.do(agent, degraded=True),
        await world.do(agent, ok=False),
        await world.do(agent, ok=False, outcome_class="provider_failure"),
        await task_in(world, "aborted"),
        await task_in(world, "cancelled"),
    ]
    body = {"type": "echo", "input": 1, "required_capabilities": ["paint"]}
    denied = await world.admin.post(PATH, json=body)
    ended.append(denied.json()["error"]["details"]["task_id"])
    tasks = [await world.task(task_id) for task_id in ended]
    assert [task["outcome_class"] for task in tasks] == [
        "success",
        "degraded_success",
        "agent_failure",
        "provider_failure",
        "timeout",
        "cancelled",
        "routing_failed",
    ]
    assert all(task["learning_eligible"] is (task["outcome_class"] in LEARNABLE_OUTCOMES) for task in tasks)
    assert {"success", "agent_failure", "timeout"} == LEARNABLE_OUTCOMES


@requirement("activity.log-is-fail-closed")
@pytest.mark.parametrize("verb", ["cancel", "approve", "reject"])
async def test_a_move_that_cannot_be_recorded_does_not_happen(world: World, verb: str) -> None:
    task_id = await task_in(world, "pending_approval")
    before = await world.task(task_id)
    world.runlog.broken = True
    answer = await post(world, task_id, verb)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE")
    world.runlog.broken = False
    assert await world.task(task_id) == before
