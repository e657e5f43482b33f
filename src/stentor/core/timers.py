"""Timers for many users: a common tick for pollers, and coarse timers that are usually cancelled.

With a common tick an idle process wakes once a second, not once for each poller. A coarse timer costs an entry in a
dictionary and fires a little late; a timer of the event loop would cost more than 1 % of a request. Both are for the
thread of the event loop. Sharing one transaction among the pollers of a tick is in `db/polling`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from stentor.core.errors import StoreUnavailable

_PHASE = random.random()  # noqa: S311 - so that the processes that share a database do not all poll at the same moment
_MIN_REST = 0.01
"""Fraction of a period: a tick that is closer is skipped, because the timer before it fired a little early."""
RESOLUTION_SECONDS = 0.02
"""How late a coarse timer may fire."""
AsyncJob = Callable[[], Coroutine[Any, Any, None]]
"""What runs in the background, or once at the start or at the end."""
log = logging.getLogger(__name__)


async def sleep_until_tick(seconds: float = 1.0) -> None:
    """Sleep until the next common tick of the period `seconds`."""
    await asyncio.sleep(seconds_until_tick(seconds))


async def wait_until_tick(event: asyncio.Event, seconds: float = 1.0, *, at_most: float = math.inf) -> None:
    """Wait until the next common tick, or until the event is set; not longer than `at_most` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(min(seconds_until_tick(seconds), at_most)):
            await event.wait()


async def tick_forever(job: str, wait: Callable[[], Awaitable[None]], tick: Callable[[], Awaitable[object]]) -> None:
    """Wait and tick in turn; does not return. Survives an outage of the database. `job` is the prefix of log lines.

    A tick that fails is logged and changes nothing for the next one.
    """
    while True:
        await wait()
        try:
            await tick()
        except StoreUnavailable:
            continue  # the database logs the outage
        except Exception:
            # Fails open for the job: one tick that failed must not stop all later ones.
            log.exception("%s: tick failed", job)


def seconds_until_tick(seconds: float = 1.0) -> float:
    """Return the time until the next common tick of the period `seconds`."""
    if not seconds > 0:
        return 0
    rest = seconds - (asyncio.get_running_loop().time() + _PHASE) % seconds
    return rest if rest > _MIN_REST * seconds else rest + seconds


class CoarseTimers:
    """Timers of which each owner has at most one; they share one timer of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._scheduled: dict[object, tuple[float, Callable[[], object]]] = {}
        self._next: asyncio.Handle | None = None
        # Not read from the handle: uvloop's handle has no time if it is already due, as on a busy machine.
        self._next_at = math.inf

    def schedule(self, owner: object, seconds: float, callback: Callable[[], object]) -> None:
        """Call `callback` after `seconds`, unless cancelled before; replaces the owner's earlier timer."""
        at = self.loop.time() + seconds
        self._scheduled[owner] = (at, callback)
        if at < self._next_at:
            self._arm(at)

    def cancel(self, owner: object) -> None:
        """Cancel the owner's timer, if any."""
        # The event loop's timer stays: it finds nothing due, which is cheaper than setting it again for each request.
        self._scheduled.pop(owner, None)

    def _arm(self, at: float) -> None:
        if self._next is not None:
            self._next.cancel()
        self._next_at = max(at, self.loop.time() + RESOLUTION_SECONDS)
        self._next = self.loop.call_at(self._next_at, self._fire)

    def _fire(self) -> None:
        self._next, self._next_at, now = None, math.inf, self.loop.time()
        due = [owner for owner, (at, _) in self._scheduled.items() if at <= now]
        try:
            for owner in due:
                if timer := self._scheduled.pop(owner, None):  # an earlier callback may have cancelled it
                    timer[1]()
        finally:
            if self._scheduled:
                self._arm(min(at for at, _ in self._scheduled.values()))


_latest: CoarseTimers | None = None


def coarse_timers(loop: asyncio.AbstractEventLoop) -> CoarseTimers:
    """Return the timers of the loop. Keep the result to cancel a timer: another loop gets new ones."""
    global _latest
    if _latest is None or _latest.loop is not loop:
        _latest = CoarseTimers(loop)
    return _latest
