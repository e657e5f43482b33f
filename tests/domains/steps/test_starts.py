"""Tasks that begin later: at a time, or after other tasks. Time is the fixed clock's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conftest import World
from tests.domains.steps.test_steps import Attempt, refused
from tests.requirements import requirement

HOUR = 3600


def at(world: World, seconds: float) -> str:
    """Return the time so many seconds from now."""
    return (datetime.fromtimestamp(world.clock.now() / 1e6, UTC) + timedelta(seconds=seconds)).isoformat()


async def submit(world: World, **fields: Any) -> dict[str, Any]:
    body = {"type": "echo", "input": "hello", "required_capabilities": ["echo"], **fields}
    answer = await world.admin.post("/api/v1/tasks", json=body)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


async def status(world: World, task_id: str) -> str:
    return str((await world.task(task_id))["status"])


async def later(world: World, seconds: float) -> None:
    world.clock.advance(seconds=seconds)
    await world.kernel.tasks.wakeups.tick()


async def end(world: World, agent: str, task_id: str, verb: str = "complete", **body: Any) -> None:
    claim = await world.claim(agent)
    assert claim["task_id"] == task_id
    answer = await Attempt(world, task_id, claim["epoch"]).post(verb, **(body or {"result": 1}))
    assert answer.status_code == 200, answer.text


@requirement("tasks.start-at")
async def test_a_task_is_queued_at_its_time_and_not_before(world: World) -> None:
    agent = await world.register()
    submitted = await submit(world, start_at=at(world, HOUR), queue_timeout_seconds=60)
    task_id = submitted["task_id"]
    assert submitted["status"] == "waiting"
    assert submitted["estimated_start"] >= at(world, HOUR)[:19]
    await later(world, HOUR - 1)
    await world.kernel.tasks.reconciler.tick(0)
    assert await status(world, task_id) == "waiting"
    await later(world, 2)
    assert await status(world, task_id) == "queued"
    await end(world, agent, task_id)
    kinds = [event["event_type"] for event in await world.events(task_id)]
    assert kinds[:4] == ["prompt_received", "routing_decision", "task_waiting", "step_started"]
    assert kinds.count("task_started") == kinds.count("task_resumed") == 1


@requirement("tasks.start-at")
async def test_a_time_that_is_over_is_no_delay(world: World) -> None:
    await world.register()
    assert (await submit(world, start_at=at(world, -HOUR)))["status"] == "queued"


@requirement("tasks.after")
async def test_a_task_is_queued_when_all_that_it_comes_after_have_completed(world: World) -> None:
    agent = await world.register()
    first, second = (await submit(world))["task_id"], (await submit(world))["task_id"]
    third = (await submit(world, after=[first, second, first], start_at=at(world, 5)))["task_id"]
    await later(world, 6)
    await end(world, agent, first)
    await later(world, 1)
    assert await status(world, third) == "waiting"
    await end(world, agent, second)
    await later(world, 1)
    assert await status(world, third) == "queued"
    steps = (await world.admin.get(f"/api/v1/tasks/{third}/steps")).json()["steps"]
    assert {step["key"]: step["state"] for step in steps} == {
        f"#after/{first}": "completed",
        f"#after/{second}": "completed",
        "#start": "completed",
    }
    await end(world, agent, third)
    fourth = (await submit(world, after=[third]))["task_id"]  # has completed before
    await later(world, 1)
    assert await status(world, fourth) == "queued"


@requirement("tasks.after")
@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_task_is_aborted_when_one_that_it_comes_after_does_not_complete(world: World, how: str) -> None:
    agent = await world.register()
    first = (await submit(world, title="Fetch the numbers"))["task_id"]
    second = (await submit(world, after=[first]))["task_id"]
    third = (await submit(world, after=[second]))["task_id"]
    if how == "failed":
        await end(world, agent, first, "fail", error={"message": "no"})
    else:
        await world.admin.post(f"/api/v1/tasks/{first}/cancel")
    await later(world, 1)
    await later(world, 1)
    found = await world.task(second)
    assert (found["status"], found["error"]["code"]) == ("aborted", "DEPENDENCY_FAILED")
    assert "Fetch the numbers" in found["error"]["message"]
    assert await status(world, third) == "aborted"
    assert (await world.admin.post(f"/api/v1/tasks/{second}/retry")).status_code == 202
    assert await status(world, second) == "queued"  # a person says that it may run


@requirement("tasks.after")
async def test_a_retried_task_that_needs_approval_waits_for_nothing_else(world: World) -> None:
    agent = await world.register()
    first, other = [(await submit(world))["task_id"] for _ in range(2)]
    await world.register("asks", capabilities=["ask"], trust_tier="human")
    task_id = (await submit(world, required_capabilities=["ask"], after=[first, other], start_at=at(world, HOUR)))[
        "task_id"
    ]
    await end(world, agent, first, "fail", error={"message": "no"})
    await later(world, 1)
    assert await status(world, task_id) == "aborted"
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).json()["status"] == "pending_approval"
    await end(world, agent, other, "fail", error={"message": "no"})
    await later(world, 1)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/approve")).json()["status"] == "queued"


@requirement("tasks.after")
async def test_a_task_comes_after_known_tasks_only(world: World) -> None:
    await world.register()
    foreign = await world.clients["OTHER"].get("/api/v1/tasks")
    assert foreign.status_code == 200
    for after in (["nothing"], ["self"], ["x" * 999], [""], [1], ["a"] * 101):
        body = {"id": "self", "type": "echo", "input": 1, "required_capabilities": ["echo"], "after": after}
        refused(await world.admin.post("/api/v1/tasks", json=body), 400, "INVALID_REQUEST")
    for start_at in ("tomorrow", "2026-11-25T10:00:00", "9999-01-01T00:00:00Z", 5, ""):
        body = {"type": "echo", "input": 1, "required_capabilities": ["echo"], "start_at": start_at}
        refused(await world.admin.post("/api/v1/tasks", json=body), 400, "INVALID_REQUEST")
    assert (await world.admin.get("/api/v1/tasks")).json()["total"] == 0


@requirement("tasks.start-at")
async def test_a_task_is_approved_before_its_time_and_runs_at_it(world: World) -> None:
    agent = await world.register(trust_tier="human")
    task_id = (await submit(world, start_at=at(world, HOUR)))["task_id"]
    early = (await submit(world, start_at=at(world, HOUR)))["task_id"]
    assert await status(world, task_id) == "pending_approval"
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/approve")).json()["status"] == "waiting"
    await later(world, HOUR + 1)
    assert [await status(world, each) for each in (task_id, early)] == ["queued", "pending_approval"]
    assert (await world.admin.post(f"/api/v1/tasks/{early}/approve")).json()["status"] == "queued"
    await end(world, agent, task_id)


@requirement("tasks.start-at")
async def test_a_task_is_cancelled_before_its_time(world: World) -> None:
    await world.register()
    first = (await submit(world))["task_id"]
    task_id = (await submit(world, start_at=at(world, HOUR), after=[first]))["task_id"]
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")).status_code == 200
    await later(world, HOUR + 1)
    assert [await status(world, each) for each in (task_id, first)] == ["cancelled", "queued"]


@requirement("tasks.start-at")
async def test_the_same_submission_gets_the_same_task(world: World) -> None:
    await world.register()
    when = at(world, HOUR)
    body = {"id": "report", "start_at": when}
    assert await submit(world, **body) == await submit(world, **body)
    other = {"type": "echo", "input": "hello", "required_capabilities": ["echo"], "id": "report"}
    refused(await world.admin.post("/api/v1/tasks", json=other), 409, "CONFLICT")
