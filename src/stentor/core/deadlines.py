"""Timers that are nearly always taken back: to set one costs an entry of a dictionary, and it goes off a little late.

A timer of the event loop costs more than a hundredth of a whole request. Used on the thread of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

STEP = 0.02
"""Seconds that one may be late."""


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._set: dict[object, tuple[float, Callable[[], object]]] = {}
        self._next: asyncio.TimerHandle | None = None

    def put(self, owner: object, seconds: float, work: Callable[[], object]) -> None:
        """Call `work` after so many seconds, unless the owner drops it before; each owner has one at a time."""
        at = self.loop.time() + seconds
        self._set[owner] = (at, work)
        if self._next is None or at < self._next.when():
            self._arm(at)

    def drop(self, owner: object) -> None:
        self._set.pop(owner, None)

    def _arm(self, at: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next = self.loop.call_at(max(at, self.loop.time() + STEP), self._look)

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


_latest: Deadlines | None = None


def of(loop: asyncio.AbstractEventLoop) -> Deadlines:
    """Of the loop, which a process has one of. Who put something keeps them, to drop it there."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = Deadlines(loop)
    return _latest
