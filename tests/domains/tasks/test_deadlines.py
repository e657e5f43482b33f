"""Deadlines of tasks and of their subtasks. Time is the fixed clock's."""

from __future__ import annotations

import pytest

from tests.conftest import World
from tests.domains.steps.test_starts import HOUR, at, later, status
from tests.domains.steps.test_steps import Attempt, refused
from tests.domains.steps.test_waits import wait
from tests.requirements import requirement


@requirement("tasks.deadline")
@pytest.mark.parametrize("state", ["queued", "executing", "waiting", "pending_approval"])
async def test_a_task_that_has_not_ended_by_its_deadline_is_aborted(world: World, state: str) -> None:
    agent = await world.register(trust_tier="human" if state == "pending_approval" else "auto")
    later_start = {"start_at": at(world, HOUR / 2)} if state == "waiting" else {}
    # Longer than the deadline: at the end of both, the reconciler may come first.
    task_id = await world.submit(deadline=at(world, HOUR), timeout_seconds=10_800, **later_start)
    claim = await world.claim(agent, lease_seconds=3600) if state == "executing" else {}
    assert await status(world, task_id) == state
    if state == "waiting":  # before its deadline, and in one look at the clock
        await world.kernel.tasks.wakeups.tick()
    else:
        await later(world, HOUR - 1)
        assert await status(world, task_id) == state
    await later(world, HOUR + 2)
    task = await world.task(task_id)
    assert (task["status"], task["error"]["code"]) == ("aborted", "DEADLINE_EXCEEDED")
    assert (task["outcome_class"], task["learning_eligible"]) == ("cancelled", False)
    if claim:
        ended = await Attempt(world, task_id, claim["epoch"]).post("complete", result=1)
        assert (ended.status_code, ended.json()["error"]["code"]) == (409, "LEASE_LOST")
    again = await world.admin.post(f"/api/v1/tasks/{task_id}/retry")
    assert (again.status_code, "deadline of the task has passed" in again.text) == (409, True)


@requirement("tasks.deadline", "steps.waits")
async def test_a_question_is_not_answered_after_the_deadline(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(deadline=at(world, HOUR), timeout_seconds=10_800)
    attempt = Attempt(world, task_id, (await world.claim(agent))["epoch"])
    for key in ("first", "second"):
        await wait(attempt, "question", key=key, question="Go on?")
    path = f"/api/v1/tasks/{task_id}/steps"
    assert (await world.admin.post(f"{path}/first/answer", json={"value": "yes"})).status_code == 200
    await later(world, HOUR + 2)
    assert await status(world, task_id) == "aborted"
    answer = await world.admin.post(f"{path}/second/answer", json={"value": "yes"})
    refused(answer, 409, "CONFLICT")
    assert "deadline of the task has passed" in answer.text
    assert (await world.admin.post(f"{path}/first/answer", json={"value": "yes"})).status_code == 200, "said before"


@requirement("tasks.deadline")
async def test_a_failure_after_the_deadline_is_no_evidence_about_the_agent(world: World) -> None:
    agent = await world.register()
    # Shorter than the timeout and the lease: at the end of them, the reconciler may come first.
    task_id = await world.submit(deadline=at(world, HOUR / 2), timeout_seconds=10_800)
    attempt = Attempt(world, task_id, (await world.claim(agent, lease_seconds=3600))["epoch"])
    world.clock.advance(seconds=HOUR / 2 + 1)
    child = {"type": "echo", "input": "x", "required_capabilities": ["echo"], "metadata": {"parent_task_id": task_id}}
    assert (await world.admin.post("/api/v1/tasks", json=child)).status_code == 400
    failed = await attempt.post("fail", error={"message": "the subtask was refused"})
    assert (failed.status_code, failed.json()["error"]["code"]) == (409, "LEASE_LOST")
    await world.kernel.tasks.wakeups.tick()
    task = await world.task(task_id)
    assert (task["status"], task["error"]["code"]) == ("aborted", "DEADLINE_EXCEEDED")
    assert (task["outcome_class"], task["learning_eligible"]) == ("cancelled", False)


@requirement("tasks.deadline")
async def test_a_deadline_goes_down_the_tree_and_a_subtask_may_only_shorten_it(world: World) -> None:
    await world.register()
    root = await world.submit(deadline=at(world, HOUR))
    child = await world.submit(metadata={"parent_task_id": root}, deadline=at(world, 5 * HOUR))
    sooner = await world.submit(metadata={"parent_task_id": child}, deadline=at(world, HOUR / 2))
    plain = await world.submit(metadata={"parent_task_id": child})
    free = await world.submit()
    ends = [(await world.task(task_id)).get("deadline", "") for task_id in (root, child, sooner, plain, free)]
    assert ends == [ends[0], ends[0], ends[2], ends[0], ""]
    assert ends[2] < ends[0]
    await later(world, HOUR / 2 + 1)
    assert [await status(world, task_id) for task_id in (child, sooner)] == ["queued", "aborted"]
    await later(world, HOUR / 2)
    assert {await status(world, task_id) for task_id in (root, child, plain)} == {"aborted"}
    assert await status(world, free) == "queued"


@requirement("tasks.deadline")
async def test_a_task_that_ended_in_time_stays_as_it_is(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(deadline=at(world, HOUR))
    claim = await world.claim(agent)
    assert (await Attempt(world, task_id, claim["epoch"]).post("complete", result=1)).status_code == 200
    await later(world, 2 * HOUR)
    assert await status(world, task_id) == "completed"


@requirement("tasks.deadline")
async def test_a_deadline_that_cannot_be_kept_is_refused_and_a_repeated_submission_is_not(world: World) -> None:
    await world.register()
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    for fields in (
        {"deadline": at(world, -1)},
        {"deadline": at(world, HOUR), "start_at": at(world, 2 * HOUR)},
        {"deadline": "soon"},
        {"deadline": "2026-01-01T00:00:00"},
    ):
        refused = await world.admin.post("/api/v1/tasks", json=body | fields)
        assert refused.status_code == 400, fields
        assert "deadline" in refused.text
    once = body | {"id": "once", "deadline": at(world, HOUR)}
    assert (await world.admin.post("/api/v1/tasks", json=once)).status_code == 202
    await later(world, 2 * HOUR)
    assert (await world.admin.post("/api/v1/tasks", json=once)).status_code == 202, "the first response again"
