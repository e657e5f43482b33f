"""One pulse for all that looks again and again, so that an idle process wakes once a second and not once for each.

Timers that are nearly always taken back: to set one costs an entry of a dictionary, and it goes off a little late.

A timer of the event loop costs more than a hundredth of a whole request. Used on the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

_PHASE = random.random()  # noqa: S311 - processes that share a database are not to wake all at the same moment
_SHORTEST = 0.01
"""Shares of a period: a timer that fires a little too early is not to fire twice."""


async def sleep_until_tick(seconds: float = 1.0) -> None:
    """Sleep until the next whole multiple of `seconds`."""
    await asyncio.sleep(_rest(seconds))


async def wait_until_tick(event: asyncio.Event, seconds: float = 1.0) -> None:
    """The same, or until the event is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_rest(seconds)):
            await event.wait()


def _rest(seconds: float) -> float:
    if not seconds > 0:
        return 0
    rest = seconds - (asyncio.get_running_loop().time() + _PHASE) % seconds
    return rest if rest > _SHORTEST * seconds else rest + seconds


RESOLUTION_SECONDS = 0.02
"""Seconds that one may be late."""


class CoarseTimers:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._set: dict[object, tuple[float, Callable[[], object]]] = {}
        self._next: asyncio.TimerHandle | None = None

    def schedule(self, owner: object, seconds: float, callback: Callable[[], object]) -> None:
        """Call `work` after so many seconds, unless the owner drops it before; each owner has one at a time."""
        at = self.loop.time() + seconds
        self._set[owner] = (at, callback)
        if self._next is None or at < self._next.when():
            self._arm(at)

    def cancel(self, owner: object) -> None:
        self._set.pop(owner, None)

    def _arm(self, at: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self.loop.call_at(max(at, self.loop.time() + RESOLUTION_SECONDS), self._look)

    def _look(self) -> None:
        self._next, now = None, self.loop.time()
        due = [owner for owner, (at, _) in self._set.items() if at <= now]
        try:
            for owner in due:
                if found := self._set.pop(owner, None):  # what went off before it may have dropped it
                    found[1]()
        finally:
            if self._set:
                self._arm(min(at for at, _ in self._set.values()))


_latest: CoarseTimers | None = None


def coarse_timers(loop: asyncio.AbstractEventLoop) -> CoarseTimers:
    """Of the loop, which a process has one of. Who put something keeps them, to drop it there."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = CoarseTimers(loop)
    return _latest
