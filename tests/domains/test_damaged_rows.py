"""Rows whose JSON was damaged by hand: each is set aside with an error that says so, and the rest goes on."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.domains.webhooks.dispatcher import UNREADABLE
from tests.conftest import World
from tests.domains.messaging.conftest import Post, task
from tests.domains.schedules.test_schedules import create, runs
from tests.domains.steps.test_steps import Attempt, begin_attempt
from tests.domains.steps.test_waits import status, suspend, wait
from tests.domains.webhooks.conftest import Hooks, hooks, receiver
from tests.patience import soon
from tests.requirements import requirement

__all__ = ["hooks", "receiver"]  # fixtures
KEYS = {
    "tasks": "task_id",
    "schedules": "name",
    "atp_messages": "message_id",
    "webhook_subscriptions": "subscription_id",
}


async def damage(world: World, key: str, column: str, table: str = "tasks", text: str = '{"limit": {') -> None:
    sql = Sql(f"update {table} set {column} = :text where {KEYS[table]} = :key")
    assert await world.kernel.infra.db.write(lambda tx: tx.run(sql, text=text, key=key)) == 1


async def begin(world: World, name: str, **fields: Any) -> Attempt:
    fields |= {"required_capabilities": [name]}
    return await begin_attempt(world, name=name, capabilities=[name], task=fields)


async def claimed(world: World, agent: str) -> list[str]:
    answer = await world.admin.post(f"/api/v1/agents/{agent}/claims", json={"max": 10})
    assert answer.status_code == 200, answer.text
    return [task["task_id"] for task in answer.json()["tasks"]]


async def is_set_aside(world: World, task_id: str, expected: str = "failed") -> None:
    task = await world.task(task_id)
    assert (task["status"], task["error"]["code"]) == (expected, "RECORD_CORRUPT")
    assert task_id in task["error"]["message"]
    events = await world.events(task_id)
    kinds = [event["event_type"] for event in events]
    end = kinds.index(f"task_{expected}")
    assert kinds[end + 1] == "learning_skipped"
    assert events[end]["metadata"]["error"]["code"] == "RECORD_CORRUPT"


@requirement("tasks.damaged-rows")
@pytest.mark.parametrize("column", ["metadata", "required_capabilities", "input"])
async def test_a_damaged_task_fails_and_those_behind_it_are_claimed(world: World, column: str) -> None:
    agent = await world.register()
    tasks = [await world.submit() for _ in range(3)]
    await damage(world, tasks[0], column)
    assert await claimed(world, agent) == tasks[1:]
    await is_set_aside(world, tasks[0])
    trust = await world.admin.get(f"/api/v1/registry/agents/{agent}")
    assert trust.json()["trust_score"] is None  # nothing was learned
    # What it would run with is not known.
    assert (await world.admin.post(f"/api/v1/tasks/{tasks[0]}/retry")).status_code == 409
    counts = await world.admin.get("/api/v1/tasks", params={"status": "failed"})
    assert [task["task_id"] for task in counts.json()["tasks"]] == [tasks[0]]


@requirement("tasks.damaged-rows")
async def test_a_refill_from_the_rows_sets_a_damaged_task_aside(world: World) -> None:
    agent = await world.register()
    tasks = [await world.submit() for _ in range(2)]
    await damage(world, tasks[0], "metadata")
    dispatcher = world.kernel.tasks.dispatcher
    if hasattr(dispatcher, "_queues"):  # as in a process that has just started
        for task_id in tasks:
            dispatcher.stop("default", task_id, None)
    await world.kernel.tasks.reconciler.tick(0)
    assert await claimed(world, agent) == tasks[1:]
    await is_set_aside(world, tasks[0])


@requirement("tasks.damaged-rows")
async def test_damaged_tasks_that_run_or_wait_stop_no_repair_and_no_wait_of_others(world: World) -> None:
    running = [await begin(world, f"run-{n}") for n in range(2)]
    waiting = [await begin(world, f"wait-{n}") for n in range(2)]
    for attempt in waiting:
        await wait(attempt, "sleep", seconds=1)
        await suspend(attempt, "sleep")
    await damage(world, running[0].task_id, "metadata")
    await damage(world, waiting[0].task_id, "required_capabilities")
    world.clock.advance(seconds=60)
    await world.kernel.tasks.wakeups.tick()
    await world.kernel.tasks.reconciler.tick(0)
    await is_set_aside(world, running[0].task_id)
    await is_set_aside(world, waiting[0].task_id, "aborted")
    assert [await status(attempt) for attempt in (running[1], waiting[1])] == ["queued", "queued"]


@requirement("tasks.damaged-rows")
async def test_a_damaged_result_of_a_child_ends_the_wait_for_it_as_failed(world: World) -> None:
    parent = await begin(world, "parent")
    child = await begin(world, "child", metadata={"parent_task_id": parent.task_id})
    await wait(parent, "child", child_task_id=child.task_id)
    await suspend(parent, "child")
    world.kernel.infra.hub.listeners.clear()  # only the rows say that it has ended
    assert (await child.post("complete", result="done")).status_code == 200
    await damage(world, child.task_id, "result")
    await world.kernel.tasks.wakeups.tick()
    assert await status(parent) == "queued"
    # It stays as it is, and says so to those who read it.
    answer = await world.admin.get(f"/api/v1/tasks/{child.task_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "RECORD_CORRUPT")


@requirement("schedules.damaged-rows")
async def test_a_damaged_schedule_is_paused_until_its_task_is_set(world: World) -> None:
    await world.register()
    await create(world, name="bad")
    await create(world, name="good")
    await damage(world, "bad", "task", "schedules")
    listed = (await world.admin.get("/api/v1/schedules")).json()["schedules"]
    assert [(one["name"], one["type"]) for one in listed] == [("bad", "malformed"), ("good", "echo")]
    assert (await world.admin.get("/api/v1/schedules/bad")).status_code == 200
    world.clock.advance(seconds=60)
    await world.kernel.schedules.scheduler.tick()
    assert len(await runs(world, "good")) == 1
    listed = (await world.admin.get("/api/v1/schedules")).json()["schedules"]
    bad = next(one for one in listed if one["name"] == "bad")
    assert bad["paused"] is True
    assert "malformed" in bad["paused_reason"]
    path = "/api/v1/schedules/bad"
    assert (await world.admin.patch(path, json={"paused": False})).status_code == 409
    assert (await world.admin.post(f"{path}/run")).status_code == 409
    fixed: dict[str, Any] = {"task": {"type": "echo", "input": "x", "required_capabilities": ["echo"]}}
    mended = (await world.admin.patch(path, json=fixed)).json()
    assert (mended["paused"], mended["paused_reason"], mended["next_at"] is None) == (False, None, False)


@requirement("webhooks.damaged-rows")
async def test_a_damaged_event_fails_its_delivery_and_the_next_are_sent(hooks: Hooks) -> None:
    world = hooks.world
    webhook = await hooks.subscribe("task.submitted")
    await world.register()
    hold = Sql("update webhook_subscriptions set hold_until = :until")
    db = world.kernel.infra.db
    await db.write(lambda tx: tx.run(hold, until=1 << 60))
    tasks = [await world.submit() for _ in range(2)]
    spoil = Sql("update events set metadata = '{' where task_id = :task_id and event_type = 'prompt_received'")
    await db.write(lambda tx: tx.run(spoil, task_id=tasks[0]))
    await db.write(lambda tx: tx.run(hold, until=0))
    await world.kernel.webhooks.dispatcher.poll()
    await hooks.wait_for_delivery(webhook["id"], status="delivered", attempts=1)
    failed = (await hooks.deliveries(webhook["id"]))[-1]
    assert (failed["status"], failed["error"]) == ("failed", UNREADABLE)


@requirement("webhooks.damaged-rows")
async def test_a_damaged_webhook_is_disabled_until_its_events_are_set(hooks: Hooks) -> None:
    world, path = hooks.world, "/api/v1/webhooks"
    bad, good = await hooks.subscribe("task.submitted"), await hooks.subscribe("task.submitted")
    await damage(world, bad["id"], "events", "webhook_subscriptions")
    await world.register()
    await world.submit()
    await hooks.wait_for_delivery(good["id"], status="delivered", attempts=1)
    await soon(lambda: is_disabled(world, bad["id"]))
    fixed = {"events": ["task.submitted"], "enabled": True}
    assert (await world.admin.patch(f"{path}/{bad['id']}", json=fixed)).status_code == 200


@requirement("webhooks.damaged-rows")
@pytest.mark.only("postgresql", reason="one process reads its webhooks again only when it changes them")
async def test_a_damaged_webhook_is_disabled_although_nothing_happens(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("task.submitted")
    await damage(hooks.world, webhook["id"], "events", "webhook_subscriptions")
    await soon(lambda: is_disabled(hooks.world, webhook["id"]))


async def is_disabled(world: World, webhook: str) -> bool:
    answer = await world.admin.get(f"/api/v1/webhooks/{webhook}")
    return answer.status_code == 200 and "malformed" in answer.json()["disabled_reason"]


@requirement("atp.damaged-rows")
async def test_a_damaged_message_fails_and_those_behind_it_are_executed(world: World) -> None:
    post = Post(world)
    later = {**task(), "delay_seconds": 60}
    bad, good = [await post.send(later, "kernel", "schedule") for _ in range(2)]
    await damage(world, bad, "header", "atp_messages")
    world.clock.advance(seconds=61)
    await post.over(good)
    answer = await post.ask(f"message/{bad}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "RECORD_CORRUPT")
    find = Sql("select status, response from atp_messages where message_id = :message_id")
    row = await world.kernel.infra.db.read(lambda tx: tx.row(find, message_id=bad))
    assert row is not None
    assert row[0] == "failed"
    assert "RECORD_CORRUPT" in row[1]
