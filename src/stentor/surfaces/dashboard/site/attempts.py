"""How many sign-ins failed in the last minute, by the address that they came from: nobody locks others out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW = 60.0
MOST_ADDRESSES = 1_000


class Attempts:
    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._failed: dict[str, deque[float]] = {}

    def count(self, address: str) -> None:
        if address not in self._failed and len(self._failed) >= MOST_ADDRESSES:
            del self._failed[next(iter(self._failed))]
        self._failed.setdefault(address, deque(maxlen=self._most)).append(self._now())

    def full(self, address: str) -> bool:
        failed = self._failed.get(address)
        return failed is not None and len(failed) == self._most and failed[0] > self._now() - WINDOW
