"""One lock per path, for as long as somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stentor.domains.notes.paths import folded


@dataclass
class _Place:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class PathLocks:
    """For one event loop. Paths that some system takes for the same name share a lock."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    @asynccontextmanager
    async def hold(self, path: str) -> AsyncIterator[None]:
        """Nobody else is in here with this path."""
        key = folded(path)
        place = self._places.setdefault(key, _Place())
        place.users += 1
        try:
            async with place.lock:
                yield
        finally:
            place.users -= 1
            if not place.users:
                del self._places[key]
