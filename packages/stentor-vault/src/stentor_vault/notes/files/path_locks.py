"""One asyncio lock per path, which exists while a caller holds it or waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from stentor_vault.notes.model import VaultTimeout
from stentor_vault.notes.paths import display_path, fold_path

LOCK_TIMEOUT_SECONDS = 30.0


@dataclass
class _PathLock:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class PathLocks:
    """Locks by path, for one event loop. Paths that some file system treats as the same name share a lock."""

    def __init__(self, timeout_s: float = LOCK_TIMEOUT_SECONDS) -> None:
        self._timeout_s = timeout_s
        self._locks: dict[str, _PathLock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, path: str) -> AsyncIterator[None]:
        """Hold the lock of this path. Raises VaultTimeout if it is not free in time."""
        key = fold_path(path)
        entry = self._locks.setdefault(key, _PathLock())
        entry.users += 1
        try:
            # If the vault hangs, the callers in the queue must not each wait for the vault's own timeout in turn.
            try:
                async with asyncio.timeout(self._timeout_s):
                    await entry.lock.acquire()
            except TimeoutError:
                raise VaultTimeout(
                    f"Other requests locked {display_path(path)} for too long; nothing was changed. Retry."
                ) from None
            try:
                yield
            finally:
                entry.lock.release()
        finally:
            entry.users -= 1
            if not entry.users:
                # The last user removes the entry, so the dict has only paths in use.
                del self._locks[key]
