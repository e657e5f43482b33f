"""What a journal of many steps costs a worker."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from stentor_worker.journal import Journal
from stentor_worker.steps import run_step


class RecordedSteps:
    """Stands for the client of the service: the journal has so many steps, each with one within."""

    def __init__(self, count: int) -> None:
        keys = [key for n in range(count) for key in (f"order {n}/pay", f"order {n}")]
        self._steps = [step(key, 0 if key.endswith("/pay") else n // 2) for n, key in enumerate(keys)]

    def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"steps": self._steps, "next_cursor": None}


def step(key: str, position: int) -> dict[str, Any]:
    fields = {"state": "completed", "kind": "step", "epoch": 1, "superseded": False, "position": position}
    return {"key": key, "name": key.rpartition("/")[2], **fields}


class LongValues:
    """Stands for the client of the service: pages without the values. The first value comes after the fourth one."""

    def __init__(self, keys: list[str]) -> None:
        self.read = list[str]()
        self.is_fourth_read = threading.Event()
        sha = {"value_sha256": "x", "value": None, "encoding": None, "error": None, "started_at": 1, "ended_at": 1}
        self._steps = [step(key, n) | sha for n, key in enumerate(keys)]

    def call(self, _method: str, path: str, *_: Any, tries: int) -> dict[str, Any]:
        if "?" in path:
            return {"steps": self._steps, "next_cursor": None}
        key = path.partition("/steps/")[2]
        self.read.append(key)
        if key == "s0":
            assert self.is_fourth_read.wait(60)
        if key == "s3":
            self.is_fourth_read.set()
        if key == "s5" and tries == 1:
            raise ConnectionError
        return {"value": f"value of {key}"}


async def test_long_values_are_read_several_at_once_and_each_once() -> None:
    names = [f"s{n}" for n in range(30)]
    client = LongValues([*names, "s7/within"])
    journal = Journal(client, "trip", 2, threading.Event())  # pyrefly: ignore[bad-argument-type]
    journal.open_here()
    journal.load()
    in_order = [*names[:20], *reversed(names[20:])]
    entries = {name: journal.enter(name, "step") for name in names}

    async def replay(name: str) -> Any:
        return await run_step(journal, entries[name], pytest.fail, call_at_once)

    values = await asyncio.gather(*map(replay, in_order))
    assert values == [f"value of {name}" for name in in_order]
    assert sorted(client.read) == sorted([*names, "s5"]), "within s7 nothing runs again"


def test_long_values_are_read_one_by_one_if_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    names = ["s3", "s4", "s5", "s6"]
    journal = Journal(LongValues(names), "trip", 2, threading.Event())  # pyrefly: ignore[bad-argument-type]
    journal.open_here()
    journal.load()
    monkeypatch.setattr(threading.Thread, "start", start)
    entries = [journal.enter(name, "step") for name in names]
    assert [journal.replay(entry, recorded) for entry in entries if (recorded := journal.find(entry))] == [
        f"value of {name}" for name in names
    ]


def count_lines(run: Callable[[Journal, int], None], steps: int) -> int:
    """Return how many lines are executed in an attempt that resumes, each turn of a loop counted."""
    journal = Journal(RecordedSteps(steps), "trip", 2, threading.Event())  # pyrefly: ignore[bad-argument-type]
    lines = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(journal, steps)
    finally:
        sys.settrace(before)
    return lines


def find_all(journal: Journal, steps: int) -> None:
    journal.open_here()
    for n in range(steps):
        journal.find(journal.enter(f"order {n}", "step"))
    journal.require_complete()


def go_on_after_errors(journal: Journal, steps: int) -> None:
    async def run() -> None:
        journal.open_here()
        all_failed = asyncio.Event()

        async def branch(n: int) -> None:
            failed = journal.enter(f"pay {n}", "step")
            failed.scope.note_failed(failed)
            await all_failed.wait()
            assert journal.enter(f"refund {n}", "step").handled == [failed.key]

        branches = [asyncio.create_task(branch(n)) for n in range(steps)]
        await asyncio.sleep(0)
        all_failed.set()
        await asyncio.gather(*branches)

    asyncio.run(run())


@pytest.mark.parametrize("run", [find_all, go_on_after_errors])
def test_the_time_is_in_proportion_to_the_number_of_steps(run: Callable[[Journal, int], None]) -> None:
    assert count_lines(run, 800) < 6 * count_lines(run, 200)


class Receiver:
    """Stands for the client of the service: keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def call(self, _method: str, _path: str, body: Any, **_: Any) -> dict[str, Any]:
        self.sent.append(body)
        return {"recorded": True, "kind": "step", "epoch": 1, "ended_at": ""}


async def call_at_once(function: Callable[..., Any], /, *args: Any) -> Any:
    return function(*args)


async def test_a_step_whose_coroutine_is_closed_is_not_recorded_as_failed() -> None:
    """Garbage collection closes a coroutine that nothing awaits any more, and in another context than its own."""
    client = Receiver()
    journal = Journal(client, "trip", 1, threading.Event(), is_empty=True)  # pyrefly: ignore[bad-argument-type]
    running = run_step(journal, journal.enter("pay", "step"), lambda: asyncio.sleep(60), call_at_once)
    contextvars.copy_context().run(running.send, None)
    with suppress(Exception):
        running.close()
    assert client.sent == []
