"""Places for connections, shared so that no tenant can take them all."""

from __future__ import annotations

import asyncio
from collections import Counter


class Slots:
    """`most` places. A tenant may take one while it has fewer than are free: alone it gets half of all, two get a
    third each, and there is always a place left for one who has none. Used on one event loop.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._used: Counter[str] = Counter()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def would_wait(self, tenant: str) -> bool:
        return self._used[tenant] >= self._free or any(tenant == other for other, _ in self._waiting)

    def missing(self, tenant: str) -> int:
        """How many places of others would have to become free for one of this tenant."""
        return max(0, self._used[tenant] - self._free + 1)

    async def acquire(self, tenant: str) -> None:
        """In the order in which the callers of a tenant came."""
        if not self.would_wait(tenant):
            self._take(tenant)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((tenant, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(tenant)
            else:
                self._waiting.remove((tenant, turn))
            raise

    def release(self, tenant: str) -> None:
        self._free += 1
        self._used[tenant] -= 1
        if not self._used[tenant]:
            del self._used[tenant]
        for waiting in list(self._waiting):
            if self._used[waiting[0]] < self._free:
                self._waiting.remove(waiting)
                if not waiting[1].done():
                    self._take(waiting[0])
                    waiting[1].set_result(None)

    def _take(self, tenant: str) -> None:
        self._free -= 1
        self._used[tenant] += 1
