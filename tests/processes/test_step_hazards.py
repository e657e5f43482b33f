"""What goes wrong with steps elsewhere: values swapped, effects doubled or lost, attempts that end without a word."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from stentor_worker import (
    AttemptEnded,
    Child,
    ChildFailed,
    EffectFailed,
    EffectUnknown,
    Failed,
    ProviderFailed,
    ServiceError,
    StepFailed,
    Task,
    WaitTimeout,
)
from stentor_worker.journal import Journal, ValueRejected
from tests.processes.programs import Program
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="the SDK never sees the database")


async def pay(sent: list[int], key: str, amount: int) -> int:
    await asyncio.sleep(0.001 * (5 - amount % 5))
    sent.append(amount)
    return amount


@requirement("steps.sdk")
def test_coroutines_that_share_a_name_are_refused_whoever_comes_first(program: Program) -> None:
    sent: list[int] = []

    async def order(task: Task, amount: int) -> Any:
        await asyncio.sleep(0.01 * amount)
        return await task.effect("pay", _pay_later(sent), amount)

    async def handler(task: Task) -> Any:
        return await asyncio.gather(order(task, 2), order(task, 1))

    assert "need names of their own" in program.error(handler)["message"]
    assert sent in ([], [1])


@requirement("steps.sdk")
def test_a_name_of_the_program_is_not_used_beside_it(program: Program) -> None:
    async def beside(task: Task) -> None:
        await task.step("fetch", asyncio.sleep, 0)

    async def handler(task: Task) -> Any:
        await asyncio.create_task(beside(task))
        await task.step("fetch", asyncio.sleep, 0)

    assert "need names of their own" in program.error(handler)["message"]


@requirement("steps.sdk")
def test_steps_within_steps_of_their_own_share_names(program: Program) -> None:
    sent: list[int] = []

    async def order(task: Task, amount: int) -> Any:
        await asyncio.sleep(0.002 * (3 - amount % 3))
        price = await task.step("price", asyncio.sleep, 0, amount * 10)
        return [price, await task.effect("pay", _pay_later(sent), amount)]

    async def handler(task: Task) -> Any:
        return await task.gather(*(task.step(f"order {n}", order, task, n) for n in range(6)))

    program.fail_once(handler)
    first = sorted(sent)
    assert program.result(handler) == [[n * 10, n] for n in range(6)]
    assert sorted(sent) == first == list(range(6))


def _pay_later(sent: list[int]) -> Any:
    async def send(key: str, amount: int) -> int:
        return await pay(sent, key, amount)

    return send


@requirement("steps.effects", "steps.sdk")
def test_many_effects_of_coroutines_do_not_block_each_other(program: Program) -> None:
    sent: list[int] = []

    async def handler(task: Task) -> Any:
        return await task.gather(*(task.effect(f"pay {n}", _pay_later(sent), n) for n in range(40)))

    assert program.result(handler) == list(range(40))
    assert sorted(sent) == list(range(40))


@requirement("steps.effects", "steps.retry")
def test_what_was_declined_before_something_else_was_paid_is_not_sent_after_a_retry(program: Program) -> None:
    sent: list[str] = []

    def declined(key: str) -> None:
        sent.append(key)
        raise EffectFailed("declined")

    def handler(task: Task) -> Any:
        try:
            return task.effect("pay by card", declined)
        except StepFailed:
            task.effect("pay by invoice", sent.append)
        task.step("confirm", lambda: 1 / 0)
        raise AssertionError

    for _ in range(3):
        assert "ZeroDivisionError" in program.error(handler)["message"]
        program.retry()
    assert len(sent) == 2


@requirement("steps.effects", "steps.retry")
def test_what_was_declined_and_nothing_was_done_instead_is_sent_anew_after_a_retry(program: Program) -> None:
    sent: list[str] = []

    def charge(key: str) -> str:
        sent.append(key)
        if len(sent) == 1:
            raise EffectFailed("declined")
        return "paid"

    def handler(task: Task) -> Any:
        try:
            return task.effect("pay", charge)
        except StepFailed:
            task.step("tell the owner", lambda: None)
            raise

    assert program.error(handler)["code"] == "AGENT_ERROR"
    program.retry()
    assert program.result(handler) == "paid"
    assert len(set(sent)) == 2  # a new payment: the other side would repeat its refusal for the old key


@requirement("steps.retry", "steps.wait-timeout")
def test_a_retry_waits_out_no_timeout_after_which_the_program_waited_again(program: Program) -> None:
    def handler(task: Task) -> Any:
        for _ in range(3):
            with pytest.raises(WaitTimeout):
                task.wait_for("stop", timeout=0)
            task.step("poll", lambda: None)
        raise ValueError("no")

    def run() -> list[Any]:
        while program.attempt(handler)[0] == "suspend":
            pass
        steps = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
        return [(step["key"], step["started_at"]) for step in steps if step["kind"] == "signal"]

    before = run()
    program.retry()
    after = run()
    assert (before[:2], before[2][0]) == (after[:2], after[2][0])
    assert before[2] != after[2]  # the last one is waited for again


@requirement("steps.effects", "steps.sdk")
def test_a_person_who_says_that_an_effect_did_not_happen_lets_it_be_sent_with_the_same_key(program: Program) -> None:
    sent: list[str] = []

    def times_out(key: str) -> str:
        sent.append(key)
        if len(sent) == 1:
            raise TimeoutError("no answer")
        return "paid"

    def handler(task: Task) -> Any:
        return task.effect("pay", times_out)

    assert program.error(handler)["code"] == "EFFECT_UNKNOWN"
    program.call("POST", f"/tasks/{program.task_id}/steps/pay/resolve", {"happened": False})
    program.retry()
    assert program.result(handler) == "paid"
    assert len(sent) == 2
    assert len(set(sent)) == 1


@requirement("steps.effects", "steps.sdk")
@pytest.mark.parametrize("how", [{}, {"idempotent": True}, {"check": lambda key: None}])
def test_no_handler_goes_on_after_an_effect_of_which_nothing_is_known(program: Program, how: dict[str, Any]) -> None:
    sent: list[str] = []

    def times_out(key: str) -> None:
        sent.append(key)
        raise TimeoutError("no answer")

    def handler(task: Task) -> Any:
        try:
            return task.step("shop", lambda: task.effect("pay", times_out, **how))
        except Exception:  # noqa: BLE001 - a handler that catches everything
            return task.effect("pay elsewhere", sent.append)

    error = program.error(handler)
    assert error["code"] == "EFFECT_UNKNOWN"
    assert "TimeoutError: no answer" in error["message"]
    assert "raise EffectFailed" in error["message"]
    assert len(sent) == 1


@requirement("steps.effects", "steps.sdk")
def test_a_long_error_of_an_effect_does_not_hide_what_to_do(program: Program) -> None:
    def fails(key: str) -> None:
        raise RuntimeError("x" * 5_000)

    error = program.error(lambda task: task.effect("pay", fails))
    assert "x" * 500 in error["message"]
    assert "stentor task resolve" in error["message"]


class TimedOut(BaseException):
    """Such as those of func_timeout and gevent."""


@requirement("steps.effects", "steps.sdk")
@pytest.mark.parametrize("error", [TimedOut, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [False, True])
def test_no_error_of_an_effect_reaches_the_handler_whatever_its_class(
    program: Program, error: type[BaseException], is_async: bool
) -> None:
    sent: list[str] = []

    def pay(key: str) -> None:
        sent.append(key)
        raise error

    async def pay_later(key: str) -> None:
        pay(key)

    def handler(task: Task) -> Any:
        try:
            return task.effect("pay", pay)
        except error:
            return task.effect("pay elsewhere", sent.append)

    async def later(task: Task) -> Any:
        try:
            return await task.effect("pay", pay_later)
        except error:
            return await task.effect("pay elsewhere", pay_later)

    assert program.error(later if is_async else handler)["code"] == "EFFECT_UNKNOWN"
    assert len(sent) == 1


@requirement("steps.effects", "steps.sdk")
def test_a_timeout_does_not_leave_an_effect_behind(program: Program) -> None:
    sent: list[int] = []

    async def slow(key: str) -> str:
        await asyncio.sleep(0.1)
        sent.append(1)
        return "paid"

    async def handler(task: Task) -> Any:
        try:
            return await asyncio.wait_for(task.effect("pay", slow), 0.01)
        except TimeoutError:
            return await task.effect("pay elsewhere", slow)

    assert program.result(handler) == "paid"
    assert sent == [1]


@requirement("steps.effects", "steps.sdk")
@pytest.mark.parametrize("is_async", [False, True])
def test_an_effect_whose_value_cannot_be_recorded_is_held(program: Program, is_async: bool) -> None:
    sent: list[str] = []

    def send(key: str) -> Any:
        sent.append(key)
        return object()

    async def send_later(key: str) -> Any:
        return send(key)

    async def handler(task: Task) -> Any:
        return await task.effect("pay", send_later)

    error = program.error(handler if is_async else lambda task: task.effect("pay", send))
    assert error["code"] == "EFFECT_UNKNOWN"
    assert "neither JSON nor bytes" in error["message"]
    assert "EffectFailed" not in error["message"], "it was sent"
    assert len(sent) == 1


@requirement("steps.effects", "steps.sdk")
def test_a_coroutine_in_place_of_the_function_of_an_effect_was_not_sent(program: Program) -> None:
    sent: list[int] = []
    is_mended = False

    async def handler(task: Task) -> Any:
        send = _pay_later(sent)
        return await task.effect("pay", send, 1) if is_mended else task.effect("pay", lambda key: send(key, 1))

    assert "coroutine function itself" in program.error(handler)["message"]
    is_mended = True
    program.retry()
    assert program.result(handler) == 1
    assert sent == [1]


@requirement("steps.effects", "steps.sdk")
def test_a_coroutine_may_check_an_effect_with_an_ordinary_function(program: Program) -> None:
    async def times_out(key: str) -> None:
        raise TimeoutError

    async def handler(task: Task) -> Any:
        return await task.effect("pay", times_out, check=lambda key: "found")

    assert program.result(handler) == "found"


@requirement("steps.waits", "steps.sdk")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
def test_waits_in_a_task_group_suspend_the_task(program: Program) -> None:
    async def handler(task: Task) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(task.wait_for("a"))
            group.create_task(task.wait_for("b"))
        return "both"

    verb, body = program.attempt(handler)
    assert (verb, len(body["keys"]) >= 1) == ("suspend", True)


@requirement("steps.effects", "steps.sdk")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no TaskGroup")
@pytest.mark.parametrize("kind", ["step", "effect"])
def test_the_errors_in_a_group_are_in_the_record(program: Program, kind: str) -> None:
    async def fails(*_: Any) -> None:
        raise OSError("no route")

    async def work(*_: Any) -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(inner())

    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    async def handler(task: Task) -> Any:
        return await getattr(task, kind)("send", work)

    group = "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"
    assert f"{group}: OSError: no route" in program.error(handler)["message"]


@requirement("steps.sdk")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no ExceptionGroup")
@pytest.mark.parametrize("kind", ["step", "effect", "handler"])
def test_groups_of_errors_may_be_nested_deeper_than_calls(program: Program, kind: str) -> None:
    def fails(*_: Any) -> None:
        error: Exception = OSError("no route")
        for _depth in range(2 * sys.getrecursionlimit()):
            error = ExceptionGroup("outer", [error])
        raise error

    def handler(task: Task) -> Any:
        return fails() if kind == "handler" else getattr(task, kind)("send", fails)

    assert "OSError: no route" in program.error(handler)["message"]


@requirement("steps.effects", "steps.sdk")
def test_an_effect_whose_value_cannot_be_recorded_says_why(program: Program) -> None:
    def handler(task: Task) -> Any:
        return task.effect("pay", lambda key: {key})

    message = program.error(handler)["message"]
    assert "happened (TypeError: Its value cannot be recorded: it is neither JSON nor bytes" in message


@requirement("steps.waits", "steps.sdk")
def test_the_answer_to_another_question_is_not_taken(program: Program) -> None:
    def asks(question: str, *options: str) -> Any:
        return lambda task: task.ask(question, options)

    assert program.attempt(asks("Pay 5?", "yes", "no"))[0] == "suspend"
    program.call("POST", f"/tasks/{program.task_id}/steps/question/answer", {"value": "yes"})
    error = program.error(asks("Pay 5000?", "yes", "no"))
    assert error["code"] == "STEP_MISMATCH"
    assert "Pay 5?" in error["message"]
    assert "Pay 5000?" in error["message"]
    program.retry()
    error = program.error(asks("Pay 5?", "yes", "later"))
    assert error["code"] == "STEP_MISMATCH"
    assert "Pay 5? ['yes', 'no']" in error["message"]
    assert "Pay 5? ['yes', 'later']" in error["message"]
    program.retry()
    assert program.result(asks("Pay 5?", "yes", "no")) == "yes"


@requirement("steps.children", "steps.sdk")
def test_a_child_that_is_rejected_is_an_error_of_its_step(program: Program) -> None:
    def handler(task: Task) -> Any:
        with pytest.raises(StepFailed) as caught:
            task.child("x" * 999, 1)
        assert caught.value.kind == ServiceError.__name__
        return "went on"

    assert program.result(handler) == "went on"


@requirement("steps.children", "steps.retry")
def test_a_retried_parent_retries_its_failed_child(program: Program) -> None:
    capability = program.body["required_capabilities"][0]
    is_up = False

    def handler(task: Task) -> Any:
        if task.type == "child":
            if not is_up:
                raise ProviderFailed("down")
            return "done"
        return task.child("child", 1, capabilities=[capability])

    assert program.attempt(handler)[0] == "suspend"
    assert program.attempt(handler)[0] == "fail"  # the child
    error = program.error(handler)
    assert error["code"] == "CHILD_FAILED"
    is_up = True
    program.retry()
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "done"  # the child
    assert program.result(handler) == "done"


@requirement("steps.children", "steps.sdk")
def test_the_error_for_a_cancelled_child_says_what_to_do(program: Program) -> None:
    def handler(task: Task) -> Any:
        return task.child("child", 1, capabilities=program.body["required_capabilities"])

    assert program.attempt(handler)[0] == "suspend"
    steps = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
    program.call("POST", f"/tasks/{steps[-1]['waits_for']}/cancel")
    assert "`stentor task rerun` runs this task again" in program.error(handler)["message"]
    body = program.call("POST", f"/tasks/{program.task_id}/rerun", {})
    program.task_id = body["task_id"]
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(lambda task: "done") == "done"
    assert program.result(handler) == "done"


@requirement("steps.children", "steps.sdk")
def test_many_children_cost_two_attempts_and_one_request_each(program: Program) -> None:
    capability, count = program.body["required_capabilities"][0], 12

    def handler(task: Task) -> Any:
        if task.type == "child":
            return task.input
        return task.gather(*[task.start_child("child", n, capabilities=[capability]) for n in range(count)])

    assert program.attempt(handler)[0] == "suspend"
    for _ in range(count - 1):
        program.result(handler)
        assert program.call("GET", f"/tasks/{program.task_id}")["status"] == "waiting"
    program.result(handler)
    assert program.result(handler) == list(range(count))
    assert program.call("GET", f"/tasks/{program.task_id}")["attempts"] == 2


@requirement("steps.children", "steps.sdk")
def test_a_child_is_waited_for_again_after_a_timeout(program: Program) -> None:
    capability = program.body["required_capabilities"][0]

    async def handler(task: Task) -> Any:
        if task.type == "child":
            return await task.wait_for("go")
        child: Child = await task.start_child("child", 1, capabilities=[capability])
        with pytest.raises(WaitTimeout):
            await child.result(timeout=0)
        return [child.id, await child.result(), await child.result()]

    for _ in range(3):
        assert program.attempt(handler)[0] == "suspend"  # the parent, the child, and the parent after its timeout
    steps = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
    assert [step["state"] for step in steps if step["kind"] == "child"] == ["failed", "started"]
    child_id = steps[0]["value"]
    program.call("POST", f"/tasks/{child_id}/signals", {"name": "go", "value": "done"})
    assert program.result(handler) == "done"  # the child
    assert program.result(handler) == [child_id, "done", "done"]


@requirement("steps.sdk")
@pytest.mark.parametrize(
    ("error", "code", "outcome_class"),
    [
        (ProviderFailed("down", "QUOTA"), "QUOTA", "provider_failure"),
        (Failed("wrong", "BAD_INPUT"), "BAD_INPUT", "agent_failure"),
        (ValueError("wrong"), "STEP_FAILED", "agent_failure"),
    ],
)
def test_an_error_counts_as_what_it_is_through_all_steps(
    program: Program, error: Exception, code: str, outcome_class: str
) -> None:
    def fails() -> None:
        raise error

    def handler(task: Task) -> Any:
        return task.step("outer", lambda: task.step("inner", fails))

    def again(task: Task) -> Any:
        with pytest.raises(StepFailed):
            handler(task)
        task.sleep(0)
        return handler

    for program_part in (again, lambda task: [task.step("outer", lambda: 1)]):
        verb, body = program.attempt(program_part)
        if verb == "fail":
            break
    assert (body["error"]["code"], body["outcome_class"]) == (code, outcome_class)


@requirement("steps.sdk")
@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "", "x" * 100_000])
def test_any_text_of_an_error_is_recorded(program: Program, text: str) -> None:
    def fails() -> None:
        raise OSError(text)

    def handler(task: Task) -> Any:
        with pytest.raises(StepFailed) as caught:
            task.step("fetch", fails)
        assert caught.value.kind == "OSError"
        return "went on"

    assert program.result(handler) == "went on"
    assert program.call("GET", f"/tasks/{program.task_id}/steps/fetch")["state"] == "failed"


@requirement("steps.sdk")
@pytest.mark.parametrize("value", ["a\0b", "\ud800", {"a": ["\ud800"]}])
def test_a_value_that_the_database_does_not_take_is_an_error_of_its_step(program: Program, value: Any) -> None:
    def handler(task: Task) -> Any:
        try:
            return task.step("make", lambda: value) == value
        except StepFailed as error:
            return str(error)

    result = program.result(handler)
    assert result is True or "cannot be recorded" in result


@requirement("steps.sdk")
def test_a_name_that_is_too_long_is_refused_before_anything_ran(program: Program) -> None:
    ran: list[int] = []

    def handler(task: Task) -> Any:
        return task.step("a" * 250, lambda: task.step("b" * 250, lambda: deeper(task)))

    def deeper(task: Task) -> Any:
        return task.step("c" * 250, lambda: task.step("d" * 250, lambda: task.effect("e" * 250, ran.append)))

    assert "too long together" in program.error(handler)["message"]
    assert ran == []
    program.task_id = program.submit()
    assert program.result(lambda task: task.step("北京" * 127, lambda: 5)) == 5


@requirement("steps.sdk")
def test_a_report_that_the_service_rejects_fails_the_task(program: Program) -> None:
    program.worker.handler(lambda task: "x" * 12_000_000)
    task = program.claim()
    assert program.worker._report(task, *program.worker._execute(task)) == "fail"
    assert program.call("GET", f"/tasks/{program.task_id}")["error"]["code"] == "REPORT_REJECTED"


@requirement("steps.sdk")
def test_threads_within_steps_get_a_clear_error_for_a_shared_name(program: Program) -> None:
    def handler(task: Task) -> Any:
        def in_thread(n: int) -> None:
            def run() -> None:
                try:
                    task.step("same", lambda: n)
                except ValueError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

        for n in range(2):
            task.step(f"outer {n}", in_thread, n)

    errors: list[str] = []
    program.result(handler)
    assert len(errors) == 1


def test_what_ends_an_attempt_is_no_exception() -> None:
    for kind in (EffectUnknown, AttemptEnded):
        assert not issubclass(kind, Exception)
    assert issubclass(ChildFailed, Exception)


class _Requests:
    """A client that notes what is sent, and rejects the value of an effect if it is told so."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.rejects = False

    def call(self, method: str, path: str, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if self.rejects and path.endswith("/effects"):
            raise ServiceError(400, "INVALID_REQUEST", "no")
        self.sent.append(body)
        return {"recorded": True, "kind": "step", "epoch": 1, "ended_at": ""}


TIMED_OUT: dict[str, Any] = {
    "value": None,
    "value_sha256": None,
    "encoding": "json",
    "superseded": False,
    "state": "failed",
    "epoch": 1,
    "kind": "signal",
    "started_at": "",
    "ended_at": "",
    "error": {"type": "WaitTimeout", "message": "no"},
}


@requirement("steps.retry", "steps.sdk")
def test_a_wait_names_the_timeouts_before_it_once() -> None:
    client = _Requests()
    journal = Journal(client, "task", 1, threading.Event(), is_empty=True)  # pyrefly: ignore[bad-argument-type]
    for key in ("first", "second", "third"):
        entry = journal.enter(key, "signal")
        journal.post(entry, "/waits", {})
        with pytest.raises(WaitTimeout):
            journal.replay(entry, TIMED_OUT)
    assert [body.get("handled") for body in client.sent] == [None, ["first"], ["second"]]


@requirement("steps.retry", "steps.sdk")
def test_an_effect_names_the_timeouts_before_it_also_after_recorded_waits() -> None:
    client = _Requests()
    journal = Journal(client, "task", 2, threading.Event(), is_empty=True)  # pyrefly: ignore[bad-argument-type]
    for key in ("first", "second"):
        entry = journal.enter(key, "signal")
        journal.note_replayed_wait(entry)
        with pytest.raises(WaitTimeout):
            journal.replay(entry, TIMED_OUT)
    journal.enter("prepare", "step")
    journal.note_replayed_wait(journal.enter("of another branch", "signal"))
    journal.post(journal.enter("new", "signal"), "/waits", {})
    journal.post(journal.enter("pay", "effect", is_irreversible=True), "/effects", {})
    assert [body.get("handled") for body in client.sent] == [["second"], ["first"]]


@requirement("steps.retry", "steps.sdk")
def test_an_effect_names_all_handled_errors_however_many_also_after_one_that_was_rejected() -> None:
    client = _Requests()
    journal = Journal(client, "task", 1, threading.Event(), is_empty=True)  # pyrefly: ignore[bad-argument-type]
    keys = [f"get {n}" for n in range(2_001)]
    for key in keys:
        with pytest.raises(StepFailed):
            journal.fail(journal.enter(key, "step"), ValueError("no"))
    client.sent.clear()
    client.rejects = True
    with pytest.raises(ValueRejected):
        journal.post(journal.enter("pay", "effect", is_irreversible=True), "/effects", {})
    client.rejects = False
    journal.post(journal.enter("send", "effect", is_irreversible=True), "/effects", {})
    assert [len(body["handled"]) for body in client.sent] == [1_000, 1_000, 1]
    assert [key for body in client.sent for key in body["handled"]] == keys
    assert {body["key"] for body in client.sent} == {"send"}
