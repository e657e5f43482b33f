"""A cancelled task takes its subtasks with it, however many and however deep."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from stentor.domains.steps import wakeups
from stentor.domains.tasks import store
from stentor.domains.tasks.queues import subtask_store
from stentor.domains.tasks.store import TaskRef
from tests.conftest import MakeWorld, World
from tests.domains.steps.test_steps import Attempt, begin_attempt, refused
from tests.domains.steps.test_waits import status, suspend, wait
from tests.patience import soon
from tests.requirements import requirement

COUNT_NOTED = Sql("select count(*) from cancelled_parents")


async def child_of(world: World, parent: str, **fields: Any) -> str:
    return await world.submit(metadata={"parent_task_id": parent}, **fields)


async def claimed(world: World, task_id: str) -> Attempt:
    claim = await world.claim((await world.task(task_id))["assigned_agent"])
    assert claim["task_id"] == task_id
    return Attempt(world, task_id, claim["epoch"])


async def cancel(world: World, task_id: str) -> None:
    answer = await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")
    assert answer.status_code == 200, answer.text


async def become(world: World, expected: str, *task_ids: str) -> None:
    """Look, as the background job does, until the tasks have a status."""

    async def have_it() -> bool:
        await world.kernel.tasks.wakeups.tick()
        return all([(await world.task(task_id))["status"] == expected for task_id in task_ids])

    await soon(have_it)


async def nothing_is_noted(world: World) -> None:
    async def is_empty() -> bool:
        await world.kernel.tasks.wakeups.tick()
        return await world.kernel.infra.db.read(lambda tx: tx.rows(COUNT_NOTED)) == [(0,)]

    await soon(is_empty)


@requirement("steps.children")
async def test_a_cancelled_task_takes_all_subtasks_with_it_also_those_it_does_not_wait_for(world: World) -> None:
    attempt = await begin_attempt(world)
    done = await child_of(world, attempt.task_id)
    await (await claimed(world, done)).post("complete", result=1)
    running = await claimed(world, await child_of(world, attempt.task_id))
    leaf = await child_of(world, running.task_id)
    sleeping = await claimed(world, leaf)
    await wait(sleeping, "sleep", seconds=3600)
    assert await suspend(sleeping, "sleep") == "waiting"
    leaf_of_leaf = await child_of(world, leaf)
    of_done = await child_of(world, done)
    queued = await child_of(world, attempt.task_id)
    stranger = await world.submit()
    later = await child_of(world, attempt.task_id, after=[stranger])
    await cancel(world, attempt.task_id)
    await become(world, "cancelled", running.task_id, leaf, leaf_of_leaf, queued, later)
    await nothing_is_noted(world)
    refused(await running.post("complete", result=1), 409, "LEASE_LOST")
    assert (await world.task(done))["status"] == "completed"
    for other in (stranger, of_done):
        assert (await world.task(other))["status"] == "queued", "the child of a completed task goes on"
    for task_id, parent in ((queued, attempt.task_id), (leaf_of_leaf, leaf)):
        (event,) = [each for each in await world.events(task_id) if each["event_type"] == "task_cancelled"]
        assert event["message"] == "Cancelled with its parent."
        assert event["metadata"]["parent_task_id"] == parent


@requirement("steps.children")
@pytest.mark.parametrize("how", ["complete", "fail"])
async def test_the_subtasks_of_a_task_that_ends_otherwise_go_on(world: World, how: str) -> None:
    attempt = await begin_attempt(world)
    child = await child_of(world, attempt.task_id)
    answer = await attempt.post(how, **({"result": 1} if how == "complete" else {"error": {"message": "no"}}))
    assert answer.status_code == 200, answer.text
    await nothing_is_noted(world)
    assert (await world.task(child))["status"] == "queued"


@requirement("steps.children")
async def test_a_subtask_that_is_retried_after_the_cancel_goes_on(world: World) -> None:
    attempt = await begin_attempt(world)
    child = await claimed(world, await child_of(world, attempt.task_id))
    await child.fail()
    await cancel(world, attempt.task_id)
    await nothing_is_noted(world)
    assert (await world.admin.post(f"/api/v1/tasks/{child.task_id}/retry")).status_code == 202
    await world.kernel.tasks.wakeups.tick()
    assert await status(child) == "queued"


@requirement("steps.children")
async def test_many_subtasks_are_cancelled_a_part_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "BATCH_SIZE", 2)
    monkeypatch.setattr(wakeups, "SUBTASKS", 5)
    attempt = await begin_attempt(world)
    children = [await child_of(world, attempt.task_id) for _ in range(12)]
    leaves = [await child_of(world, child) for child in children]
    lengths, list_open = list[int](), subtask_store.list_open

    def counted(*args: Any) -> Any:
        found, *rest = list_open(*args)
        lengths.append(len(found))
        return found, *rest

    monkeypatch.setattr(subtask_store, "list_open", counted)
    await cancel(world, attempt.task_id)
    await become(world, "cancelled", *children, *leaves)
    await nothing_is_noted(world)
    assert max(lengths) == 5


@requirement("steps.children")
async def test_a_cancelled_task_says_how_many_subtasks_are_left_and_reads_none_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = await begin_attempt(world)
    children = [await child_of(world, attempt.task_id) for _ in range(12)]
    list_parents, db = subtask_store.list_parents, world.kernel.infra.db

    def look(tx: Tx) -> list[str]:
        found, moved, over = subtask_store.list_open(tx, list_parents(tx, 10), 5)
        subtask_store.save_positions(tx, moved, over)
        return [task_id for _, task_id, _ in found]

    with monkeypatch.context() as patch:
        patch.setattr(subtask_store, "list_parents", lambda tx, limit: [])
        await cancel(world, attempt.task_id)
        for first, left in ((0, 12), (5, 7), (10, 2)):
            task = await world.task(attempt.task_id)
            assert task["notice"] == f"Its subtasks are being cancelled: {left} left, without theirs."
            assert task["notice_code"] == "CANCELLING_SUBTASKS"
            assert await db.write(look) == children[first : first + 5]
        assert (await world.task(attempt.task_id))["notice"] is None
        assert await db.write(look) == children[:5], "what is still open is read again before the task is forgotten"
    await become(world, "cancelled", *children)
    await nothing_is_noted(world)
    assert (await world.task(attempt.task_id))["notice"] is None


@requirement("steps.children")
async def test_what_a_process_did_not_come_to_another_one_does_and_two_do_it_once(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, second = await make_world(), await make_world()
    attempt = await begin_attempt(world)
    children = [await child_of(world, attempt.task_id) for _ in range(10)]
    leaves = [await child_of(world, child) for child in children]
    with monkeypatch.context() as patch:
        patch.setattr(subtask_store, "list_parents", lambda tx, limit: [])
        await cancel(world, attempt.task_id)
        await world.kernel.tasks.wakeups.tick()
        assert (await world.task(children[0]))["status"] == "queued"

    async def are_cancelled() -> bool:
        await asyncio.gather(world.kernel.tasks.wakeups.tick(), second.kernel.tasks.wakeups.tick())
        return all([(await world.task(each))["status"] == "cancelled" for each in (*children, *leaves)])

    await soon(are_cancelled)
    for task_id in (*children, *leaves):
        assert [each["event_type"] for each in await world.events(task_id)].count("task_cancelled") == 1
    await nothing_is_noted(world)


@requirement("steps.children")
async def test_a_subtask_that_changes_at_this_moment_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = await begin_attempt(world)
    children = [await child_of(world, attempt.task_id) for _ in range(3)]
    end, busy = store.end_all_without_learning, True

    def end_unless_busy(tx: Tx, heads: list[Any], *args: Any) -> set[TaskRef]:
        return end(tx, [head for head in heads if not (busy and head[0].task_id == children[0])], *args)

    monkeypatch.setattr(store, "end_all_without_learning", end_unless_busy)
    await cancel(world, attempt.task_id)
    await become(world, "cancelled", *children[1:])
    assert (await world.task(children[0]))["status"] == "queued"
    assert "task_cancelled" not in [event["event_type"] for event in await world.events(children[0])]
    busy = False
    await become(world, "cancelled", children[0])
    await nothing_is_noted(world)


@requirement("steps.children")
async def test_a_cancel_during_a_burst_of_submissions_leaves_none_running(make_world: MakeWorld) -> None:
    world = await make_world()
    attempt = await begin_attempt(world)
    second = await make_world()  # only now, so that it knows the agent
    middle = [await child_of(world, attempt.task_id) for _ in range(3)]
    answers = list[Any]()

    async def start(here: World, parent: str) -> None:
        body = {"type": "echo", "input": 1, "required_capabilities": ["echo"], "metadata": {"parent_task_id": parent}}
        answers.append(await here.admin.post("/api/v1/tasks", json=body))

    async def cancel_soon() -> None:
        await soon(lambda: len(answers) >= 5)
        await cancel(second, attempt.task_id)

    parents = [attempt.task_id, *middle]
    starts = [start(world if number % 2 else second, parents[number % 4]) for number in range(60)]
    await asyncio.gather(*starts, cancel_soon())
    stored = [answer.json()["task_id"] for answer in answers if answer.status_code == 202]
    for answer in answers:
        if answer.status_code != 202:
            refused(answer, 409, "PARENT_CANCELLED")
    await become(world, "cancelled", *middle, *stored)
    await nothing_is_noted(world)
