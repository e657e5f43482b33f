"""Timers that are nearly always taken back."""

from __future__ import annotations

import asyncio

import pytest

from stentor.core import deadlines
from stentor.core.deadlines import Deadlines

SOON = 60
"""Seconds at most for what is due at once."""


@pytest.fixture
async def timers() -> Deadlines:
    return deadlines.of(asyncio.get_running_loop())


async def test_what_is_due_goes_off_once_and_not_before(timers: Deadlines) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    began, fired = loop.time(), []

    def work() -> None:
        fired.append(loop.time() - began)
        gone.set()

    timers.put(gone, 0.1, work)
    await asyncio.wait_for(gone.wait(), SOON)
    await asyncio.sleep(3 * deadlines.STEP)
    assert len(fired) == 1
    assert fired[0] >= 0.1


async def test_what_is_dropped_never_goes_off(timers: Deadlines) -> None:
    last, fired = asyncio.Event(), []
    timers.put("a", 0.01, lambda: fired.append("a"))
    timers.put("b", 0.05, last.set)
    timers.drop("a")
    timers.drop("nobody")
    await asyncio.wait_for(last.wait(), SOON)
    assert fired == []


async def test_one_that_is_put_again_has_the_new_time_alone(timers: Deadlines) -> None:
    second, fired = asyncio.Event(), []
    timers.put("a", 0.01, lambda: fired.append("first"))
    timers.put("a", 0.05, second.set)
    await asyncio.wait_for(second.wait(), SOON)
    assert fired == []


async def test_a_nearer_one_does_not_wait_for_a_farther_one(timers: Deadlines) -> None:
    near = asyncio.Event()
    timers.put("far", 600, near.clear)
    timers.put("near", 0.01, near.set)
    await asyncio.wait_for(near.wait(), SOON)
    timers.drop("far")


async def test_what_goes_off_may_drop_what_is_due_with_it(timers: Deadlines) -> None:
    """As a caller does whose answer has come in the same moment: what it dropped is not begun behind its back."""
    fired: list[str] = []

    def first() -> None:
        fired.append("first")
        timers.drop("second")

    timers.put("first", 0.01, first)
    timers.put("second", 0.01, lambda: fired.append("second"))
    await asyncio.sleep(0.01 + 5 * deadlines.STEP)
    assert fired == ["first"]


async def test_one_that_breaks_holds_up_no_other(timers: Deadlines) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    other = asyncio.Event()

    def broken() -> None:
        raise RuntimeError("broken")

    timers.put("broken", 0.01, broken)
    timers.put("other", 0.01, other.set)
    await asyncio.wait_for(other.wait(), SOON)
