"""The steps of the worker SDK against a real service: each attempt is a claim, a handler and its report."""

from __future__ import annotations

import asyncio
import enum
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stentor_worker import (
    Child,
    ChildFailed,
    EffectFailed,
    EffectUnknown,
    Failed,
    StepFailed,
    StepMismatch,
    Task,
    TaskCancelled,
    WaitTimeout,
)
from tests.patience import until
from tests.processes.programs import Handler, Program
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="the SDK never sees the database")


@requirement("steps.sdk")
@pytest.mark.parametrize(
    "value",
    [None, True, 7, 1.5, "text", "", "é\n" * 5_000, [], [1, [2, {}]], {"a": {"b": None}}, b"", bytes(range(256)) * 99],
    ids=lambda value: f"{type(value).__name__}-{len(value) if hasattr(value, '__len__') else value}",
)
def test_a_step_runs_once_and_its_value_comes_back(program: Program, value: Any) -> None:
    ran: list[int] = []

    def handler(task: Task) -> Any:
        got: Any = task.step("make", noted, ran, value)
        assert got == value
        assert type(got) is type(value)
        return "done"

    program.fail_once(handler)
    assert program.result(handler) == "done"
    assert ran == [value]


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


@requirement("steps.sdk")
@pytest.mark.parametrize(("value", "plain"), [(Colour.RED, "red"), (Size.SMALL, 1), ([Colour.RED], ["red"])])
def test_a_value_of_a_subclass_is_plain_in_the_first_attempt_too(program: Program, value: Any, plain: Any) -> None:
    def handler(task: Task) -> Any:
        got: Any = task.step("make", lambda: value)
        assert type(got) is type(plain)
        return got

    assert program.result(handler) == plain


@requirement("steps.sdk")
def test_a_number_that_is_too_long_for_json_fails_its_step(program: Program) -> None:
    error = program.error(lambda task: task.step("count", lambda: 10**5_000))
    assert error["code"] == "STEP_FAILED"
    assert "cannot be recorded" in error["message"]


@requirement("steps.sdk")
def test_steps_nest_and_may_have_any_name(program: Program) -> None:
    ran: list[str] = []

    def inner(task: Task, name: str) -> str:
        ran.append(name)
        return task.step("a/b #2 ünïcode%", ran.append, f"{name} inside") or name

    def handler(task: Task) -> Any:
        return [task.step(name, inner, task, name) for name in names]

    names = ["x", "x", "x/y", "x#2", ".", "..", "."]
    program.fail_once(handler)
    first = list(ran)
    assert program.result(handler) == names
    assert ran == first
    assert len(first) == 2 * len(names)


@requirement("steps.sdk")
def test_steps_side_by_side_in_threads_keep_their_values(program: Program) -> None:
    ran: list[int] = []

    def square(n: int) -> int:
        ran.append(n)
        return n * n

    def handler(task: Task) -> Any:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda n: task.step(f"square {n}", square, n), range(24)))

    program.fail_once(handler)
    assert program.result(handler) == [n * n for n in range(24)]
    assert sorted(ran) == list(range(24))


@requirement("steps.sdk")
def test_steps_in_threads_need_names_of_their_own(program: Program) -> None:
    def handler(task: Task) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda n: task.step("square", lambda: n), range(2)))

    assert "need names of their own" in program.error(handler)["message"]


@requirement("steps.sdk")
def test_threads_that_come_in_another_order_are_no_changed_program(program: Program) -> None:
    def run(names: list[str]) -> Handler:
        def handler(task: Task) -> Any:
            task.step("first", lambda: 1)
            for name in names:  # one after another, as chance may have it
                thread = threading.Thread(target=task.step, args=(name, lambda: 1))
                thread.start()
                thread.join()
            return task.step("last", lambda: 1)

        return handler

    program.fail_once(run(["a", "b", "c"]))
    program.fail_once(run(["c", "a", "b", "d"]))
    assert program.result(run(["b"])) == 1


@requirement("steps.sdk", "steps.retry")
def test_a_step_that_goes_well_after_a_retry_may_lead_elsewhere(program: Program) -> None:
    is_up = False

    def fetch() -> str:
        if not is_up:
            raise OSError("down")
        return "fetched"

    def handler(task: Task) -> Any:
        try:
            return task.step("primary", fetch)
        except StepFailed:
            task.step("fallback", lambda: task.step("inner", lambda: 1))
            raise

    assert program.error(handler)["code"] == "STEP_FAILED"
    is_up = True
    program.retry()
    assert program.result(handler) == "fetched"


@requirement("steps.sdk")
def test_steps_side_by_side_in_coroutines_keep_their_values(program: Program) -> None:
    ran: list[int] = []

    async def square(n: int) -> int:
        await asyncio.sleep(0.001 * (n % 3))
        ran.append(n)
        return n * n

    async def handler(task: Task) -> Any:
        # The same name for all: they are told apart by the order in which they begin.
        return await asyncio.gather(*(task.step("square", square, n) for n in range(24)))

    program.fail_once(handler)
    assert program.result(handler) == [n * n for n in range(24)]
    assert sorted(ran) == list(range(24))


@requirement("steps.sdk")
@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_step_is_recorded_although_the_program_uses_all_threads_of_asyncio(
    program: Program, is_coroutine: bool
) -> None:
    begun, ends = threading.Event(), threading.Event()

    def wait() -> bool:
        begun.set()
        return ends.wait(60)

    async def ask() -> str:
        return "answer"

    async def main(task: Task) -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        blocked = asyncio.ensure_future(asyncio.to_thread(wait))
        while not begun.is_set():
            await asyncio.sleep(0)
        try:
            return [await task.step("ask", ask), await task.effect("pay", pay), blocked.done()]
        finally:
            ends.set()
            await blocked

    async def pay(key: str) -> str:
        return "paid"

    def run(task: Task) -> Any:
        return asyncio.run(main(task))

    assert program.result(main if is_coroutine else run) == ["answer", "paid", False]


@requirement("steps.sdk", "steps.retry")
def test_an_error_is_recorded_and_runs_again_only_after_a_retry(program: Program) -> None:
    ran: list[int] = []

    def broken() -> None:
        ran.append(1)
        raise OSError("no route")

    def handler(task: Task) -> str:
        for _ in range(2):
            with pytest.raises(StepFailed, match="no route") as caught:
                task.step("fetch", broken)
        assert caught.value.kind == "OSError"
        task.sleep(0)
        return "went on"

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "went on"
    assert ran == [1, 1]  # two steps of that name, each once, over two attempts


CHANGED: list[tuple[list[str], list[str], bool]] = [
    (["a", "b", "c"], ["a", "b", "c"], False),
    (["a", "b"], ["a", "b", "c"], False),  # it goes on
    (["a", "b", "c"], ["a", "x", "c"], True),
    (["a", "b", "c"], ["b", "a", "c"], True),
    (["a", "b", "c"], ["a", "b"], True),
    (["a", "b"], ["x", "a", "b"], True),
    (["a", "a"], ["a"], True),
    (["a"], [], True),
]


@requirement("steps.sdk")
@pytest.mark.parametrize(("before", "after", "is_changed"), CHANGED)
def test_a_changed_program_is_told_from_an_unchanged_one(
    program: Program, before: list[str], after: list[str], is_changed: bool
) -> None:
    def run(names: list[str]) -> Handler:
        return lambda task: [task.step(name, lambda: 1) for name in names]

    program.fail_once(run(before))
    verb, body = program.attempt(run(after))
    assert (verb, body.get("error", {}).get("code")) == (
        ("fail", "STEP_MISMATCH") if is_changed else ("complete", None)
    )


@requirement("steps.sdk")
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(["poll"] * 3, ["poll"] * 2, "'poll#3'"), (["poll", "send/#1"], ["poll", "poll"], "'send/#1', and .* 'poll#2'")],
)
def test_a_mismatch_says_which_of_several_steps_of_a_name(
    program: Program, before: list[str], after: list[str], said: str
) -> None:
    def run(names: list[str]) -> Handler:
        return lambda task: [task.step(name, lambda: 1) for name in names]

    program.fail_once(run(before))
    assert re.search(said, program.error(run(after))["message"])


@requirement("steps.sdk")
def test_a_mismatch_names_both_steps(program: Program) -> None:
    program.fail_once(lambda task: task.step("fetch", lambda: 1))

    def handler(task: Task) -> None:
        with pytest.raises(StepMismatch, match=r"'fetch'.*'download'"):
            task.step("download", lambda: 1)
        raise StepMismatch("fetch", "download")

    assert program.error(handler)["code"] == "STEP_MISMATCH"


@requirement("steps.sdk")
@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {"a": object()}])
def test_a_value_that_is_neither_json_nor_bytes_is_a_clear_error(program: Program, value: Any) -> None:
    error = program.error(lambda task: task.step("make", lambda: value))
    assert "neither JSON nor bytes" in error["message"]


@requirement("steps.sdk")
def test_a_coroutine_in_place_of_its_function_is_a_clear_error(program: Program) -> None:
    async def think() -> int:
        return 1

    assert "coroutine function itself" in program.error(lambda task: task.step("think", lambda: think()))["message"]


@requirement("steps.sdk", "steps.fenced")
def test_a_step_that_ends_after_the_lease_is_lost_is_not_recorded(program: Program) -> None:
    def handler(task: Task) -> None:
        def cancel() -> int:
            program.call("POST", f"/tasks/{program.task_id}/cancel")
            return 1

        task.step("slow", cancel)

    program.worker.handler(handler)
    task = program.claim()
    with pytest.raises(TaskCancelled):
        program.worker._execute(task)
    assert task.cancelled
    assert program.call("GET", f"/tasks/{program.task_id}/steps")["steps"] == []


@requirement("steps.effects", "steps.sdk")
def test_an_effect_is_sent_once_and_gets_its_key(program: Program) -> None:
    sent: list[tuple[str, int]] = []

    def pay(key: str, amount: int) -> dict[str, int]:
        sent.append((key, amount))
        return {"paid": amount}

    def handler(task: Task) -> Any:
        return task.effect("pay", pay, 5)

    program.fail_once(handler)
    assert program.result(handler) == {"paid": 5}
    assert len(sent) == 1
    assert sent[0][0] == program.call("GET", f"/tasks/{program.task_id}/steps/pay")["provenance_id"]


def noted(notes: list[Any], value: Any) -> Any:
    """Note that this ran, and return the value."""
    notes.append(value)
    return value


class Died(GeneratorExit):
    """The worker dies here: no error of the effect, after which it would be asked about."""


def dies_after_sending(program: Program, **how: Any) -> list[str]:
    """An attempt that sends an effect and dies before it records it; the lease is lost. Returns the keys that were
    sent.
    """
    sent: list[str] = []

    def pay(key: str) -> None:
        sent.append(key)
        raise Died

    task = program.claim()
    with pytest.raises(Died):
        task.effect("pay", pay, **how)
    task.post("fail", {"error": {"message": "its lease was lost"}})
    program.retry()
    return sent


@requirement("steps.effects", "steps.sdk")
def test_an_unknown_effect_is_sent_again_with_its_key_where_the_other_side_takes_it(program: Program) -> None:
    sent = dies_after_sending(program, idempotent=True)
    assert program.result(lambda task: task.effect("pay", lambda key: noted(sent, key), idempotent=True))
    assert len(sent) == 2
    assert len(set(sent)) == 1


@requirement("steps.effects", "steps.sdk")
@pytest.mark.parametrize("happened", [True, False])
def test_an_unknown_effect_is_asked_about_where_it_can_be(program: Program, happened: bool) -> None:
    sent = dies_after_sending(program, check=lambda key: None)

    def check(key: str) -> str | None:
        assert key == sent[0]
        return "found" if happened else None

    got = program.result(lambda task: task.effect("pay", lambda key: (noted(sent, key), "sent")[1], check=check))
    assert (got, len(sent)) == (("found", 1) if happened else ("sent", 2))


@requirement("steps.effects", "steps.sdk")
def test_an_unknown_effect_is_held_for_a_person_where_nothing_can_be_known(program: Program) -> None:
    sent = dies_after_sending(program)

    def handler(task: Task) -> Any:
        return task.effect("pay", lambda key: noted(sent, key))

    for _ in range(2):
        assert program.error(handler)["code"] == "EFFECT_UNKNOWN"
        program.retry()
    program.error(handler)
    program.call("POST", f"/tasks/{program.task_id}/steps/pay/resolve", {"happened": True, "value": "seen"})
    program.retry()
    assert program.result(handler) == "seen"
    assert len(sent) == 1


@requirement("steps.effects", "steps.sdk")
def test_an_error_while_sending_says_nothing_but_effect_failed_does(program: Program) -> None:
    def times_out(key: str) -> None:
        raise TimeoutError("no answer")

    def declined(key: str) -> None:
        raise EffectFailed("the card was declined")

    def handler(task: Task) -> str:
        with pytest.raises(EffectUnknown):
            task.effect("first", times_out)
        with pytest.raises(EffectUnknown, match="SystemExit: 1"):
            task.effect("exit", lambda key: sys.exit(1))
        with pytest.raises(StepFailed, match="declined") as caught:
            task.effect("second", declined)
        assert caught.value.kind == EffectFailed.__name__
        assert task.effect("third", times_out, check=lambda key: "it did happen") == "it did happen"
        return "done"

    assert program.result(handler) == "done"
    steps = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
    assert {step["key"]: step["state"] for step in steps} == {
        "first": "started",
        "exit": "started",
        "second": "failed",
        "third": "completed",
    }


@requirement("steps.effects", "steps.sdk")
def test_effects_of_coroutines_are_the_same(program: Program) -> None:
    sent: list[str] = []

    async def pay(key: str, amount: int) -> int:
        await asyncio.sleep(0)
        sent.append(key)
        return amount

    async def handler(task: Task) -> Any:
        return await asyncio.gather(task.effect("pay", pay, 1), task.effect("pay", pay, 2))

    program.fail_once(handler)
    assert program.result(handler) == [1, 2]
    assert len(set(sent)) == 2


@requirement("steps.waits", "steps.sdk")
def test_a_handler_goes_on_where_it_waited(program: Program) -> None:
    ran: list[str] = []

    def handler(task: Task) -> Any:
        task.step("before", ran.append, "before")
        task.sleep(0.01)
        paid = task.wait_for("paid")
        answer = task.ask("Book it?", ["yes", "no"])
        task.step("after", ran.append, "after")
        return [paid, answer]

    assert program.attempt(handler) == ("suspend", {"keys": ["sleep"]})
    assert program.attempt(handler) == ("suspend", {"keys": ["paid"]})
    program.call("POST", f"/tasks/{program.task_id}/signals", {"name": "paid", "value": 7})
    assert program.attempt(handler) == ("suspend", {"keys": ["question"]})
    program.call("POST", f"/tasks/{program.task_id}/steps/question/answer", {"value": "yes"})
    assert program.result(handler) == [7, "yes"]
    assert ran == ["before", "after"]


@requirement("steps.waits", "steps.sdk")
def test_what_a_handler_catches_does_not_stop_it_from_waiting(program: Program) -> None:
    def handler(task: Task) -> Any:
        try:
            return task.wait_for("never", timeout=0.01)
        except WaitTimeout as error:
            return str(error)
        except Exception:  # noqa: BLE001 - a handler that catches everything
            return "caught"

    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "never: No signal 'never' arrived in time."


@requirement("steps.waits", "steps.sdk")
def test_coroutines_wait_side_by_side_and_the_others_finish_first(program: Program) -> None:
    ran: list[str] = []

    async def slow() -> str:
        await asyncio.sleep(0.05)
        ran.append("slow")
        return "slow"

    async def handler(task: Task) -> Any:
        return await task.gather(task.sleep(0.01), task.step("slow", slow), task.wait_for("go"), task.sleep(0))

    assert program.attempt(handler)[0] == "suspend"
    program.call("POST", f"/tasks/{program.task_id}/signals", {"name": "go", "value": 1})
    verb, body = "suspend", dict[str, Any]()
    while verb == "suspend":  # each wait that ends may wake it
        verb, body = program.attempt(handler)
    assert body["result"] == [None, "slow", 1, None]
    assert ran == ["slow"]


@requirement("steps.children", "steps.sdk")
def test_a_coroutine_waits_for_children_and_others_together(program: Program) -> None:
    async def slow() -> str:
        return "slow"

    async def handler(task: Task) -> Any:
        if task.type == "child":
            return "child"
        child = await task.start_child("child", 1, capabilities=program.body["required_capabilities"])
        return await task.gather(child, task.step("slow", slow))

    assert [program.attempt(handler)[0] for _ in range(2)] == ["suspend", "complete"]
    assert program.result(handler) == ["child", "slow"]


@requirement("steps.effects", "steps.sdk")
def test_an_effect_that_runs_when_its_coroutine_handler_ends_is_finished_and_recorded(program: Program) -> None:
    async def handler(task: Task) -> Any:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def pay(key: str) -> str:
            begun.set()
            await ended.wait()
            await asyncio.sleep(0.01)
            return "paid"

        async def broken() -> None:
            await begun.wait()
            raise ValueError("no")

        try:
            return await asyncio.gather(task.effect("pay", pay), broken())
        finally:
            ended.set()

    assert program.error(handler)["message"] == "ValueError: no"
    (step,) = program.call("GET", f"/tasks/{program.task_id}/steps")["steps"]
    assert (step["key"], step["value"]) == ("pay", "paid")


@requirement("steps.children", "steps.sdk")
def test_children_are_submitted_once_and_their_results_gathered(program: Program) -> None:
    capability, own_id = program.body["required_capabilities"][0], f"own-{program.task_id}"

    def handler(task: Task) -> Any:
        if task.type == "child":
            if task.input == 2:
                raise ValueError("two")
            return task.input * 10
        children = [task.start_child("child", n, capabilities=[capability]) for n in (1, 3)]
        children.append(task.start_child("child", 4, capabilities=[capability], id=own_id))
        assert all(isinstance(child, Child) for child in children)
        values = task.gather(*children)
        with pytest.raises(ChildFailed, match="two") as caught:
            task.child("child", 2, capabilities=[capability])
        return [*values, caught.value.status]

    program.worker._handler = handler
    thread = threading.Thread(target=program.worker.run)
    thread.start()
    try:
        ended = until(lambda: _ended(program))
    finally:
        program.worker.stop()
        thread.join()
    assert (ended["status"], ended["result"]) == ("completed", [10, 30, 40, "failed"])
    found = program.call("GET", f"/tasks?parent_task_id={program.task_id}")["tasks"]
    assert len(found) == 4
    assert own_id in [child["task_id"] for child in found]


@requirement("steps.children", "steps.sdk")
def test_a_child_is_in_the_trace_of_its_parent(program: Program) -> None:
    traceparent = f"00-{'ab' * 16}-{'cd' * 8}-01"

    def handler(task: Task) -> Any:
        task.metadata["traceparent"] = traceparent  # as of a claim, if the submission had one or spans are recorded
        return task.start_child("child", 1, **_unclaimed(program)).id

    _, body = program.attempt(handler)
    assert program.call("GET", f"/tasks/{body['result']}")["metadata"]["traceparent"] == traceparent


@requirement("steps.children", "steps.sdk")
def test_gather_raises_the_same_error_after_another_child_has_failed(program: Program) -> None:
    unclaimed = _unclaimed(program)

    def handler(task: Task) -> Any:
        children = [task.start_child("child", n, id=f"{task.id}-{n}", **unclaimed) for n in range(4)]
        try:
            task.gather(*children)
        except ChildFailed as error:
            return [error.task_id, task.ask(f"{error} Go on?")]

    def cancel(number: int) -> None:
        program.call("POST", f"/tasks/{program.task_id}-{number}/cancel")

    assert program.attempt(handler)[0] == "suspend"
    cancel(1)
    assert program.attempt(handler)[0] == "suspend"
    cancel(0)
    cancel(2)
    program.call("POST", f"/tasks/{program.task_id}/steps/question/answer", {"value": "yes"})
    assert program.result(handler) == [f"{program.task_id}-1", "yes"]
    assert program.worker.replay(program.task_id).is_same


async def vote(task: Task, name: str) -> None:
    if await task.wait_for(name) == "no":
        raise Failed(f"{name} said no")


BRANCHES: dict[str, Any] = {
    "coroutine": vote,
    "step": lambda task, name: task.step(f"vote {name}", vote, task, name),
    "task": lambda task, name: asyncio.create_task(task.step(f"vote {name}", vote, task, name)),
    "gather": lambda task, name: task.gather(vote(task, f"other {name}"), vote(task, name)),
}


@requirement("steps.waits", "steps.sdk")
@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
def test_gather_raises_the_same_error_after_another_branch_has_failed(program: Program, branch: Any) -> None:
    async def handler(task: Task) -> Any:
        with pytest.raises(Failed, match="right said no"):
            await task.gather(*(branch(task, name) for name in ("left", "right", "middle")))
        return await task.wait_for("go")

    def send(name: str) -> tuple[str, Any]:
        program.call("POST", f"/tasks/{program.task_id}/signals", {"name": name, "value": "no"})
        return program.attempt(handler)

    assert program.attempt(handler)[0] == "suspend"
    assert send("right")[0] == "suspend"
    assert send("left")[0] == "suspend"
    assert send("go") == ("complete", {"result": "no"})
    assert program.worker.replay(program.task_id).is_same


@requirement("steps.children", "steps.sdk")
def test_gather_raises_the_same_error_when_a_child_had_failed_unseen_before(program: Program) -> None:
    async def work(child: Child) -> None:
        await asyncio.to_thread(until, lambda: len(program.call("GET", steps)["steps"]) == 2)
        program.call("POST", f"/tasks/{child.id}/cancel")
        raise Failed("work")

    steps, raised, unclaimed = f"/tasks/{program.task_id}/steps", list[str](), _unclaimed(program)

    async def handler(task: Task) -> Any:
        child = await task.start_child("child", 1, **unclaimed)
        try:
            await task.gather(child, task.step("work", work, child))
        except Failed as error:
            raised.append(str(error))
        await task.sleep(0)

    while program.attempt(handler)[0] == "suspend":
        pass
    assert len(raised) > 1
    assert set(raised) == {"Step 'work' failed: Failed: work"}


def _unclaimed(program: Program) -> dict[str, Any]:
    """Return the fields of a child that begins tomorrow."""
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    return {"capabilities": program.body["required_capabilities"], "start_at": tomorrow.isoformat()}


def _ended(program: Program) -> Any:
    task = program.call("GET", f"/tasks/{program.task_id}")
    return task if task["status"] in ("completed", "failed") else None


@requirement("tasks.rerun-from")
def test_a_task_runs_again_from_one_of_its_steps(program: Program) -> None:
    ran: list[str] = []

    def handler(task: Task) -> Any:
        first = task.step("first", noted, ran, "first")
        try:
            task.step("broken", fail)
        except StepFailed:
            ran.append("went on")
        paid = task.effect("pay", lambda key: noted(ran, "paid"))
        return [first, paid, task.step("last", noted, ran, "last")]

    assert program.result(handler) == ["first", "paid", "last"]
    answer = program.call("POST", f"/tasks/{program.task_id}/rerun", {"from_step": "last"})
    assert answer["task_id"] != program.task_id
    ran.clear()
    assert program.result(handler) == ["first", "paid", "last"]
    assert ran == ["went on", "last"]


@requirement("tasks.rerun-from", "steps.sdk")
def test_a_program_may_take_another_path_after_a_step_that_runs_again(program: Program) -> None:
    broken = [True]

    def fetch() -> str:
        return fail() if broken[0] else "primary"

    def handler(task: Task) -> Any:
        try:
            source = task.step("primary", fetch)
        except StepFailed:
            source = task.step("backup", lambda: "backup")
        task.step("note", lambda: 1)
        fetched = task.step("last", fetch)
        task.sleep(0.01)
        return [source, fetched]

    program.error(handler)
    broken[0] = False
    program.retry()
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == ["primary", "primary"]
    for key in ("last", "note", "primary"):
        program.call("POST", f"/tasks/{program.task_id}/rerun", {"from_step": key})
        assert program.attempt(handler)[0] == "suspend"
        assert program.result(handler) == ["primary", "primary"]


@requirement("steps.sdk")
def test_a_program_may_leave_the_path_to_a_failed_step_and_the_steps_in_it(program: Program) -> None:
    broken = [True]

    def fallback(task: Task) -> Any:
        return [task.step("inside", lambda: 1), fail()]

    def handler(task: Task) -> Any:
        try:
            source = task.step("primary", lambda: fail() if broken[0] else "primary")
        except StepFailed:
            source = task.step("backup", fallback, task)
        task.sleep(0.01)
        return source

    program.error(handler)
    broken[0] = False
    program.retry()
    # Before "primary" runs again, and after it has.
    assert program.attempt(handler)[0] == "suspend"
    assert program.result(handler) == "primary"


@requirement("tasks.rerun-from", "steps.children")
@pytest.mark.parametrize("key", ["start child#2", "start child/child"])
def test_a_task_that_runs_again_waits_for_the_children_from_before_and_retries_failed_ones(
    program: Program, key: str
) -> None:
    capability, broken = program.body["required_capabilities"], [True]

    def handler(task: Task) -> Any:
        if task.type == "child":
            return fail() if broken[0] else task.input * 10
        return task.gather(*[task.start_child("child", n, capabilities=capability) for n in (1, 2)])

    def run() -> tuple[str, Any]:
        while (ended := _ended(program)) is None:
            program.attempt(handler)
        return ended["status"], ended["result"]

    assert run() == ("failed", None)
    broken[0] = False
    program.task_id = program.call("POST", f"/tasks/{program.task_id}/rerun", {"from_step": key})["task_id"]
    assert run() == ("completed", [10, 20])


def fail() -> Any:
    raise ValueError("no")
