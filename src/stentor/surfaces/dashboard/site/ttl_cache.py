"""A short-TTL cache with request coalescing, for values that are expensive to compute and may be seconds old."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

MAX_ENTRIES = 1_000


class TtlCache:
    """Caches values for `ttl_s` seconds. Failures are not cached."""

    def __init__(self, ttl_s: float, now: Callable[[], float]) -> None:
        self._ttl_s = ttl_s
        self._now = now
        self._entries: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get_or_create(self, key: Hashable, create: Callable[[], Awaitable[Any]]) -> Any:
        """Return the cached value, or compute it once for all concurrent callers."""
        entry = self._entries.get(key)
        if entry is None or self._is_stale(*entry):
            if len(self._entries) >= MAX_ENTRIES:
                self._entries.clear()
            # The future itself is stored, so callers that come while it runs join it.
            entry = self._entries[key] = (self._now(), asyncio.ensure_future(create()))
        # One caller that is cancelled must not cancel the computation that the others wait for.
        return await asyncio.shield(entry[1])

    def _is_stale(self, created_at: float, future: asyncio.Future[Any]) -> bool:
        # Never two computations at a time, however slow the first one is.
        if not future.done():
            return False
        return future.cancelled() or future.exception() is not None or created_at + self._ttl_s < self._now()
