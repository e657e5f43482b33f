"""How many sign-ins failed in the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

WINDOW = 60.0


class Attempts:
    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._failed: deque[float] = deque(maxlen=most)

    def count(self) -> None:
        self._failed.append(self._now())

    def full(self) -> bool:
        return len(self._failed) == self._most and self._failed[0] > self._now() - WINDOW
