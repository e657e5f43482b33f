"""One lock per path, for as long as somebody holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stentor_vault.notes.model import VaultTimeout
from stentor_vault.notes.paths import display_path, fold_path

LOCK_TIMEOUT_SECONDS = 30.0


@dataclass
class _Place:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class PathLocks:
    """For one event loop. Paths that some system takes for the same name share a lock."""

    def __init__(self, timeout_s: float = LOCK_TIMEOUT_SECONDS) -> None:
        self._patience = timeout_s
        self._places: dict[str, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    @asynccontextmanager
    async def hold(self, path: str) -> AsyncIterator[None]:
        """Nobody else is in here with this path. Raises VaultTimeout when that takes too long."""
        key = fold_path(path)
        place = self._places.setdefault(key, _Place())
        place.users += 1
        try:
            await self._acquire(place.lock, path)
            try:
                yield
            finally:
                place.lock.release()
        finally:
            place.users -= 1
            if not place.users:
                del self._places[key]

    async def _acquire(self, lock: asyncio.Lock, path: str) -> None:
        """Behind a vault that hangs, a queue must not take the vault's timeout for each that waits."""
        try:
            async with asyncio.timeout(self._patience):
                await lock.acquire()
        except TimeoutError:
            raise VaultTimeout(f"Others kept {display_path(path)} too long; nothing was done.") from None
