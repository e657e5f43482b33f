"""Replays of runs by the worker SDK: what is the same, what differs, and that nothing is sent or recorded."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor_worker import Replay, ServiceError, Task
from stentor_worker.__main__ import main
from stentor_worker.http.client import Client
from tests.processes.programs import Handler, Program
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="the SDK never sees the database")
SENT: list[str] = []


def send(key: str) -> str:
    SENT.append(key)
    return "sent"


def replay(program: Program, handler: Handler, task_id: str | None = None) -> Replay:
    """Replay with a handler, and make sure that nothing was sent or recorded."""
    found, sent = task_id or program.task_id, list(SENT)
    before = program.call("GET", f"/tasks/{found}"), program.call("GET", f"/tasks/{found}/activity?limit=500")
    program.worker._handler = handler
    result = program.worker.replay(found)
    assert sent == SENT
    assert before == (
        program.call("GET", f"/tasks/{found}"),
        program.call("GET", f"/tasks/{found}/activity?limit=500"),
    )
    return result


def nested(task: Task, name: str) -> str:
    return f"{name} {task.step('inside', lambda: len(name))}"


def book(task: Task) -> Any:
    first = task.step("plan", nested, task, str(task.input))
    blob = task.step("blob", lambda: b"\x00" * 1_000_000)
    task.emit("not in a replay")
    return [first, task.effect("pay", send), len(blob)]


@requirement("steps.replay")
def test_a_run_is_the_same_and_nothing_is_sent(program: Program) -> None:
    program.result(book)
    assert replay(program, book) == Replay(program.task_id, None, None, (), 3)


@requirement("steps.replay")
def test_a_changed_program_is_told_where_it_differs(program: Program) -> None:
    program.result(book)

    def renamed(task: Task) -> Any:
        task.step("plan", nested, task, "x")
        return task.step("make blob", lambda: b"")

    def longer(task: Task) -> Any:
        return [book(task), task.step("thank", lambda: 1)]

    def shorter(task: Task) -> Any:
        return task.step("plan", nested, task, "x")

    def other_end(task: Task) -> Any:
        return [book(task), 1]

    def broken(task: Task) -> Any:
        raise RuntimeError(f"no {book(task)[1]}")

    def without_steps(task: Task) -> Any:
        return program.call("GET", f"/tasks/{task.id}")["result"]

    def stubborn(task: Task) -> Any:
        try:
            return renamed(task)
        except BaseException:  # noqa: BLE001 - what no program should do
            return task.effect("pay", send)

    assert "'blob', and this program runs 'make blob' there" in (replay(program, renamed).difference or "")
    added = replay(program, longer)
    assert (added.stopped_at, "continues with the step 'thank'" in (added.difference or "")) == ("thank", True)
    assert replay(program, shorter).unreached == ("blob", "pay")
    assert replay(program, without_steps).unreached == ("plan/inside", "plan", "blob", "pay")
    assert "result differs: result was " in (replay(program, other_end).difference or "")
    assert "HANDLER_FAILED: RuntimeError: no sent" in (replay(program, broken).difference or "")
    assert "'make blob'" in (replay(program, stubborn).difference or "")


@requirement("steps.replay")
@pytest.mark.parametrize(
    ("before", "now", "difference"),
    [
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "y"}]}, """result['a'][1]['b'] was "x", and is "y" now"""),
        ({"a": 1}, {"c": 1}, "result['a'] was 1, and is missing now"),
        ([1], [1, 2], "result was [1], and is [1, 2] now"),
        ("a" * 300 + "b", "a" * 300 + "\ud800", 'result from character 301 was "b", and is "?" now'),
        (None, "c" * 300, f'result was null, and is "{"c" * 199}... (302 characters) now'),
    ],
    ids=["value", "name", "length", "long text", "long value"],
)
def test_a_result_that_differs_is_located(program: Program, before: Any, now: Any, difference: str) -> None:
    program.result(lambda task: before)
    assert (
        replay(program, lambda task: now).difference == f"The steps are the same, and the result differs: {difference}."
    )


@requirement("steps.replay")
def test_steps_side_by_side_are_compared_too(program: Program) -> None:
    def runs(*names: str) -> Handler:
        async def handler(task: Task) -> Any:
            async def work(name: str) -> str:
                await asyncio.sleep(0)
                return name

            return await task.gather(*(asyncio.create_task(_stepped(task, name, work)) for name in names))

        return handler

    program.result(runs("a", "b", "c"))
    assert replay(program, runs("a", "b", "c")).is_same
    assert replay(program, runs("a", "c")).unreached == ("b",)
    assert replay(program, runs("a", "b", "c", "d")).stopped_at == "d"


async def _stepped(task: Task, name: str, work: Any) -> Any:
    return await task.step(name, work, name)


@requirement("steps.replay")
def test_a_run_that_has_not_ended_is_compared_as_far_as_it_went(program: Program) -> None:
    def waits(task: Task) -> Any:
        task.step("plan", lambda: 1)
        return task.ask("Go on?")

    def unsure(task: Task) -> Any:
        task.step("plan", lambda: 1)
        return task.effect("pay", fails)

    def fails(key: str) -> None:
        raise TimeoutError(key)

    def waits_within(task: Task) -> Any:
        return task.step("booking", waits, task)

    def unsure_within(task: Task) -> Any:
        return task.step("booking", unsure, task)

    verb, _ = program.attempt(waits)
    assert (verb, replay(program, waits).is_same) == ("suspend", True)
    assert not replay(program, lambda task: task.ask("Stop?")).is_same
    program.task_id = program.submit()
    program.error(unsure)
    held = replay(program, unsure)
    assert (held.is_same, held.stopped_at) == (True, "pay")
    assert replay(program, unsure, program.submit()).stopped_at == "plan"
    program.claim()
    for handler in (waits_within, unsure_within):
        program.task_id = program.submit()
        program.attempt(handler)
        assert replay(program, handler).is_same


@requirement("steps.replay")
def test_a_run_that_goes_on_from_a_step_of_another_is_replayed(program: Program) -> None:
    program.result(book)
    again = program.call("POST", f"/tasks/{program.task_id}/rerun", {"from_step": "blob"})["task_id"]
    program.result(book)
    assert replay(program, book, again).is_same


@requirement("steps.replay")
def test_the_command_says_it_with_its_exit_code(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program.result(book)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_traveller.py").write_text(
        "from tests.processes import test_worker_replay as t\nworker = t.WORKERS[0]\n"
    )
    WORKERS[:] = [program.worker]
    command = ["replay", "my_traveller:worker", program.task_id]
    assert main(command) == 0
    assert "the same, 3 steps" in capsys.readouterr().out
    program.worker._handler = lambda task: task.step("other", lambda: 1)
    assert main([*command, program.task_id]) == 1
    assert "'other'" in capsys.readouterr().out
    assert main(["replay", "my_traveller:worker", "unknown", program.task_id]) == 2
    answer = capsys.readouterr()
    assert "unknown: NOT_FOUND" in answer.err
    assert "'other'" in answer.out, "the runs after it are replayed all the same"
    (tmp_path / "my_broken.py").write_text("worker = undefined\n")
    assert main(["replay", "my_broken:worker", program.task_id]) == 2
    assert "NameError: name 'undefined' is not defined" in capsys.readouterr().err
    (tmp_path / "my_exit.py").write_text("import sys\nsys.exit('Set WORKER_KEY.')\n")
    assert main(["replay", "my_exit:worker", program.task_id]) == 2, "1 would say that the run differs"
    assert "SystemExit: Set WORKER_KEY." in capsys.readouterr().err
    (tmp_path / "my_runner.py").write_text(
        "from tests.processes import test_worker_replay as t\nworker = t.WORKERS[0]\nworker.run()\n"
    )
    assert main(["replay", "my_runner:worker", program.task_id]) == 2, "nor is a task done"
    assert 'under `if __name__ == "__main__":`' in capsys.readouterr().err
    assert main(["replay", "my_traveller:nobody", "x"]) == main(["replay", "no_such_module:w", "x"]) == 2
    with pytest.raises(ServiceError):
        program.worker.replay("unknown")


WORKERS: list[Any] = []


@requirement("steps.replay")
def test_a_program_without_its_timeout_is_told_after_the_longest_there_can_have_been(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def patient(task: Task) -> str:
        await task.step("plan", asyncio.Event().wait)
        return "plan"

    async def impatient(task: Task) -> str:
        try:
            await asyncio.wait_for(task.step("plan", asyncio.Event().wait), 1)
        except TimeoutError:
            return "no plan"
        return "plan"

    call = Client.call

    def shorten(self: Client, method: str, path: str, body: Any = None, **options: Any) -> Any:
        answer = call(self, method, path, body, **options)
        return answer | {"timeout_seconds": 0} if path == f"/tasks/{program.task_id}" else answer

    assert program.result(impatient) == "no plan"
    assert replay(program, impatient).is_same
    monkeypatch.setattr(Client, "call", shorten)
    found = replay(program, patient)
    assert found.difference == "The run cancelled the step 'plan', such as by a timeout, and this program did not."
