"""Timers that are nearly always taken back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop

from stentor.core import timers as deadlines
from stentor.core.timers import CoarseTimers

SOON = 60
"""Seconds at most for what is due at once."""


@pytest.fixture
async def timers() -> CoarseTimers:
    return deadlines.coarse_timers(asyncio.get_running_loop())


async def test_what_is_due_goes_off_once_and_not_before(timers: CoarseTimers) -> None:
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    began, fired = loop.time(), []

    def work() -> None:
        fired.append(loop.time() - began)
        gone.set()

    timers.schedule(gone, 0.1, work)
    await asyncio.wait_for(gone.wait(), SOON)
    await asyncio.sleep(3 * deadlines.RESOLUTION_SECONDS)
    assert len(fired) == 1
    assert fired[0] >= 0.1


async def test_what_is_dropped_never_goes_off(timers: CoarseTimers) -> None:
    last, fired = asyncio.Event(), []
    timers.schedule("a", 0.01, lambda: fired.append("a"))
    timers.schedule("b", 0.05, last.set)
    timers.cancel("a")
    timers.cancel("nobody")
    await asyncio.wait_for(last.wait(), SOON)
    assert fired == []


async def test_one_that_is_put_again_has_the_new_time_alone(timers: CoarseTimers) -> None:
    second, fired = asyncio.Event(), []
    timers.schedule("a", 0.01, lambda: fired.append("first"))
    timers.schedule("a", 0.05, second.set)
    await asyncio.wait_for(second.wait(), SOON)
    assert fired == []


async def test_a_nearer_one_does_not_wait_for_a_farther_one(timers: CoarseTimers) -> None:
    near = asyncio.Event()
    timers.schedule("far", 600, near.clear)
    timers.schedule("near", 0.01, near.set)
    await asyncio.wait_for(near.wait(), SOON)
    timers.cancel("far")


async def test_what_goes_off_may_drop_what_is_due_with_it(timers: CoarseTimers) -> None:
    """As a caller does whose answer has come in the same moment: what it dropped is not begun behind its back."""
    fired: list[str] = []

    def first() -> None:
        fired.append("first")
        timers.cancel("second")

    timers.schedule("first", 0.01, first)
    timers.schedule("second", 0.01, lambda: fired.append("second"))
    await asyncio.sleep(0.01 + 5 * deadlines.RESOLUTION_SECONDS)
    assert fired == ["first"]


async def test_one_that_breaks_holds_up_no_other(timers: CoarseTimers) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    other = asyncio.Event()

    def broken() -> None:
        raise RuntimeError("broken")

    timers.schedule("broken", 0.01, broken)
    timers.schedule("other", 0.01, other.set)
    await asyncio.wait_for(other.wait(), SOON)


class LateLoop:
    """A loop whose clock goes on by a second between a look at it and the setting of a timer: a busy machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call_at = loop.call_at
        self._loop = loop

    def time(self) -> float:
        return self._loop.time() - 1


def test_what_is_due_before_its_timer_is_set_goes_off() -> None:
    async def work() -> None:
        late: Any = LateLoop(asyncio.get_running_loop())
        timers, first, second = CoarseTimers(late), asyncio.Event(), asyncio.Event()
        timers.schedule("first", 0, first.set)
        timers.schedule("second", 0, second.set)
        await asyncio.wait_for(first.wait(), SOON)
        await asyncio.wait_for(second.wait(), SOON)

    # uvloop's timer that is due already has no time.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
