"""Steps that a program cancels, by a timeout for instance: the next attempt takes the same way."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from stentor_worker import StepFailed, Task, TaskCancelled, steps
from stentor_worker.http.client import Client, ServiceError
from tests.patience import until
from tests.processes.programs import Program
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="the SDK never sees the database")
SOON = 0.01
"""A timeout of the program."""


class Outside:
    """What plans slowly the first time, and where orders go."""

    def __init__(self) -> None:
        self.plans, self.sent = 0, list[str]()

    async def plan(self) -> str:
        self.plans += 1
        if self.plans == 1:
            await asyncio.Event().wait()
        return "plan"

    async def send(self, key: str, what: str) -> str:
        self.sent.append(what)
        return what

    async def send_slowly(self, key: str, what: str) -> str:
        await asyncio.sleep(2 * SOON)
        return await self.send(key, what)

    async def order(self, task: Task) -> str:
        try:
            plan = await asyncio.wait_for(task.step("plan", self.plan), SOON)
        except TimeoutError:
            return str(await task.effect("pay the usual", self.send, "the usual"))
        return str(await task.effect("pay", self.send, plan))

    async def order_together(self, task: Task, seconds: float, plan: Callable[[], Awaitable[str]]) -> str:
        try:
            [planned] = await asyncio.wait_for(task.gather(task.step("plan", plan)), seconds)
        except TimeoutError:
            return str(await task.effect("pay the usual", self.send, "the usual"))
        except StepFailed:
            return "failed"
        return str(await task.effect("pay", self.send, planned))


@pytest.fixture
def outside() -> Outside:
    return Outside()


@requirement("steps.cancelled")
@pytest.mark.parametrize("is_beside", [False, True])
def test_a_timeout_of_the_program_is_one_in_each_attempt(program: Program, outside: Outside, is_beside: bool) -> None:
    async def handler(task: Task) -> Any:
        [paid] = await task.gather(outside.order(task)) if is_beside else [await outside.order(task)]
        await task.sleep(0)
        return paid

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "the usual"
    assert outside.sent == ["the usual"]
    # On a busy machine the time is up before the step begins.
    assert outside.plans <= 1
    assert program.worker.replay(program.task_id).is_same


@requirement("steps.cancelled")
def test_a_timeout_around_several_steps_is_one_in_each_attempt(program: Program, outside: Outside) -> None:
    async def plan(task: Task) -> str:
        return await task.step("plan", outside.plan)

    async def plans(task: Task) -> str:
        await task.step("look", asyncio.sleep, 0)
        return await task.step("trip", plan, task)

    async def handler(task: Task) -> Any:
        try:
            await asyncio.wait_for(plans(task), 1)
        except TimeoutError:
            await task.sleep(0)
            return "timeout"
        return "in time"

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "timeout"
    assert outside.plans <= 1


@requirement("steps.cancelled")
def test_the_one_that_lost_a_race_loses_it_in_each_attempt(program: Program, outside: Outside) -> None:
    async def handler(task: Task) -> Any:
        racing = [asyncio.ensure_future(task.step(name, outside.plan)) for name in ("first", "second")]
        done, pending = await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
        for lost in pending:
            lost.cancel()
        await asyncio.wait(pending)
        await task.sleep(0)
        return len(done)

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == 1
    assert outside.plans == 2


@requirement("steps.cancelled")
def test_after_a_retry_by_a_person_a_cancelled_step_runs_again(program: Program, outside: Outside) -> None:
    async def handler(task: Task) -> Any:
        return await asyncio.wait_for(task.step("plan", outside.plan), SOON if outside.plans == 0 else 60)

    assert "TimeoutError" in program.error(handler)["message"]
    program.retry()
    assert program.result(handler) == "plan"


@requirement("steps.cancelled")
def test_a_timeout_holds_while_another_branch_waits(program: Program, outside: Outside) -> None:
    async def order(task: Task) -> Any:
        while not task.waits:
            await asyncio.sleep(0)
        return await outside.order(task)

    async def handler(task: Task) -> Any:
        return await task.gather(order(task) if task.epoch == 1 else outside.order(task), task.sleep(0))

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == ["the usual", None]
    assert outside.sent == ["the usual"]


@requirement("steps.cancelled")
def test_a_timeout_around_a_wait_and_a_step_holds_in_each_attempt(program: Program, outside: Outside) -> None:
    async def handler(task: Task) -> Any:
        try:
            await asyncio.wait_for(task.gather(task.step("plan", outside.plan), task.wait_for("paid")), 1)
        except TimeoutError:
            paid = await task.effect("pay the usual", outside.send, "the usual")
            await task.wait_for("sent")
            return paid

    assert program.attempt(handler)[0] == "suspend"
    for signal in ("sent", "paid"):
        program.call("POST", f"/tasks/{program.task_id}/signals", {"name": signal})
    assert program.result(handler) == "the usual"
    assert outside.sent == ["the usual"]


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
def test_a_wait_in_a_task_group_loses_no_work(program: Program) -> None:
    ended: list[str] = []

    async def plan(task: Task) -> str:
        while not task.waits:
            await asyncio.sleep(0)
        await asyncio.sleep(SOON)
        ended.append("plan")
        return "plan"

    async def handler(task: Task) -> Any:
        async with asyncio.TaskGroup() as group:
            planned = group.create_task(task.step("plan", plan, task))
            group.create_task(task.sleep(0))
        return planned.result()

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "plan"
    assert ended == ["plan"]


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
def test_a_timeout_beside_a_wait_in_a_task_group_ends_the_attempt(program: Program, outside: Outside) -> None:
    async def order(task: Task) -> Any:
        try:
            async with asyncio.timeout(1):
                return await task.step("plan", outside.plan)
        except TimeoutError:
            return await task.effect("pay the usual", outside.send, "the usual")

    async def handler(task: Task) -> Any:
        async with asyncio.TaskGroup() as group:
            ordered = group.create_task(order(task))
            group.create_task(task.sleep(0))
        return ordered.result()

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) in ("plan", "the usual")
    assert outside.plans <= 2


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
@pytest.mark.parametrize("is_within", [False, True])
def test_a_timeout_around_a_wait_in_a_task_group_ends_the_attempt(
    program: Program, outside: Outside, is_within: bool
) -> None:
    async def order(task: Task) -> Any:
        try:
            async with asyncio.timeout(1), asyncio.TaskGroup() as group:
                planned = group.create_task(task.step("plan", outside.plan))
                group.create_task(task.sleep(0))
        except TimeoutError:
            return await task.effect("pay the usual", outside.send, "the usual")
        return planned.result()

    async def handler(task: Task) -> Any:
        return await (task.step("order", order, task) if is_within else order(task))

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) in ("plan", "the usual")
    assert outside.plans <= 2


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
def test_a_branch_that_goes_on_cancels_no_step_beside_a_wait(program: Program) -> None:
    is_other_done = asyncio.Event()

    async def plan() -> str:
        await is_other_done.wait()
        return "plan"

    async def trip(task: Task) -> Any:
        async with asyncio.TaskGroup() as group:
            planned = group.create_task(task.step("plan", plan))
            group.create_task(task.sleep(0))
        return planned.result()

    async def other(task: Task) -> Any:
        while not task.waits:
            await asyncio.sleep(0)
        found = await task.step("look", asyncio.sleep, 0, "found")
        is_other_done.set()
        return found

    async def handler(task: Task) -> Any:
        return await task.gather(trip(task), other(task) if task.epoch == 1 else task.step("look", asyncio.sleep, 0))

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == ["plan", "found"]


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
def test_an_outage_at_the_end_of_a_worker_cancels_no_step_beside_it(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, is_down, is_over = Client.call, threading.Event(), asyncio.Event()

    def fail_once(self: Client, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if body is not None and body.get("key") == "look" and not is_down.is_set():
            is_down.set()
            raise ServiceError(0, "SERVICE_UNREACHABLE", "down")
        return call(self, method, path, body, **options)

    async def plan() -> str:
        await is_over.wait()
        return "plan"

    async def end_later() -> None:
        while not is_down.is_set():
            await asyncio.sleep(0)
        await asyncio.sleep(SOON)
        is_over.set()

    async def handler(task: Task) -> None:
        async with asyncio.TaskGroup() as group:
            ending = asyncio.ensure_future(end_later())
            group.create_task(task.step("plan", plan))
            group.create_task(task.step("look", asyncio.sleep, 0))
        await ending

    monkeypatch.setattr(Client, "call", fail_once)
    with pytest.raises(TaskCancelled):
        program.attempt(handler)
    [step] = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
    assert (step["key"], step["value"]) == ("plan", "plan")


@requirement("steps.cancelled")
def test_a_step_in_the_background_of_a_wait_runs_again(program: Program, outside: Outside) -> None:
    async def handler(task: Task) -> Any:
        planning = asyncio.ensure_future(task.step("plan", outside.plan))
        while not outside.plans:
            await asyncio.sleep(0)
        await task.sleep(0)
        return await planning

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "plan"
    assert outside.plans == 2


@requirement("steps.cancelled")
def test_an_error_of_a_step_that_the_end_of_the_attempt_cancels_is_not_recorded(program: Program) -> None:
    async def plan(task: Task) -> str:
        if task.epoch == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise OSError("the handler has closed the connection") from None
        return "plan"

    async def handler(task: Task) -> Any:
        return await asyncio.gather(task.step("plan", plan, task), task.sleep(0))

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == ["plan", None]


@requirement("steps.cancelled")
def test_after_a_retry_the_step_beside_the_one_that_failed_runs_again(program: Program, outside: Outside) -> None:
    tries: list[int] = []

    async def other() -> int:
        tries.append(1)
        while len(tries) == 1 and not outside.plans:
            await asyncio.sleep(0)
        if len(tries) == 1:
            raise ConnectionError("no")
        return 1

    async def handler(task: Task) -> Any:
        return await asyncio.gather(task.step("plan", outside.plan), other())

    assert program.error(handler)["message"] == "ConnectionError: no"
    program.retry()
    assert program.result(handler) == ["plan", 1]


@requirement("steps.cancelled")
@pytest.mark.parametrize(("fails", "is_retried"), [(False, False), (True, False), (False, True)])
def test_a_timeout_that_comes_as_an_outcome_is_recorded_is_one_in_each_attempt(
    program: Program, outside: Outside, monkeypatch: pytest.MonkeyPatch, fails: bool, is_retried: bool
) -> None:
    call, is_recorded, is_over = Client.call, threading.Event(), threading.Event()

    def answer_late(self: Client, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = call(self, method, path, body, **options)
        if body is not None and body.get("key") == "plan":
            (is_over if is_recorded.is_set() else is_recorded).set()
            is_over.wait(60)
        return answer

    async def plan() -> str:
        if fails:
            raise OSError
        return "plan"

    async def handler(task: Task) -> Any:
        paid = await outside.order_together(task, SOON if is_recorded.is_set() else 1, plan)
        if not is_retried:
            await task.sleep(0)
        return paid

    monkeypatch.setattr(Client, "call", answer_late)
    (program.fail_once if is_retried else program.attempt)(handler)
    assert is_recorded.is_set()
    assert program.result(handler) == "the usual"
    assert outside.sent == ["the usual"]
    assert program.worker.replay(program.task_id).is_same


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="counts no cancellations")
def test_of_two_timeouts_at_the_same_time_each_attempt_takes_the_same(
    program: Program, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, around = Client.call, list[tuple[asyncio.AbstractEventLoop, asyncio.Timeout, asyncio.Task[Any]]]()

    def answer_late(self: Client, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = call(self, method, path, body, **options)
        if body is not None and body.get("key") == "plan" and around:
            loop, timeout, caller = around.pop()
            loop.call_soon_threadsafe(timeout.reschedule, 0)
            until(lambda: caller.cancelling() > 1)
        return answer

    async def order(task: Task) -> Any:
        try:
            async with asyncio.timeout(3600 if task.epoch == 1 else 1) as timeout:
                caller = asyncio.current_task()
                if task.epoch == 1 and caller is not None:
                    around.append((asyncio.get_running_loop(), timeout, caller))
                try:
                    async with asyncio.timeout(SOON):
                        return await task.step("plan", asyncio.Event().wait)
                except TimeoutError:
                    return await task.effect("pay the usual", outside.send, "the usual")
        except TimeoutError:
            return await task.effect("pay later", outside.send, "later")

    async def handler(task: Task) -> Any:
        [paid] = await task.gather(order(task))
        await task.sleep(0)
        return paid

    monkeypatch.setattr(Client, "call", answer_late)
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "later"
    assert outside.sent == ["later"]
    assert program.worker.replay(program.task_id).is_same


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no asyncio.timeout")
def test_a_timeout_that_is_over_before_a_gather_is_one_in_each_attempt(program: Program, outside: Outside) -> None:
    outside.plans = 1  # each plan is quick
    limits = iter((0, 60 * SOON))

    async def handler(task: Task) -> Any:
        try:
            async with asyncio.timeout(next(limits)):
                [plan] = await task.gather(task.step("plan", outside.plan))
                paid = await task.effect("pay", outside.send, plan)
        except TimeoutError:
            paid = await task.effect("pay the usual", outside.send, "the usual")
        await task.sleep(0)
        return paid

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "the usual"
    assert outside.sent == ["the usual"]


@pytest.fixture
def is_recorded(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The first end of a step is recorded until the attempt ends; set as soon as it is."""
    record, is_recorded = steps._is_end_cancelled, threading.Event()

    async def record_until_the_end(outcome: Awaitable[Any]) -> bool:
        is_cancelled = await record(outcome)
        if not is_recorded.is_set():
            is_recorded.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return is_cancelled

    monkeypatch.setattr(steps, "_is_end_cancelled", record_until_the_end)
    return is_recorded


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="counts no cancellations")
@pytest.mark.parametrize("is_in_group", [False, True])
def test_the_end_of_an_attempt_is_no_second_timeout(
    program: Program, outside: Outside, is_recorded: threading.Event, is_in_group: bool
) -> None:
    async def order(task: Task) -> Any:
        try:
            async with asyncio.timeout(SOON):
                await task.step("plan", asyncio.Event().wait)
        except TimeoutError:
            return await task.effect("pay the usual", outside.send, "the usual")

    async def nap(task: Task) -> None:
        while not is_recorded.is_set():
            await asyncio.sleep(0)
        await task.sleep(0)

    async def handler(task: Task) -> Any:
        if not is_in_group:
            return await asyncio.gather(order(task), nap(task))
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(order(task)), group.create_task(nap(task))]
        return [part.result() for part in parts]

    assert program.attempt(handler)[0] == "suspend"
    recorded = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
    assert sorted(step["key"] for step in recorded) == ["plan", "sleep"]
    assert program.result(handler) == ["the usual", None]
    assert outside.sent == ["the usual"]


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
@pytest.mark.parametrize("is_closed", [False, True])
def test_an_unknown_effect_in_a_task_group_cancels_no_step_for_the_next_attempt(
    program: Program, outside: Outside, is_closed: bool
) -> None:
    reported: list[str] = []
    is_planning = asyncio.Event()

    async def plan() -> str:
        if is_planning.is_set():
            return "plan"
        is_planning.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if is_closed:
                raise OSError("closed") from None
            raise
        return "never"

    async def send(key: str) -> str:
        await is_planning.wait()
        outside.sent.append(key)
        if len(outside.sent) == 1:
            raise OSError("no answer")
        return key

    async def handler(task: Task) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
        async with asyncio.TaskGroup() as group:
            group.create_task(task.effect("pay", send, idempotent=True))
            planned = group.create_task(task.step("plan", plan))
        return planned.result()

    program.worker._handler = handler
    task = program.claim()
    verb, body = program.worker._execute(task)
    assert (verb, body["error"]["code"]) == ("fail", "EFFECT_UNKNOWN")
    # The worker dies before it reports that: another attempt continues, and no person has retried.
    task.post("heartbeat", {"lease_seconds": 1})
    assert program.result(handler) == "plan"
    assert len(set(outside.sent)) == 1
    del task
    gc.collect()
    assert reported == []


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no asyncio.timeout")
def test_a_program_that_hides_an_unknown_effect_ends_with_it_at_its_next_timeout(program: Program) -> None:
    async def send(key: str) -> None:
        raise OSError("no answer")

    async def handler(task: Task) -> Any:
        await asyncio.gather(task.effect("pay", send), return_exceptions=True)
        async with asyncio.timeout(SOON):
            await task.step("plan", asyncio.Event().wait)

    assert program.error(handler)["code"] == "EFFECT_UNKNOWN"


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="counts no cancellations")
def test_two_timeouts_as_the_attempt_ends_lead_to_one_way(
    program: Program, outside: Outside, is_recorded: threading.Event
) -> None:
    async def order(task: Task) -> Any:
        try:
            async with asyncio.timeout(3600) as timeout:
                around.append(timeout)
                try:
                    async with asyncio.timeout(SOON):
                        await task.step("plan", asyncio.Event().wait)
                except TimeoutError:
                    return await task.effect("pay the usual", outside.send, "the usual")
        except TimeoutError:
            return await task.effect("pay later", outside.send, "later")

    async def nap(task: Task) -> None:
        while not is_recorded.is_set():
            await asyncio.sleep(0)
        try:
            await task.sleep(0)
        finally:
            if task.epoch == 1:
                around[0].reschedule(0)
                await asyncio.wait(ordering)

    async def handler(task: Task) -> Any:
        ordering.append(asyncio.ensure_future(order(task)))
        return await asyncio.gather(ordering[-1], nap(task))

    around, ordering = list[asyncio.Timeout](), list[asyncio.Future[Any]]()
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == ["the usual", None]
    assert outside.sent == ["the usual"]


@requirement("steps.cancelled")
def test_effects_side_by_side_are_no_timeout_when_they_have_ended(program: Program, outside: Outside) -> None:
    async def send(key: str, what: str) -> str:
        await asyncio.sleep(2 * SOON)
        return await outside.send(key, what)

    async def handler(task: Task) -> Any:
        try:
            paid = await asyncio.wait_for(task.gather(task.effect("pay", send, "plan")), SOON)
        except TimeoutError:
            paid = await task.effect("pay the usual", outside.send, "the usual")
        await task.sleep(0)
        return paid

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == ["plan"]
    assert outside.sent == ["plan"]


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="counts no cancellations")
@pytest.mark.parametrize(("is_beside", "next_limit"), [(False, SOON), (True, SOON), (False, 0), (True, 0)])
def test_a_timeout_that_an_effect_outlasts_holds_for_the_step_after_it(
    program: Program, outside: Outside, is_beside: bool, next_limit: float
) -> None:
    limits = iter((SOON, next_limit))  # at 0 the timeout is over before the effect has its first turn

    async def handler(task: Task) -> Any:
        try:
            async with asyncio.timeout(next(limits)):
                paid = task.effect("pay", outside.send_slowly, "plan")
                await (task.gather(paid) if is_beside else paid)
                await task.step("plan", outside.plan)
        except TimeoutError:
            await task.step("look", asyncio.sleep, 0)
            await task.sleep(0)
            return "timeout"

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "timeout"
    assert outside.sent == ["plan"]


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="counts no cancellations")
@pytest.mark.parametrize("is_over", [False, True])
def test_a_timeout_that_an_effect_outlasts_cancels_only_one_step(
    program: Program, outside: Outside, is_over: bool
) -> None:
    async def plan(task: Task) -> None:
        try:
            await task.step("plan", outside.plan)
        finally:
            await task.step("clean up", outside.send, "key", "cleaned")

    async def handler(task: Task) -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(SOON):
                await task.effect("pay", outside.send_slowly, "plan")
                if not is_over:
                    await plan(task)
        if is_over:
            with suppress(TimeoutError):
                async with asyncio.timeout(SOON):
                    await plan(task)
        await task.sleep(0)
        return outside.sent

    assert program.attempt(handler)[0] == "suspend"
    assert outside.sent == ["plan", "cleaned"]
    assert program.result(handler) == ["plan", "cleaned"]


@requirement("steps.cancelled")
def test_a_timeout_does_not_count_how_long_the_journal_takes(
    program: Program, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Client.call

    def read_slowly(self: Client, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if method == "GET":
            time.sleep(2 * SOON)
        return call(self, method, path, body, **options)

    async def handler(task: Task) -> Any:
        paid = await outside.order_together(task, 60 if task.epoch == 1 else SOON, outside.plan)
        await task.sleep(0)
        return paid

    monkeypatch.setattr(Client, "call", read_slowly)
    outside.plans = 1
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "plan"


@requirement("steps.cancelled")
def test_a_step_that_waits_for_its_cancellation_ends_with_the_lease(program: Program, outside: Outside) -> None:
    async def handler(task: Task) -> Any:
        await outside.order(task)
        await task.sleep(0)

    async def changed(task: Task) -> Any:
        program.call("POST", f"/tasks/{task.id}/cancel")
        task.heartbeat(30)
        return await task.step("plan", outside.plan)

    assert program.attempt(handler)[0] == "suspend"
    with pytest.raises(TaskCancelled):
        program.attempt(changed)


@requirement("steps.sdk")
def test_a_handler_may_go_on_after_a_step_that_exits(program: Program) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def handler(task: Task) -> Any:
        try:
            await task.step("leave", leave)
        except SystemExit as left:
            return left.code

    assert program.result(handler) == 3


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
@pytest.mark.parametrize("kind", ["group", "nested groups", "gather"])
def test_a_timeout_does_not_end_a_group_whose_steps_have_ended(program: Program, outside: Outside, kind: str) -> None:
    attempts: list[str] = []

    async def plan(task: Task, limit: asyncio.Timeout) -> None:
        await task.step("plan", asyncio.sleep, 0)
        if len(attempts) == 1:
            # The time is up when the step has ended, and before the group has.
            limit.reschedule(asyncio.get_running_loop().time() + SOON)
            time.sleep(2 * SOON)

    async def plan_in_groups(task: Task, limit: asyncio.Timeout, groups: int) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(plan_in_groups(task, limit, groups - 1) if groups > 1 else plan(task, limit))

    async def handler(task: Task) -> Any:
        attempts.append(kind)
        try:
            async with asyncio.timeout(60) as limit:
                if kind == "gather":
                    await asyncio.gather(plan(task, limit))
                else:
                    await plan_in_groups(task, limit, 1 if kind == "group" else 9)
        except TimeoutError:
            paid = await task.effect("pay the usual", outside.send, "the usual")
        else:
            paid = await task.effect("pay", outside.send, "plan")
        await task.sleep(0)
        return paid

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "plan"


@requirement("steps.cancelled")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
def test_a_timeout_does_not_count_how_long_a_recorded_value_takes(
    program: Program, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, limits = Client.call, list[asyncio.Timeout]()

    def answer_late(self: Client, method: str, path: str, body: Any = None, **options: Any) -> Any:
        if "/steps/" in path:
            # Long after the timer is due.
            time.sleep(50 * SOON)
        return call(self, method, path, body, **options)

    async def plan() -> str:
        return "plan" * 2_000

    async def handler(task: Task) -> Any:
        try:
            async with asyncio.timeout(None if len(limits) == 0 else 10 * SOON) as limit:
                limits.append(limit)
                async with asyncio.TaskGroup() as group:
                    group.create_task(task.step("plan", plan))
        except TimeoutError:
            return await task.effect("pay the usual", outside.send, "the usual")
        paid = await task.effect("pay", outside.send, "plan")
        await task.sleep(0)
        return paid

    monkeypatch.setattr(Client, "call", answer_late)
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "plan"


def test_a_timeout_ends_a_program_that_never_waits(program: Program) -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def handler(task: Task) -> Any:
        try:
            await asyncio.wait_for(spin(), SOON)
        except TimeoutError:
            return "timeout"

    assert program.result(handler) == "timeout"


def test_timers_fire_in_their_order_and_not_once_cancelled_also_after_the_program_was_busy(program: Program) -> None:
    async def handler(task: Task) -> Any:
        loop, fired = asyncio.get_running_loop(), list[int]()
        timers = [loop.call_later(n * SOON / 10, fired.append, n) for n in range(1, 6)]
        loop.call_later(SOON / 10, timers[3].cancel)
        time.sleep(SOON)
        await asyncio.sleep(SOON)
        return fired

    assert program.result(handler) == [1, 2, 3, 5]


def test_timers_that_are_due_together_do_not_wait_for_each_other_in_turns(program: Program) -> None:
    async def handler(task: Task) -> Any:
        loop, calls = asyncio.get_running_loop(), 0
        call_soon = loop.call_soon

        def count(*args: Any, **options: Any) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return call_soon(*args, **options)

        loop.call_soon = count  # type: ignore[method-assign]
        sleeping = asyncio.gather(*(asyncio.sleep(SOON) for _ in range(500)))
        await asyncio.sleep(0)
        time.sleep(2 * SOON)
        await sleeping
        return calls

    assert program.result(handler) < 10 * 500


def test_many_timers_are_not_late_in_a_program_that_never_waits(program: Program) -> None:
    async def handler(task: Task) -> Any:
        loop, fired, passes = asyncio.get_running_loop(), list[int](), 0
        for n in range(300):
            loop.call_later(0, fired.append, n)
        while len(fired) < 300:
            passes += 1
            await asyncio.sleep(0)
        return passes

    assert program.result(handler) < 200
