"""Limits of tasks by key: how many run at a time and start in a time. Time is the fixed clock's."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.domains.execution.limits import BATCH_SIZE, ParkedTaskScheduler
from tests.conftest import MakeWorld, World
from tests.domains.alerts.test_alerts import alerts
from tests.domains.execution.test_rerouting import BOASTS, MODEST, assigned
from tests.domains.monitoring.metrics_scrape import scrape
from tests.domains.steps.test_steps import Attempt
from tests.domains.steps.test_waits import suspend, wait
from tests.requirements import requirement

TWO = {"key": "customer-42", "max": 2}
UNPARKED = Sql("select 1 from tasks where status = 'queued' and parked = 0 limit 1")


async def claim(world: World, agent: str, limit: int = 10, **lease: int) -> list[dict[str, Any]]:
    body = {"max": limit, "wait_seconds": 0, **lease}
    answer = await world.admin.post(f"/api/v1/agents/{agent}/claims", json=body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["tasks"])


async def end(world: World, task: dict[str, Any], verb: str = "complete", **body: Any) -> None:
    answer = await Attempt(world, task["task_id"], task["epoch"]).post(verb, **(body or {"result": 1}))
    assert answer.status_code == 200, answer.text


async def look(world: World) -> None:
    """Do what the background job does after an end, and once a second."""
    world.clock.advance(seconds=1)
    await world.kernel.tasks.parked_tasks.tick()


@requirement("limits.concurrency")
async def test_of_one_key_no_more_tasks_run_than_its_limit_says(world: World) -> None:
    agent = await world.register()
    tasks = [await world.submit(limit=TWO) for _ in range(5)]
    free = await world.submit()
    claimed = await claim(world, agent)
    assert [task["task_id"] for task in claimed] == [tasks[0], tasks[1], free]
    assert await claim(world, agent) == []
    await look(world)
    assert await claim(world, agent) == []
    third = await world.task(tasks[2])
    assert third["status"] == "queued"
    assert third["notice"] == "Waits for a free slot: 2 of 2 tasks with the key 'customer-42' run."
    await end(world, claimed[0])
    await look(world)
    assert [task["task_id"] for task in await claim(world, agent)] == [tasks[2]]


@requirement("limits.room")
@pytest.mark.parametrize("way", ["fail", "cancel", "lease", "suspend"])
async def test_a_task_that_no_longer_executes_gives_its_room_up(world: World, way: str) -> None:
    agent = await world.register()
    one = {"key": "k", "max": 1}
    first, second = await world.submit(limit=one), await world.submit(limit=one)
    (task,) = await claim(world, agent)
    assert await claim(world, agent) == []
    if way == "fail":
        await end(world, task, "fail", error={"message": "no"})
    elif way == "cancel":
        assert (await world.admin.post(f"/api/v1/tasks/{first}/cancel")).status_code == 200
    elif way == "lease":
        world.clock.advance(seconds=3600)
        await world.kernel.tasks.reconciler.tick(0)
    else:
        attempt = Attempt(world, first, task["epoch"])
        await wait(attempt, "sleep", seconds=9_999)
        assert await suspend(attempt, "sleep") == "waiting"
    await look(world)
    assert second in [task["task_id"] for task in await claim(world, agent)]


@requirement("limits.rate")
async def test_of_one_key_no_more_tasks_start_in_a_time_than_its_rate_says(world: World) -> None:
    agent = await world.register()
    limit = {"key": "api", "max": 2, "per_seconds": 60}
    tasks = [await world.submit(limit=limit) for _ in range(5)]
    first = await claim(world, agent)
    for task in first:
        await end(world, task)
    await look(world)
    assert len(first) == 2
    assert await claim(world, agent) == []
    assert "2 of 2 tasks with the key 'api' started in 60 s" in (await world.task(tasks[2]))["notice"]
    world.clock.advance(seconds=60)
    await look(world)
    assert [task["task_id"] for task in await claim(world, agent)] == tasks[2:4]


async def test_starts_that_no_rate_can_count_any_more_are_deleted(world: World) -> None:
    agent = await world.register()
    starts = Sql("select count(*) from limit_starts")
    for kept in (1, 1):
        await world.submit(limit={"key": "api", "max": 9, "per_seconds": 60})
        await claim(world, agent)
        await world.kernel.tasks.reconciler.tick(3_599)
        assert await world.kernel.infra.db.read(lambda tx: tx.rows(starts)) == [(kept,)]
        world.clock.advance(seconds=86_401)


@requirement("limits.own-max")
async def test_each_task_keeps_its_own_limit(world: World) -> None:
    agent = await world.register()
    await world.submit(limit={"key": "k", "max": 1})
    low, high = await world.submit(limit={"key": "k", "max": 1}), await world.submit(limit={"key": "k", "max": 2})
    assert high in [task["task_id"] for task in await claim(world, agent)]
    assert (await world.task(low))["status"] == "queued"


@requirement("limits.own-max")
@pytest.mark.parametrize("other", [{"max": 2}, {"max": 2, "per_seconds": 10}])
async def test_a_task_waits_for_no_older_one_that_has_no_room_by_its_own_period(
    world: World, other: dict[str, int]
) -> None:
    agent = await world.register()
    hourly = [await world.submit(limit={"key": "k", "max": 2, "per_seconds": 3_600}) for _ in range(3)]
    for task in await claim(world, agent):
        await end(world, task)
    world.clock.advance(seconds=10)
    younger = await world.submit(limit={"key": "k"} | other)
    assert [task["task_id"] for task in await claim(world, agent)] == [younger]
    world.clock.advance(seconds=3_600)
    await look(world)
    assert [task["task_id"] for task in await claim(world, agent)] == hourly[2:]


@requirement("limits.own-max")
async def test_a_new_task_passes_no_older_one_that_has_room_by_another_period(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The job looks only when the test does. Else it can put the older task back while the younger one is claimed.
    monkeypatch.setattr(ParkedTaskScheduler, "run", lambda _: asyncio.Event().wait())
    world = await make_world()
    agent = await world.register()
    _, older = [await world.submit(limit={"key": "k", "max": 1, "per_seconds": 60}) for _ in range(2)]
    (task,) = await claim(world, agent)
    await end(world, task)
    world.clock.advance(seconds=60)
    younger = await world.submit(limit={"key": "k", "max": 1})
    assert await claim(world, agent) == []
    await look(world)
    assert [task["task_id"] for task in await claim(world, agent)] == [older]
    assert (await world.task(younger))["status"] == "queued"


@requirement("limits.own-max")
async def test_a_task_with_room_is_found_behind_any_number_of_tasks_without(world: World) -> None:
    agent = await world.register()
    high = {"key": "k", "max": 2}
    for _ in range(2):
        await world.submit(limit=high)
    first, _ = await claim(world, agent)
    for _ in range(BATCH_SIZE):
        await world.submit(limit={"key": "k", "max": 1})
    third = await world.submit(limit=high)
    while await world.kernel.infra.db.read(lambda tx: tx.rows(UNPARKED)):
        assert await claim(world, agent, 100) == []
    await end(world, first)
    await look(world)
    assert [task["task_id"] for task in await claim(world, agent)] == [third]


@requirement("limits.concurrency")
async def test_many_tasks_whose_agent_takes_nothing_hold_up_no_other_agent_for_long(world: World) -> None:
    gone, other = await world.register("gone"), await world.register("other", capabilities=["write"])
    one = {"key": "k", "max": 1}
    for _ in range(40):
        await world.submit(limit=one)
    (task,) = await claim(world, gone, 100)
    await end(world, task)
    mine = await world.submit(type="write", required_capabilities=["write"], limit=one)
    looks = 0
    while not (tasks := await claim(world, other)):
        await look(world)
        looks += 1
    assert [task["task_id"] for task in tasks] == [mine]
    assert looks <= 7, "each look without effect puts twice as many back"


@requirement("limits.room")
async def test_a_task_that_waits_for_room_moves_from_an_agent_that_went_away_when_there_is_room(world: World) -> None:
    gone, here = await world.register("gone", **BOASTS), await world.register("here", **MODEST)
    other, one = await world.register("other", capabilities=["write"]), {"key": "k", "max": 1}
    await world.submit(type="write", required_capabilities=["write"], limit=one)
    # Not the usual lease, which has ended when the other agent is away.
    (holder,) = await claim(world, other, lease_seconds=600)
    parked = await world.submit(limit=one, queue_timeout_seconds=3_600)
    assert await claim(world, gone) == []
    await world.kernel.tasks.reconciler.tick(0)
    assert world.kernel.tasks.dispatcher.queue_depths() == {}, "nothing that anybody could claim"
    world.clock.advance(seconds=61)
    assert await claim(world, here) == []
    await end(world, holder)
    await look(world)
    await assigned(world, parked, here)
    assert [task["task_id"] for task in await claim(world, here)] == [parked]


@requirement("limits.concurrency")
async def test_concurrent_claims_never_exceed_a_limit_and_all_tasks_run(world: World) -> None:
    agents = [await world.register(name) for name in ("ann", "bob", "cid")]
    chance = random.Random(7)
    keys = {f"k{n}": n for n in (1, 2, 3)}
    ids = [await world.submit(limit={"key": key, "max": top}) for key, top in list(keys.items()) * 6]
    key_of = dict(zip(ids, list(keys) * 6, strict=True))
    done: set[str] = set()
    running: dict[str, dict[str, Any]] = {}
    for _ in range(200):
        for tasks in await asyncio.gather(*(claim(world, agent, 2) for agent in agents)):
            running |= {task["task_id"]: task for task in tasks}
        check(running, key_of, keys)
        for task_id in chance.sample(sorted(running), k=len(running) // 2 + len(running) % 2):
            await end(world, running.pop(task_id))
            done.add(task_id)
        if done == set(ids):
            break
        await look(world)
    assert done == set(ids)


def check(running: dict[str, Any], key_of: dict[str, str], keys: dict[str, int]) -> None:
    """Raise AssertionError if more tasks of a key run than its limit."""
    for key, top in keys.items():
        assert sum(key_of[task_id] == key for task_id in running) <= top, key


def test_the_checker_finds_one_task_too_many() -> None:
    with pytest.raises(AssertionError):
        check({"a": {}, "b": {}}, {"a": "k", "b": "k"}, {"k": 1})


@requirement("limits.refused")
@pytest.mark.parametrize(
    "limit", [{"key": "", "max": 1}, {"key": "k", "max": 0}, {"key": "k"}, {"key": "k", "max": 1, "per_seconds": 0}]
)
async def test_a_limit_that_makes_no_sense_is_refused(world: World, limit: dict[str, Any]) -> None:
    body = {"type": "echo", "input": "x", "limit": limit}
    answer = await world.admin.post("/api/v1/tasks", json=body)
    assert answer.status_code == 400
    assert "limit" in answer.text


@requirement("monitoring.tasks", "alerts.waiting")
async def test_what_waits_for_room_or_sleeps_is_no_old_task_of_the_queue(world: World) -> None:
    agent = await world.register()
    one = {"key": "k", "max": 1}
    sleeper, parked = [await world.submit(limit=one, timeout_seconds=86_400) for _ in range(2)]
    (task,) = await claim(world, agent)
    heartbeat = await Attempt(world, sleeper, task["epoch"]).post("heartbeat", lease_seconds=3_600)
    assert heartbeat.status_code == 200
    await look(world)
    world.clock.advance(seconds=900)
    assert (await scrape(world)).value("queue_oldest_seconds") == 0
    await world.kernel.alerts.check()
    assert await alerts(world, "queue") == []
    free = await world.submit()
    world.clock.advance(seconds=400)
    assert (await scrape(world)).value("queue_oldest_seconds") == 400
    attempt = Attempt(world, sleeper, task["epoch"])
    await wait(attempt, "sleep", seconds=9_999)
    assert await suspend(attempt, "sleep") == "waiting"
    world.clock.advance(seconds=900)
    await world.kernel.tasks.parked_tasks.tick()
    assert (await scrape(world)).value("queue_oldest_seconds") > 2_000, "there is room, and its agent does not take it"
    await world.kernel.alerts.check()
    assert [alert["message"][:30] for alert in await alerts(world, "queue")] == ["2 tasks wait in the queue, the"]
    assert {task["task_id"] for task in await claim(world, agent)} == {parked, free}
