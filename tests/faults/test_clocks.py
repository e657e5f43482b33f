"""Clocks that jump, forwards and back, while leases, waits, steps and schedules are under way."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.bootstrap.parts.tasks import open_schedules
from stentor.core import ids
from stentor.core.clock import ClockWatch
from tests.conftest import World
from tests.domains.test_schedules import create, read, runs
from tests.domains.test_steps import Attempt, begin_attempt, refused
from tests.domains.test_waits import resume, status, suspend, wait
from tests.requirements import requirement

HOUR, DAY = 3600, 86_400


async def jump(world: World, seconds: float) -> None:
    """Set the clock, and do what the service does in the background."""
    world.clock.advance(seconds=seconds)
    await world.kernel.tasks.wakeups.tick()
    await world.kernel.tasks.reconciler.tick(0)
    await world.kernel.schedules.scheduler.tick()


@requirement("steps.clocks")
async def test_a_clock_that_jumps_ahead_ends_leases_and_loses_no_step(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("fetch", 1)
    # Not past the timeout of the attempt, which would end the task.
    await jump(world, 120)
    refused(await first.step("late", 2), 409, "LEASE_LOST")
    refused(await first.post("complete", result="late"), 409, "LEASE_LOST")
    second = await resume(first)
    assert [step["key"] for step in (await second.journal())["steps"]] == ["fetch"]
    await jump(world, -120)
    assert (await second.step("next", 3)).status_code == 200
    assert (await second.post("complete", result="right")).status_code == 200
    assert (await world.task(first.task_id))["result"] == "right"


@requirement("steps.clocks")
async def test_a_clock_that_is_set_back_takes_no_lease_away_and_the_next_heartbeat_sets_its_end(world: World) -> None:
    first = await begin_attempt(world)
    await jump(world, -HOUR)
    assert (await first.step("fetch", 1)).status_code == 200
    assert (await first.post("heartbeat", lease_seconds=30)).status_code == 200
    await jump(world, 29)
    assert await status(first) == "executing"
    await jump(world, 2)
    assert await status(first) == "queued"


@requirement("steps.clocks")
@pytest.mark.parametrize("seconds", [-DAY, 30 * DAY])
async def test_a_wait_ends_once_at_its_time_by_the_clock_whichever_way_it_jumps(world: World, seconds: float) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "sleep", seconds=HOUR)
    await suspend(attempt, "sleep")
    await jump(world, seconds)
    assert await status(attempt) == ("queued" if seconds > 0 else "waiting")
    await jump(world, -seconds)
    await jump(world, HOUR + 1)
    assert await status(attempt) == "queued"
    kinds = [event["event_type"] for event in await world.events(attempt.task_id)]
    assert kinds.count("task_resumed") == 1


@requirement("steps.clocks")
async def test_steps_keep_their_order_over_a_restart_with_the_clock_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await begin_attempt(world)
    before = ids._last
    monkeypatch.setattr(ids, "_last", before + (HOUR * 1000 << 12))
    await first.begin("pay")
    await first.post("steps", key="pay", name="pay", kind="effect", value="paid")
    monkeypatch.setattr(ids, "_last", before)  # a process that was started since
    await jump(world, 120)
    second = await resume(first)
    await second.step("summarize", 2)
    assert [step["key"] for step in (await second.journal())["steps"]] == ["pay", "summarize"]
    await second.fail()
    answer = await world.admin.post(f"/api/v1/tasks/{first.task_id}/rerun", json={"from_step": "summarize"})
    again = Attempt(world, answer.json()["task_id"], 0)
    assert [(step["key"], step["value"]) for step in (await again.journal())["steps"]] == [("pay", "paid")]


@requirement("schedules.clocks")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_schedule_does_not_rest_after_a_clock_that_was_ahead_is_set_right(
    world: World, is_restarted: bool
) -> None:
    await world.register()
    right = (await create(world, cron="30 6 * * *", missed="one"))["next_at"]
    await jump(world, 40 * DAY)
    assert len(await runs(world)) == 1
    world.clock.advance(days=-40)
    if is_restarted:
        await open_schedules(world.kernel.infra, world.kernel.tasks.submission).scheduler.tick()
    await jump(world, 0)
    assert (await read(world))["next_at"] == right
    await jump(world, DAY)
    assert [run["due_at"] for run in await runs(world)].count(right) == 1


@requirement("schedules.clocks")
@pytest.mark.parametrize("seconds", [1.5, 5, 90])
async def test_no_run_is_made_twice_when_the_clock_is_set_back_a_little(world: World, seconds: float) -> None:
    await world.register()
    await create(world, missed="all")
    for _ in range(3):
        await jump(world, 60)
    await jump(world, -seconds)
    for _ in range(10):
        await jump(world, 30)
    due: list[Any] = [run["due_at"] for run in await runs(world)]
    assert len(due) == len(set(due)) >= 6


@requirement("steps.clocks")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_dead_worker_does_not_keep_its_task_for_as_long_as_the_clock_is_set_back(
    world: World, is_restarted: bool
) -> None:
    first = await begin_attempt(world)
    await first.step("fetch", 1)
    await jump(world, 10)
    assert (await first.post("heartbeat", lease_seconds=30)).status_code == 200
    await jump(world, 12)
    world.clock.advance(seconds=-HOUR)
    reconciler = world.kernel.tasks.reconciler
    if is_restarted:
        reconciler._clock_watch = ClockWatch()  # as a process that has not looked yet
    await jump(world, 0)
    # It gets what it had after its last heartbeat, and not less: it may live.
    await jump(world, 29)
    assert await status(first) == "executing"
    await jump(world, 2)
    assert await status(first) == "queued"
    second = await resume(first)
    assert [step["key"] for step in (await second.journal())["steps"]] == ["fetch"]
    refused(await first.step("late", 2), 409, "LEASE_LOST")


@requirement("steps.clocks")
async def test_a_clock_that_is_set_back_prolongs_no_timeout_of_an_attempt_and_swings_shorten_no_lease(
    world: World,
) -> None:
    attempt = await begin_attempt(world)  # of a task with a timeout of 300 s
    for _ in range(20):  # a clock that is set back by less than a second each time
        await jump(world, -0.9)
    await jump(world, 18)
    await jump(world, 29)
    assert await status(attempt) == "executing"
    assert (await attempt.post("heartbeat", lease_seconds=3600)).status_code == 200
    await jump(world, -HOUR)
    assert (await attempt.step("fetch", 1)).status_code == 200
    # 29 s of the 300 were over.
    await jump(world, 270)
    assert await status(attempt) == "executing"
    await jump(world, 2)
    assert await status(attempt) == "aborted"
