"""Clocks that jump, forwards and back, while leases, waits, steps and schedules are under way."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from stentor.bootstrap.parts.tasks import open_schedules
from stentor.core import ids
from stentor.core.clock import ClockWatch, JumpWatch
from stentor.domains.execution.reconciler import Reconciler
from stentor.domains.messaging.processor import MessageProcessor
from stentor.domains.schedules import store
from stentor.domains.schedules.model import CronTimes
from stentor.domains.schedules.scheduler import Scheduler
from stentor.domains.steps.wakeups import WaitScheduler
from tests.conftest import World
from tests.domains.messaging.conftest import Post, task
from tests.domains.schedules.test_schedules import create, read, runs
from tests.domains.steps.test_steps import Attempt, begin_attempt, refused
from tests.domains.steps.test_waits import resume, status, suspend, wait
from tests.patience import soon
from tests.requirements import requirement

HOUR, DAY = 3600, 86_400


@pytest.fixture(autouse=True)
def _only_the_test_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    # A job that has read the time before the test sets it, and looks after, sees one jump of two.
    async def wait_forever(_: object) -> None:
        await asyncio.Event().wait()

    for job in (Reconciler, WaitScheduler, Scheduler):
        monkeypatch.setattr(job, "run", wait_forever)
    monkeypatch.setattr(MessageProcessor, "_watch", wait_forever)


async def passes(world: World, seconds: float) -> None:
    """Let time pass, or set the clock back, and do what the service does in the background."""
    world.clock.advance(seconds=seconds)
    await look(world)


async def set_clock(world: World, seconds: float) -> None:
    """Set the clock while no time passes, and do the same."""
    world.clock.jump(seconds)
    await look(world)


async def look(world: World) -> None:
    await world.kernel.tasks.wakeups.tick()
    await world.kernel.tasks.reconciler.tick(0)
    await world.kernel.schedules.scheduler.tick()


@requirement("steps.clocks")
@pytest.mark.parametrize("seconds", [120, HOUR, 30 * DAY])
async def test_a_clock_that_jumps_ahead_leaves_leases_and_timeouts_what_was_left_of_them(
    world: World, seconds: int
) -> None:
    silent = await begin_attempt(world, name="silent")  # of a task with a timeout of 300 s and a lease of 30 s
    living = await begin_attempt(world, name="living", capabilities=["live"], task={"required_capabilities": ["live"]})
    await passes(world, 20)
    await set_clock(world, seconds)
    assert (await status(silent), await status(living)) == ("executing", "executing")
    assert (await living.step("fetch", 1)).status_code == 200
    assert (await living.post("heartbeat", lease_seconds=3600)).status_code == 200
    await passes(world, 9)
    assert await status(silent) == "executing"
    await passes(world, 2)
    assert await status(silent) == "queued"
    await passes(world, 300 - 32)
    assert await status(living) == "executing"
    await passes(world, 2)
    assert (await world.task(living.task_id))["error"]["code"] == "TIMEOUT"


@requirement("steps.clocks")
async def test_a_heartbeat_between_a_jump_and_the_look_that_notices_it_costs_the_attempt_no_time(world: World) -> None:
    attempt = await begin_attempt(world)
    await passes(world, 0)
    world.clock.jump(HOUR)
    assert (await attempt.post("heartbeat", lease_seconds=30)).status_code == 200
    await look(world)
    await passes(world, 29)
    assert await status(attempt) == "executing"
    await passes(world, 2)
    assert await status(attempt) == "queued"


@requirement("steps.clocks")
async def test_of_two_processes_that_notice_a_jump_one_gives_the_leases_more_time(world: World) -> None:
    other = copy.copy(world.kernel.tasks.reconciler)  # as in another process, which looks by itself
    other._clock_watch, other._jump_watch = ClockWatch(), JumpWatch(world.clock.monotonic)
    attempt = await begin_attempt(world)
    for _ in range(2):
        await passes(world, 5)
        await other.tick(0)
        await set_clock(world, HOUR)
        await other.tick(0)
    await passes(world, 19)
    assert await status(attempt) == "executing"
    await passes(world, 2)
    assert await status(attempt) == "queued"


@requirement("steps.clocks")
async def test_a_set_clock_ends_no_wait_in_the_queue_before_its_time(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit(queue_timeout_seconds=60)
    await passes(world, 20)
    await set_clock(world, HOUR)
    later = await world.submit(queue_timeout_seconds=60)
    await passes(world, 39)
    assert {(await world.task(one))["status"] for one in (task_id, later)} == {"queued"}
    await passes(world, 2)
    assert (await world.task(task_id))["error"]["code"] == "QUEUE_TIMEOUT"
    assert (await world.claim(agent))["task_id"] == later


@requirement("steps.clocks")
async def test_a_task_does_not_wait_in_the_queue_for_as_long_as_the_clock_is_set_back(world: World) -> None:
    await world.register()
    task_id = await world.submit(queue_timeout_seconds=3_000)
    await passes(world, 20)
    await passes(world, -HOUR)
    await passes(world, 2_999)
    assert (await world.task(task_id))["status"] == "queued"
    await passes(world, 2)
    assert (await world.task(task_id))["error"]["code"] == "QUEUE_TIMEOUT"


@requirement("steps.clocks")
@pytest.mark.parametrize("is_ahead", [True, False])
async def test_a_clock_that_is_set_wrong_and_right_again_leaves_timeouts_what_was_left_of_them(
    world: World, is_ahead: bool
) -> None:
    wrong = 3 * HOUR if is_ahead else -3 * HOUR
    attempt = await begin_attempt(world)  # of a task with a timeout of 300 s
    await world.register(name="away", capabilities=["away"])
    queued = await world.submit(required_capabilities=["away"], queue_timeout_seconds=300)
    for seconds in (wrong, -wrong, -wrong, wrong):
        await passes(world, 10)
        await set_clock(world, seconds)
        assert (await attempt.post("heartbeat", lease_seconds=3600)).status_code == 200
    await passes(world, 250)
    assert await status(attempt) == "executing"
    assert (await world.task(queued))["status"] == "queued"
    # Each time that the clock was set back, what was left at the last heartbeat counted, 10 s before.
    await passes(world, 32)
    assert (await world.task(attempt.task_id))["error"]["code"] == "TIMEOUT"


@requirement("steps.clocks")
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_set_clock_ends_no_message_and_cancels_no_task_before_its_time(world: World, is_first: bool) -> None:
    await world.register()
    post, processor = Post(world), world.kernel.messaging.processor
    message_id = await post.send(task(timeout_seconds=60))

    async def find_tasks() -> Any:
        return (await world.admin.get("/api/v1/tasks")).json()["tasks"]

    task_id = (await soon(find_tasks))[0]["task_id"]
    for seconds in (0, 20):
        await passes(world, seconds)
        await processor._tick(1)
    world.clock.jump(HOUR)
    if not is_first:
        await look(world)
    for seconds, expected in ((0, "queued"), (39, "queued"), (2, "cancelled")):
        world.clock.advance(seconds=seconds)
        await processor._tick(1)
        await look(world)
        assert (await world.task(task_id))["status"] == expected
    assert (await post.over(message_id))["response"]["error"]["code"] == "TIMEOUT"


@requirement("steps.clocks")
async def test_a_lease_that_ends_loses_no_step(world: World) -> None:
    first = await begin_attempt(world)
    await first.step("fetch", 1)
    # Not past the timeout of the attempt, which would end the task.
    await passes(world, 120)
    refused(await first.step("late", 2), 409, "LEASE_LOST")
    refused(await first.post("complete", result="late"), 409, "LEASE_LOST")
    second = await resume(first)
    assert [step["key"] for step in (await second.journal())["steps"]] == ["fetch"]
    await passes(world, -120)
    assert (await second.step("next", 3)).status_code == 200
    assert (await second.post("complete", result="right")).status_code == 200
    assert (await world.task(first.task_id))["result"] == "right"


@requirement("steps.clocks")
async def test_a_clock_that_is_set_back_takes_no_lease_away_and_the_next_heartbeat_sets_its_end(world: World) -> None:
    first = await begin_attempt(world)
    await passes(world, -HOUR)
    assert (await first.step("fetch", 1)).status_code == 200
    assert (await first.post("heartbeat", lease_seconds=30)).status_code == 200
    await passes(world, 29)
    assert await status(first) == "executing"
    await passes(world, 2)
    assert await status(first) == "queued"


@requirement("steps.clocks")
@pytest.mark.parametrize("seconds", [-DAY, 30 * DAY])
async def test_a_wait_ends_once_at_its_time_by_the_clock_whichever_way_it_jumps(world: World, seconds: float) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "sleep", seconds=HOUR)
    await suspend(attempt, "sleep")
    await set_clock(world, seconds)
    assert await status(attempt) == ("queued" if seconds > 0 else "waiting")
    await set_clock(world, -seconds)
    await passes(world, HOUR + 1)
    assert await status(attempt) == "queued"
    kinds = [event["event_type"] for event in await world.events(attempt.task_id)]
    assert kinds.count("task_resumed") == 1


@requirement("steps.clocks")
@pytest.mark.parametrize("is_same_attempt", [False, True])
async def test_steps_keep_their_order_over_a_restart_with_the_clock_set_back(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_same_attempt: bool
) -> None:
    first = await begin_attempt(world)
    before = ids._last
    monkeypatch.setattr(ids, "_last", before + (HOUR * 1000 << 12))
    await first.begin("pay")
    await first.post("steps", key="pay", name="pay", kind="effect", value="paid")
    monkeypatch.setattr(ids, "_last", before)  # a process that was started since
    second = first
    if not is_same_attempt:
        await passes(world, 120)
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
    await set_clock(world, 40 * DAY)
    assert len(await runs(world)) == 1
    world.clock.advance(days=-40)
    if is_restarted:
        await open_schedules(
            world.kernel.infra, world.kernel.tasks.submission, world.kernel.agents.routing.is_active
        ).scheduler.tick()
    await passes(world, 0)
    assert (await read(world))["next_at"] == right
    await passes(world, DAY)
    assert [run["due_at"] for run in await runs(world)].count(right) == 1


@requirement("schedules.clocks")
@pytest.mark.parametrize("seconds", [1.5, 5, 90])
async def test_no_run_is_made_twice_when_the_clock_is_set_back_a_little(world: World, seconds: float) -> None:
    await world.register()
    await create(world, missed="all")
    for _ in range(3):
        await passes(world, 60)
    await passes(world, -seconds)
    for _ in range(10):
        await passes(world, 30)
    due: list[Any] = [run["due_at"] for run in await runs(world)]
    assert len(due) == len(set(due)) >= 6


@requirement("schedules.clocks")
async def test_no_run_is_made_twice_behind_times_without_a_run(world: World) -> None:
    await world.register()
    await create(world, missed="one")
    for seconds in (60, 180, 60, 60):
        await passes(world, seconds)
    done = {run["due_at"] for run in await runs(world)}
    await passes(world, -300)
    for _ in range(8):
        await passes(world, 60)
    due: list[Any] = [run["due_at"] for run in await runs(world)]
    assert len(due) == len(set(due)) == 9
    assert done < set(due)


@requirement("schedules.clocks")
async def test_what_was_run_is_not_forgotten_before_a_clock_that_was_set_back_has_reached_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RUNS_KEPT", 3)
    await world.register()
    await create(world)
    for _ in range(6):
        await passes(world, 60)
    await passes(world, -240)  # so one of the four times since is forgotten
    for _ in range(6):
        await passes(world, 60)
    assert (await world.admin.get("/api/v1/tasks")).json()["total"] == 6 + 1 + 2


@requirement("schedules.clocks")
async def test_new_runs_are_the_latest_also_if_the_clock_was_ahead_before_the_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RUNS_KEPT", 3)
    await world.register()
    await create(world)
    last = ids._last
    monkeypatch.setattr(ids, "_last", last + (DAY * 1000 << 12))
    for _ in range(4):
        await passes(world, 60)
    before = [run["due_at"] for run in await runs(world)]
    monkeypatch.setattr(ids, "_last", last)  # a process that was started since
    await passes(world, 60)
    assert [run["due_at"] for run in await runs(world)][1:] == before[:2]


async def test_a_start_computes_no_times_for_the_runs_of_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.register()
    await create(world)
    for _ in range(3):
        await passes(world, 60)
    counts, list_after = list[int](), CronTimes.list_after

    def counted(times: CronTimes, moment: int, count: int) -> list[int]:
        counts.append(count)
        return list_after(times, moment, count)

    monkeypatch.setattr(CronTimes, "list_after", counted)
    await open_schedules(
        world.kernel.infra, world.kernel.tasks.submission, world.kernel.agents.routing.is_active
    ).scheduler.tick()
    assert set(counts) == {1}


@requirement("steps.clocks")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_dead_worker_does_not_keep_its_task_for_as_long_as_the_clock_is_set_back(
    world: World, is_restarted: bool
) -> None:
    first = await begin_attempt(world)
    await first.step("fetch", 1)
    await passes(world, 10)
    assert (await first.post("heartbeat", lease_seconds=30)).status_code == 200
    await passes(world, 12)
    world.clock.advance(seconds=-HOUR)
    reconciler = world.kernel.tasks.reconciler
    if is_restarted:
        reconciler._clock_watch = ClockWatch()  # as a process that has not looked yet
    await passes(world, 0)
    # It gets what it had after its last heartbeat, and not less: it may live.
    await passes(world, 29)
    assert await status(first) == "executing"
    await passes(world, 2)
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
        await passes(world, -0.9)
    await passes(world, 18)
    await passes(world, 29)
    assert await status(attempt) == "executing"
    assert (await attempt.post("heartbeat", lease_seconds=3600)).status_code == 200
    await passes(world, -HOUR)
    assert (await attempt.step("fetch", 1)).status_code == 200
    # 29 s of the 300 were over.
    await passes(world, 270)
    assert await status(attempt) == "executing"
    await passes(world, 2)
    assert await status(attempt) == "aborted"
