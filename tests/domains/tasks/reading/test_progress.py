"""What a task says of its state: what it waits for, how long it took in all, that its agent is silent."""

from __future__ import annotations

from typing import Any

from tests.conftest import World
from tests.domains.steps.test_steps import Attempt, begin_attempt, retry
from tests.domains.steps.test_waits import suspend, wait
from tests.requirements import requirement


async def waits(world: World, task_id: str) -> list[tuple[str, str, str | None]]:
    found = (await world.task(task_id))["waits_for"]
    return [(one["kind"], one["text"], one["until"] and one["until"][11:19]) for one in found]


@requirement("tasks.waits-for")
async def test_a_waiting_task_says_what_it_waits_for_and_until_when(world: World) -> None:
    attempt = await begin_attempt(world)
    assert (await world.task(attempt.task_id))["waits_for"] == []
    child = await world.submit(metadata={"parent_task_id": attempt.task_id})
    now = (await wait(attempt, "sleep", seconds=60)).json()
    await wait(attempt, "signal", signal="paid")
    await wait(attempt, "question", question="Book it?", options=["yes", "no"])
    await wait(attempt, "child", child_task_id=child)
    await attempt.step("plan")
    await attempt.begin("pay")
    await suspend(attempt, "sleep", "signal", "question", "child")
    assert await waits(world, attempt.task_id) == [
        ("sleep", "Sleeps", now["wake_at"][11:19]),
        ("signal", "Waits for the signal 'paid'", None),
        ("question", "Waits for an answer to 'Book it?' (yes, no)", None),
        ("child", "Waits for its child 'child'", None),
    ]
    assert (await world.task(attempt.task_id))["waits_for"][3]["other_task_id"] == child


@requirement("tasks.waits-for")
async def test_a_task_that_has_not_started_says_what_it_waits_for(world: World) -> None:
    agent = await world.register()
    first = await world.submit(title="The first", limit={"key": "k", "max": 1})
    world.clock.advance(seconds=600)
    assert await waits(world, first) == [("agent", "Waits for its agent: no worker online", None)]
    later = await world.submit(after=[first], start_at="2030-01-01T08:00:00Z")
    assert await waits(world, later) == [
        ("task", "Waits for another task to complete: The first", None),
        ("start", "Waits for its start", "08:00:00"),
    ]
    await world.claim(agent)
    second = await world.submit(limit={"key": "k", "max": 1})
    text = "Waits for a free slot: 1 of 1 tasks with the key 'k' run"
    assert await waits(world, second) == [("limit", text, None)]
    await world.register("boss", capabilities=["judge"], trust_tier="human")
    pending = await world.submit(required_capabilities=["judge"])
    assert await waits(world, pending) == [("approval", "Waits for approval", None)]


@requirement("tasks.waits-for")
async def test_a_task_of_a_new_agent_waits_for_its_program_until_it_connects(world: World) -> None:
    world.clock.advance(seconds=1)
    agent = await world.register()
    task_id = await world.submit()
    assert await waits(world, task_id) == [("agent", "Waits for its agent: no worker online", None)]
    pending = await world.register("boss", capabilities=["judge"], trust_tier="human")
    approved = await world.submit(required_capabilities=["judge"])
    answer = await world.admin.post(f"/api/v1/tasks/{approved}/approve")
    assert (answer.json()["assigned_agent"], answer.json()["notice"]) == (pending, "no worker online")
    await world.claim(agent)
    assert await waits(world, await world.submit()) == []


@requirement("tasks.waits-for")
async def test_what_a_task_waits_for_is_shown_to_those_who_see_it(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "question", question="A secret?")
    await suspend(attempt, "question")
    assert (await world.clients["OTHER"].get(f"/api/v1/tasks/{attempt.task_id}")).status_code == 404


@requirement("tasks.total-duration")
async def test_a_task_took_from_its_first_start_to_its_end_whatever_happened_between(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    world.clock.advance(seconds=1_000)  # in the queue
    attempt = Attempt(world, task_id, (await world.claim(agent))["epoch"])
    world.clock.advance(seconds=5)
    await wait(attempt, "sleep", seconds=100)
    await suspend(attempt, "sleep")
    assert (await world.task(task_id))["total_duration_ms"] is None
    world.clock.advance(seconds=100)
    await world.kernel.tasks.wakeups.tick()
    attempt = Attempt(world, task_id, (await world.claim(agent))["epoch"])
    world.clock.advance(seconds=7)
    attempt = await retry(attempt)
    world.clock.advance(seconds=3)
    assert (await attempt.post("complete", result=1)).status_code == 200
    task: dict[str, Any] = await world.task(task_id)
    assert (task["attempts"], task["duration_ms"], task["total_duration_ms"]) == (3, 3_000, 115_000)
    for query in ({}, {"ref": task_id[-8:]}, {"type": "echo"}):
        (row,) = (await world.admin.get("/api/v1/tasks", params=query)).json()["tasks"]
        assert (row["attempts"], row["duration_ms"], row["total_duration_ms"]) == (3, 3_000, 115_000), query


@requirement("tasks.silence")
async def test_a_task_says_that_its_worker_is_silent_and_when_it_is_queued_again(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    claim = await world.claim(agent, lease_seconds=30)
    attempt = Attempt(world, task_id, claim["epoch"])
    world.clock.advance(seconds=15)
    assert (await world.task(task_id))["notice"] is None
    world.clock.advance(seconds=2)
    notice = (
        f"No heartbeat for 17 s. Without one, the task goes back to the queue at {claim['lease_until'][11:19]} UTC."
    )
    assert (await world.task(task_id))["notice"] == notice
    assert (await attempt.post("heartbeat", lease_seconds=60)).status_code == 200
    world.clock.advance(seconds=29)
    assert (await world.task(task_id))["notice"] is None
    world.clock.advance(seconds=32)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.task(task_id)
    assert (task["status"], task["notice"]) == ("queued", "no worker online")


@requirement("tasks.silence")
async def test_a_task_whose_lease_ended_says_so_until_its_next_attempt(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await world.claim(agent, lease_seconds=5)
    world.clock.advance(seconds=6)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.task(task_id)
    assert (task["status"], task["notice"]) == (
        "queued",
        "The lease expired without a result. The task is queued for another attempt. "
        "If its worker ended, start it again.",
    )
    assert (await world.claim(agent, lease_seconds=5))["epoch"] == 2
    assert (await world.task(task_id))["notice"] is None


@requirement("steps.commands")
async def test_a_step_says_how_long_it_took_and_what_a_person_is_asked_about_it(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.step("plan", duration_ms=1_200)
    begun = (await attempt.begin("pay")).json()
    running, plan = (await attempt.journal())["steps"][::-1][:2]
    assert (plan["duration_ms"], running["duration_ms"]) == (1_200, None)
    assert "question" not in plan
    await attempt.fail()
    (decision,) = (await world.admin.get("/api/v1/decisions")).json()["steps"]
    moment = begun["started_at"][:19].replace("T", " ")
    assert decision["question"] == f"Did the effect 'pay' happen? The agent ann began it at {moment} UTC."
    assert decision["agent_name"] == "ann"
