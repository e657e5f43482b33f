"""Tasks that wait: for a time, a signal, the answer of a person, or a child. Time is the fixed clock's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stentor.core import ids
from stentor.core.clock import SECOND, format_iso
from stentor.core.db import NO_LOCKS, Sql, Tx
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StoreUnavailable
from stentor.domains.steps import store, wakeups
from stentor.domains.steps.store import OpenStep
from stentor.domains.steps.wait_endings import BATCH_SIZE
from stentor.domains.steps.waits import WaitService
from stentor.domains.tasks import store as tasks
from tests.conftest import World
from tests.domains.steps.test_steps import Attempt, begin_attempt, refused
from tests.patience import soon
from tests.requirements import requirement

COUNT_CHECKS = Sql("select count(*) from child_checks")


async def wait(attempt: Attempt, kind: str, **fields: Any) -> Any:
    return await attempt.post("waits", **{"key": kind, "name": kind, "kind": kind, **fields})


async def suspend(attempt: Attempt, *keys: str) -> str:
    answer = await attempt.post("suspend", keys=list(keys))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["status"])


async def status(attempt: Attempt) -> str:
    return str((await attempt.world.task(attempt.task_id))["status"])


async def resume(attempt: Attempt) -> Attempt:
    """Claim the task again."""
    agent = (await attempt.world.task(attempt.task_id))["assigned_agent"]
    claim = await attempt.world.claim(agent)
    assert claim["task_id"] == attempt.task_id
    return Attempt(attempt.world, attempt.task_id, claim["epoch"])


SLEEP_EVENTS = ("step_started", "task_waiting", "step_completed", "task_resumed")


@requirement("steps.waits", "steps.wait-timeout")
async def test_a_sleeping_task_is_held_by_nobody_and_wakes_once(world: World) -> None:
    attempt = await begin_attempt(world)
    assert (await wait(attempt, "sleep", seconds=3600)).json()["state"] == "started"
    assert await suspend(attempt, "sleep") == "waiting"
    assert await suspend(attempt, "sleep") == "waiting"  # a repeated request
    refused(await attempt.post("heartbeat"), 409, "LEASE_LOST")
    world.clock.advance(seconds=3599)
    await world.kernel.tasks.wakeups.tick()
    await world.kernel.tasks.reconciler.tick(0)
    assert await status(attempt) == "waiting"
    world.clock.advance(seconds=2)
    await asyncio.gather(world.kernel.tasks.wakeups.tick(), world.kernel.tasks.wakeups.tick())
    assert await status(attempt) == "queued"
    second = await resume(attempt)
    again = (await wait(second, "sleep", seconds=3600)).json()
    assert (again["state"], again["recorded"]) == ("completed", False)
    events = await world.events(attempt.task_id)
    kinds = [event["event_type"] for event in events]
    assert kinds.count("task_waiting") == kinds.count("task_resumed") == 1
    # A sleep without a name of its own has that of its kind, which is not said twice.
    assert [event["message"] for event in events if event["event_type"] in SLEEP_EVENTS] == [
        "Sleeps.",
        "Waits for the end of its sleep.",
        "Sleep completed.",
        "Resumes: sleep has ended.",
    ]


@requirement("steps.due")
async def test_all_that_are_due_wake_once_however_many(world: World) -> None:
    agent, count = await world.register(), BATCH_SIZE + 7
    ids = [await world.submit() for _ in range(count)]
    for number, task_id in enumerate(ids):
        attempt = Attempt(world, task_id, (await world.claim(agent))["epoch"])
        assert attempt.epoch == 1
        await wait(attempt, "sleep", seconds=60 + number % 3)
        await suspend(attempt, "sleep")
    world.clock.advance(seconds=59)
    assert await world.kernel.tasks.wakeups.tick() == pytest.approx(1, abs=0.01)
    world.clock.advance(seconds=10)
    await asyncio.gather(world.kernel.tasks.wakeups.tick(), world.kernel.tasks.wakeups.tick())
    listed = (await world.admin.get("/api/v1/tasks", params={"status": "queued", "limit": 1})).json()
    assert listed["total"] == count
    for task_id in (ids[0], ids[-1]):
        kinds = [event["event_type"] for event in await world.events(task_id)]
        assert kinds[-2:] == ["step_completed", "task_resumed"]
        assert kinds.count("task_resumed") == 1
    claimed = {(await world.claim(agent))["task_id"] for _ in range(count)}
    assert claimed == set(ids)


@requirement("steps.due")
async def test_a_wait_that_ends_before_the_next_look_is_looked_at_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests = list[float]()

    async def until_woken(event: asyncio.Event, _seconds: float, *, at_most: float) -> None:
        rests.append(at_most)
        await event.wait()

    monkeypatch.setattr(wakeups, "wait_until_tick", until_woken)
    attempt, cancelled = await begin_attempt(world), await world.submit()
    assert (await world.admin.post(f"/api/v1/tasks/{cancelled}/cancel")).status_code == 200
    await soon(lambda: rests)  # the background job has looked since
    await wait(attempt, "sleep", seconds=0.75)
    await soon(lambda: rests[-1] == pytest.approx(0.75))
    await world.submit(start_at=format_iso(world.clock.now() + SECOND // 2))
    await soon(lambda: rests[-1] == pytest.approx(0.5))
    await world.submit(deadline=format_iso(world.clock.now() + SECOND // 4))
    await soon(lambda: rests[-1] == pytest.approx(0.25))


@requirement("steps.due")
async def test_waits_that_begin_during_a_look_make_it_look_again_when_they_are_due_and_not_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = list[asyncio.Event]()

    async def until_woken(event: asyncio.Event, _seconds: float, *, at_most: float) -> None:
        waiting.append(event)
        await event.wait()

    monkeypatch.setattr(wakeups, "wait_until_tick", until_woken)
    await soon(lambda: waiting)  # from now on only this test looks
    scheduler, now = world.kernel.tasks.wakeups, world.clock.now()
    look = asyncio.create_task(scheduler.tick())
    await asyncio.sleep(0)
    for seconds in (3600, 0.25, 60):
        scheduler.expect(now + int(seconds * SECOND))
    assert not waiting[0].is_set()
    assert await look == pytest.approx(0.25)
    assert await scheduler.tick() == 1.0


@requirement("steps.waits")
async def test_waking_does_not_count_as_a_lost_attempt(world: World) -> None:
    attempt = await begin_attempt(world)
    for number in range(8):
        await wait(attempt, "sleep", key=f"nap {number}", name="nap", seconds=1)
        await suspend(attempt, f"nap {number}")
        world.clock.advance(seconds=2)
        await world.kernel.tasks.wakeups.tick()
        attempt = await resume(attempt)
    world.clock.advance(seconds=60)
    await world.kernel.tasks.reconciler.tick(0)
    assert await status(attempt) == "queued"  # its first lost lease, not its ninth


@requirement("steps.waits")
async def test_a_signal_wakes_its_task_or_waits_for_it(world: World) -> None:
    attempt = await begin_attempt(world)
    path = f"/api/v1/tasks/{attempt.task_id}/signals"
    early = await world.admin.post(path, json={"name": "paid", "value": {"eur": 1}})
    assert early.json()["received"] is False
    first = (await wait(attempt, "signal", signal="paid")).json()
    assert (first["state"], first["value"]) == ("completed", {"eur": 1})
    assert (await wait(attempt, "signal", key="two", signal="paid")).json()["state"] == "started"
    assert await suspend(attempt, "two") == "waiting"
    assert (await world.admin.post(path, json={"name": "other"})).json()["received"] is False
    assert await status(attempt) == "waiting"
    assert (await world.admin.post(path, json={"name": "paid", "value": 2})).json()["received"] is True
    assert await status(attempt) == "queued"
    second = await resume(attempt)
    assert (await wait(second, "signal", key="two", signal="paid")).json()["value"] == 2
    await second.post("complete", result=1)
    refused(await world.admin.post(path, json={"name": "paid"}), 409, "CONFLICT")


@requirement("steps.waits")
async def test_a_failed_task_keeps_a_signal_until_a_person_retries_it(world: World) -> None:
    attempt = await begin_attempt(world)
    task = f"/api/v1/tasks/{attempt.task_id}"
    await wait(attempt, "signal", key="first", signal="paid", seconds=60)
    await attempt.post("fail", error={"message": "a bug"})
    ended = await world.admin.post(f"{task}/signals", json={"name": "paid", "value": 1})
    kept = await world.admin.post(f"{task}/signals", json={"name": "paid", "value": 2})
    assert (ended.json()["received"], kept.json()["received"]) == (True, False)
    assert await status(attempt) == "failed"
    assert (await world.admin.post(f"{task}/retry")).status_code == 202
    second = await resume(attempt)
    assert (await wait(second, "signal", key="first", signal="paid", seconds=60)).json()["value"] == 1
    assert (await wait(second, "signal", key="second", signal="paid")).json()["value"] == 2
    await world.admin.post(f"{task}/cancel")
    refused(await world.admin.post(f"{task}/signals", json={"name": "paid"}), 409, "CONFLICT")


@requirement("steps.waits")
async def test_what_ends_between_wait_and_suspension_is_not_missed(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "signal", signal="paid")
    await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/signals", json={"name": "paid"})
    assert await status(attempt) == "executing"
    assert await suspend(attempt, "signal") == "queued"


@requirement("steps.wait-timeout")
@pytest.mark.parametrize(("kind", "fields"), [("signal", {"signal": "paid"}), ("question", {"question": "Well?"})])
async def test_a_wait_ends_by_itself_after_its_time(world: World, kind: str, fields: dict[str, Any]) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, kind, seconds=60, **fields)
    await suspend(attempt, kind)
    world.clock.advance(seconds=61)
    await world.kernel.tasks.wakeups.tick()
    second = await resume(attempt)
    ended = (await wait(second, kind, seconds=60, **fields)).json()
    assert (ended["state"], ended["error"]["type"]) == ("failed", "WaitTimeout")
    assert (await world.admin.get("/api/v1/decisions")).json()["steps"] == []


@requirement("steps.questions")
async def test_questions_and_unknown_effects_are_listed_in_pages(world: World) -> None:
    attempt = await begin_attempt(world)
    for key in "abc":
        await wait(attempt, "question", key=key, question="Well?")
    await suspend(attempt, "a", "b", "c")
    keys, cursor = list[str](), ""
    while cursor is not None:
        page = (
            await world.admin.get(
                "/api/v1/decisions", params={"limit": 2, "cursor": cursor} if cursor else {"limit": 2}
            )
        ).json()
        keys += [step["key"] for step in page["steps"]]
        cursor = page["next_cursor"]
    assert keys == ["a", "b", "c"]
    refused(await world.admin.get("/api/v1/decisions", params={"cursor": "x"}), 400, "INVALID_REQUEST")


@requirement("steps.questions")
async def test_a_question_is_answered_once_by_a_person_with_one_of_its_options(world: World) -> None:
    attempt = await begin_attempt(world, key_name="BOSS")
    await wait(attempt, "question", question="Pay 500?", options=["yes", "no"])
    await suspend(attempt, "question")
    listed = (await world.admin.get("/api/v1/decisions")).json()["steps"]
    assert [(step["waits_for"], step["options"], step["title"]) for step in listed] == [
        ("Pay 500?", ["yes", "no"], "hello")
    ]
    path = f"/api/v1/tasks/{attempt.task_id}/steps/question/answer"
    refused(await world.clients["BOSS"].post(path, json={"value": "yes"}), 403, "FORBIDDEN")
    refused(await world.clients["WRITER"].post(path, json={"value": "yes"}), 403, "FORBIDDEN")
    refused(await world.clients["OTHER"].post(path, json={"value": "yes"}), 404, "NOT_FOUND")
    refused(await world.admin.post(path, json={"value": "perhaps"}), 400, "INVALID_REQUEST")
    assert (await world.admin.post(path, json={"value": "no"})).status_code == 200
    refused(await world.admin.post(path, json={"value": "yes"}), 409, "CONFLICT")
    second = await resume(attempt)
    assert (await wait(second, "question", question="Pay 500?", options=["yes", "no"])).json()["value"] == "no"
    answered = [event for event in await world.events(attempt.task_id) if event["metadata"].get("by") == "admin"]
    assert [event["event_type"] for event in answered][-1] == "step_completed"


@requirement("steps.children")
async def test_a_task_goes_on_when_its_child_has_ended(world: World) -> None:
    attempt = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": attempt.task_id})
    stranger = await world.submit()
    refused(await wait(attempt, "child", child_task_id=stranger), 400, "INVALID_REQUEST")
    assert (await wait(attempt, "child", child_task_id=child)).json()["state"] == "started"
    await suspend(attempt, "child")
    await world.kernel.tasks.wakeups.tick()
    assert await status(attempt) == "waiting"
    agent = (await world.task(child))["assigned_agent"]
    claim = await world.claim(agent)
    await Attempt(world, child, claim["epoch"]).post("fail", error={"message": "no"})
    await world.kernel.tasks.wakeups.tick()
    assert await status(attempt) == "queued"


async def begin_beside_ended_child(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Attempt, str]:
    """Return an attempt and its child, which has ended; a wait for it does not notice that yet.

    So the transaction read the child before its end, and commits after it, as on PostgreSQL in another process.
    """
    attempt = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": attempt.task_id})
    claim = await world.claim((await world.task(child))["assigned_agent"])
    await Attempt(world, child, claim["epoch"]).post("complete", result=1)
    await world.kernel.tasks.wakeups.tick()
    monkeypatch.setattr(WaitService, "_find_outcome", lambda *args: None)
    return attempt, child


@requirement("steps.children")
async def test_a_child_that_ends_while_the_wait_for_it_begins_wakes_its_parent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, child = await begin_beside_ended_child(world, monkeypatch)
    assert (await wait(attempt, "child", child_task_id=child)).json()["state"] == "started"
    await suspend(attempt, "child")
    await world.kernel.tasks.wakeups.tick()
    assert (await world.task(attempt.task_id))["status"] == "queued"


@requirement("steps.children")
async def test_an_outage_does_not_forget_a_wait_that_began_while_its_child_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, child = await begin_beside_ended_child(world, monkeypatch)

    def fail(*args: Any) -> list[OpenStep]:
        raise StoreUnavailable("The database is away.")

    with monkeypatch.context() as patch:
        patch.setattr(store, "list_waits_for", fail)
        assert (await wait(attempt, "child", child_task_id=child)).json()["state"] == "started"
        await suspend(attempt, "child")
        with pytest.raises(StoreUnavailable):
            await world.kernel.tasks.wakeups.tick()
    await world.kernel.tasks.wakeups.tick()
    assert await status(attempt) == "queued"


@requirement("steps.children")
async def test_a_child_that_ended_in_another_process_wakes_its_parent(world: World) -> None:
    attempt = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": attempt.task_id})
    claim = await world.claim((await world.task(child))["assigned_agent"])
    await wait(attempt, "child", child_task_id=child)
    await suspend(attempt, "child")
    await world.kernel.tasks.wakeups.tick()  # of the wait this process knew, and has looked at it now
    db = world.kernel.infra.db

    def end_it(tx: Tx) -> bool:
        event, epoch = ids.new_id(), claim["epoch"]
        return tasks.finish(
            tx,
            "default",
            child,
            epoch,
            status="completed",
            outcome_class="success",
            learning_eligible=False,
            learning_pending=False,
            head_id=event,
            result=1,
        )

    # Without the events that this process would be told of, as after a crash of the process that ended it.
    assert await db.write(end_it)

    async def has_noticed() -> bool:
        await world.kernel.tasks.wakeups.tick()
        return await status(attempt) == "queued"

    await soon(has_noticed)

    # What was noted is forgotten; the wait itself is looked at once more after a minute.
    async def are_left(count: int) -> bool:
        await world.kernel.tasks.wakeups.tick()
        return await db.read(lambda tx: tx.rows(COUNT_CHECKS)) == [(count,)]

    await soon(lambda: are_left(1))
    world.clock.advance(seconds=61)
    await soon(lambda: are_left(0))


@requirement("steps.children")
async def test_a_cancelled_task_cancels_the_child_that_it_waits_for(world: World) -> None:
    attempt = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": attempt.task_id})
    await wait(attempt, "child", child_task_id=child)
    await suspend(attempt, "child")
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/cancel")).status_code == 200
    await world.kernel.tasks.wakeups.tick()
    assert (await world.task(child))["status"] == "cancelled"
    assert await status(attempt) == "cancelled"


@requirement("steps.children")
async def test_a_task_cannot_wait_for_a_child_that_begins_only_after_it(world: World) -> None:
    attempt = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": attempt.task_id}, after=[attempt.task_id])
    answer = await wait(attempt, "child", child_task_id=child)
    refused(answer, 400, "INVALID_REQUEST")
    assert "without `after`" in answer.text


@requirement("steps.children")
async def test_a_cancel_reads_the_waits_for_many_children_a_batch_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "BATCH_SIZE", 2)
    attempt = await begin_attempt(world)
    for number in range(6):
        child = await world.submit(metadata={"parent_task_id": attempt.task_id})
        await wait(attempt, "child", key=str(number), child_task_id=child)
    lengths, list_orphans_of = list[int](), store.list_orphans_of

    def counted(*args: Any) -> list[OpenStep]:
        found = list_orphans_of(*args)
        lengths.append(len(found))
        return found

    monkeypatch.setattr(store, "list_orphans_of", counted)
    await world.kernel.tasks.wakeups.tick()
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/cancel")).status_code == 200
    await world.kernel.tasks.wakeups.tick()

    async def are_all_cancelled() -> bool:
        return bool((await world.admin.get("/api/v1/tasks?status=cancelled")).json()["total"] == 7)

    await soon(are_all_cancelled)
    # None if the background job has found them.
    assert max(lengths, default=0) <= 2


@requirement("steps.children")
@pytest.mark.parametrize("how", ["fail", "cancel"])
async def test_a_child_whose_parent_is_gone_ends_and_wakes_nobody(world: World, how: str) -> None:
    attempt = await begin_attempt(world)
    child = await world.submit(metadata={"parent_task_id": attempt.task_id})
    await wait(attempt, "child", child_task_id=child)
    claim = await world.claim((await world.task(child))["assigned_agent"])
    if how == "fail":
        await attempt.fail()
    else:
        assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/cancel")).status_code == 200
    await world.kernel.tasks.wakeups.tick()
    answer = await Attempt(world, child, claim["epoch"]).post("complete", result=1)
    assert answer.status_code == (200 if how == "fail" else 409), answer.text
    await world.kernel.tasks.wakeups.tick()
    assert (await world.task(child))["status"] == ("completed" if how == "fail" else "cancelled")
    assert await status(attempt) == ("failed" if how == "fail" else "cancelled")


@requirement("steps.children")
async def test_a_cancelled_task_gets_no_children_and_one_that_it_has_is_the_same_one_still(world: World) -> None:
    attempt = await begin_attempt(world)
    body: dict[str, Any] = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    body["metadata"] = {"parent_task_id": attempt.task_id}
    first = await world.submit(**body, id="first")
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/cancel")).status_code == 200
    late = await world.admin.post("/api/v1/tasks", json={**body, "id": "late"})
    refused(late, 409, "PARENT_CANCELLED")
    assert (await world.admin.get("/api/v1/tasks/late")).status_code == 404
    # The response to the first submission was lost: the child is there already.
    assert (await world.admin.post("/api/v1/tasks", json={**body, "id": "first"})).json()["task_id"] == first


@requirement("tasks.subtasks")
@pytest.mark.parametrize("key", ["ADMIN", "BOB", "OTHER"])
async def test_the_parent_of_a_task_is_one_that_the_submitter_sees(world: World, key: str) -> None:
    await world.register()
    foreign = await world.submit()
    body = {"id": "itself", "type": "echo", "input": 1, "required_capabilities": ["echo"]}
    for parent in ("nobody", "itself", *([] if key == "ADMIN" else [foreign])):
        answer = await world.clients[key].post("/api/v1/tasks", json=body | {"metadata": {"parent_task_id": parent}})
        refused(answer, 400, "INVALID_REQUEST")
        assert f"metadata.parent_task_id: there is no task with the id '{parent}'" in answer.text
    assert (await world.admin.get("/api/v1/tasks/itself")).status_code == 404


@requirement("steps.mismatch")
async def test_a_wait_for_something_else_is_told(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "question", question="Pay 5?", options=["yes", "no"])
    refused(await wait(attempt, "question", question="Pay 5000?", options=["yes", "no"]), 409, "STEP_MISMATCH")
    refused(await wait(attempt, "question", question="Pay 5?", options=["yes"]), 409, "STEP_MISMATCH")
    await wait(attempt, "signal", signal="paid")
    refused(await wait(attempt, "signal", signal="cancelled"), 409, "STEP_MISMATCH")
    await wait(attempt, "sleep", seconds=5)
    assert (await wait(attempt, "sleep", seconds=6)).status_code == 200  # it ends when it would have ended


@requirement("steps.waits")
async def test_waits_that_end_together_wake_their_task_once(world: World) -> None:
    attempt = await begin_attempt(world)
    for key in ("a", "b", "c"):
        await wait(attempt, "signal", key=key, signal=key, together="a")
    assert await suspend(attempt, "a", "b", "c") == "waiting"
    path = f"/api/v1/tasks/{attempt.task_id}/signals"
    for name, expected in (("b", "waiting"), ("a", "waiting"), ("c", "queued")):
        await world.admin.post(path, json={"name": name})
        assert await status(attempt) == expected
    second = await resume(attempt)
    assert await suspend(second, "a") == "queued"


@requirement("steps.waits")
async def test_an_error_ends_all_that_is_waited_for_together(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "signal", key="a", signal="a", together="a", seconds=60)
    await wait(attempt, "signal", key="b", signal="b", together="a")
    assert await suspend(attempt, "a", "b") == "waiting"
    world.clock.advance(seconds=61)
    await world.kernel.tasks.wakeups.tick()
    assert await status(attempt) == "queued"


@requirement("steps.waits")
async def test_a_damaged_wait_stops_no_other(world: World) -> None:
    attempts = [await begin_attempt(world, name=f"agent-{n}") for n in range(2)]
    for attempt in attempts:
        await wait(attempt, "sleep", seconds=1)
        await suspend(attempt, "sleep")
    damage = Sql("update task_steps set options = '{' where task_id = :task_id")
    await world.kernel.infra.db.write(lambda tx: tx.run(damage, task_id=attempts[0].task_id))
    world.clock.advance(seconds=2)
    await world.kernel.tasks.wakeups.tick()
    assert [await status(attempt) for attempt in attempts] == ["aborted", "queued"]
    assert (await world.task(attempts[0].task_id))["error"]["code"] == "RECORD_CORRUPT"
    # No look comes back to it.
    due = await world.kernel.infra.db.read(store.next_due_at)
    assert due is None


@requirement("steps.waits")
async def test_a_wait_of_a_cancelled_task_does_not_complete(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "sleep", seconds=1)
    await suspend(attempt, "sleep")
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/cancel")).status_code == 200
    world.clock.advance(seconds=2)
    await world.kernel.tasks.wakeups.tick()
    assert [step["error"]["type"] for step in (await attempt.journal())["steps"]] == ["TaskEnded"]


@requirement("steps.waits")
async def test_only_what_was_begun_can_be_waited_for(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.step("a", 1)
    for key in ("a", "nothing"):
        refused(await attempt.post("suspend", keys=[key]), 409, "STEP_UNKNOWN")
    assert await status(attempt) == "executing"


@requirement("steps.waits")
@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "sleep"},
        {"kind": "sleep", "seconds": -1},
        {"kind": "sleep", "seconds": 1e12},
        {"kind": "sleep", "seconds": 1, "signal": "x"},
        {"kind": "signal"},
        {"kind": "question"},
        {"kind": "question", "question": ""},
        {"kind": "question", "question": "x", "options": []},
        {"kind": "sleep", "seconds": 1, "options": ["x"]},
        {"kind": "child"},
        {"kind": "step"},
    ],
)
async def test_what_is_no_wait_is_refused(world: World, fields: dict[str, Any]) -> None:
    attempt = await begin_attempt(world)
    refused(await attempt.post("waits", key="w", name="w", **fields), 400, "INVALID_REQUEST")
    assert (await attempt.journal())["steps"] == []


@requirement("steps.waits")
async def test_a_wake_without_its_event_does_not_happen(world: World) -> None:
    attempt = await begin_attempt(world)
    await wait(attempt, "sleep", seconds=1)
    await suspend(attempt, "sleep")
    world.clock.advance(seconds=2)
    world.runlog.broken = True
    with pytest.raises(StoreUnavailable):
        await world.kernel.tasks.wakeups.tick()
    # Read before the repair, after which the scheduler may wake it at any moment.
    assert await status(attempt) == "waiting"
    world.runlog.broken = False
    await world.kernel.tasks.wakeups.tick()
    assert await status(attempt) == "queued"


async def test_the_open_steps_of_a_task_are_read_by_an_index_without_those_that_ended(
    world: World, driver: SqliteDriver | PostgresDriver
) -> None:
    is_sqlite = isinstance(driver, SqliteDriver)

    def explain(tx: Tx) -> str:
        if not is_sqlite:
            tx.run(Sql("set local enable_seqscan = off"))  # for which PostgreSQL decides while the table is small
        prefix, task = "explain query plan" if is_sqlite else "explain", {"tenant": "default", "task_id": "a"}
        plan = tx.rows(Sql(f"{prefix} {store._LIST_OPEN.text}"), **task)
        return str(plan + tx.rows(Sql(f"{prefix} {store._HAS_OPEN_TOGETHER.text}"), **task, together="b"))

    assert (await world.kernel.infra.db.write(explain, NO_LOCKS)).count("task_steps_open_of_task") == 2


@requirement("steps.effects")
async def test_an_effect_that_did_not_happen_is_sent_again_without_a_retry(world: World) -> None:
    attempt = await begin_attempt(world)
    key = (await attempt.begin("pay")).json()["idempotency_key"]
    await wait(attempt, "signal", signal="paid")
    assert await suspend(attempt, "signal") == "waiting"
    path = f"/api/v1/tasks/{attempt.task_id}"
    body = {"happened": False, "reason": "not in the bank"}
    assert (await world.admin.post(f"{path}/steps/pay/resolve", json=body)).status_code == 200
    assert (await world.admin.post(f"{path}/signals", json={"name": "paid"})).status_code == 200
    second = await resume(attempt)
    assert [step["superseded"] for step in (await second.journal())["steps"]] == [True, False]
    begun = (await second.begin("pay")).json()
    assert (begun["state"], begun["recorded"], begun["idempotency_key"]) == ("started", True, key)
    assert (await second.step("pay", 5, kind="effect")).json()["recorded"] is True


@requirement("steps.effects")
async def test_an_effect_that_its_worker_says_was_not_sent_stays_failed(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.begin("pay")
    error = {"type": "NotSent", "message": "declined"}
    assert (await attempt.step("pay", error=error, kind="effect")).json()["recorded"] is True
    await wait(attempt, "signal", signal="paid")
    await suspend(attempt, "signal")
    signal = {"name": "paid"}
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/signals", json=signal)).status_code == 200
    assert (await (await resume(attempt)).begin("pay")).json()["state"] == "failed"
