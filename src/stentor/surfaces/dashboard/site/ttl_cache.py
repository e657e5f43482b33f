"""Answers that are dear and may be a few seconds old: made once for all who ask meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

MAX_ENTRIES = 1_000


class TtlCache:
    """`fresh` in seconds. A failure is not kept."""

    def __init__(self, fresh: float, now: Callable[[], float]) -> None:
        self._fresh = fresh
        self._now = now
        self._made: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get_or_create(self, key: Hashable, make: Callable[[], Awaitable[Any]]) -> Any:
        found = self._made.get(key)
        if found is None or self._stale(*found):
            if len(self._made) >= MAX_ENTRIES:
                self._made.clear()
            found = self._made[key] = (self._now(), asyncio.ensure_future(make()))
        return await asyncio.shield(found[1])

    def _stale(self, since: float, made: asyncio.Future[Any]) -> bool:
        if not made.done():
            return False
        return made.cancelled() or made.exception() is not None or since + self._fresh < self._now()
