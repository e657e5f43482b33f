"""Read what other processes have just changed, before a request is refused for what is not in memory yet.

A change reaches the memory of the other processes some milliseconds after its commit, and a load balancer sends the
next request of the same caller to any of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from stentor.core.errors import StoreUnavailable

BURST, PER_SECOND = 10, 1.0
"""Reads in a row, and how many more each second allows: made-up keys and ids must cause no load."""
MAX_WAIT_SECONDS = 2.0
"""How long a request waits for a read. After that it is answered from memory, as in an outage."""


class CatchUp:
    """Runs `read`, which is None in a process that shares its database with no other: that one misses no change."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.read: Callable[[], Awaitable[None]] | None = None
        self._now = now
        self._left, self._counted_at = float(BURST), now()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self) -> bool:
        """Read, or wait for a read that another request begins; return whether there was one."""
        if self.read is None:
            return False
        if self._running is not None:
            # It may have begun before the change that this request misses.
            await asyncio.wait({self._running}, timeout=MAX_WAIT_SECONDS)
        if self._running is None:
            if not self._take():
                return False
            self._running = asyncio.create_task(self._run(self.read))
        await asyncio.wait({self._running}, timeout=MAX_WAIT_SECONDS)
        return True

    def _take(self) -> bool:
        now = self._now()
        self._left = min(BURST, self._left + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except StoreUnavailable:
            pass  # the database logs its outage; the request is answered from memory
        finally:
            self._running = None
