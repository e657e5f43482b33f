"""Fakes that pass the real thing's conformance tests, for our tests and for yours."""

from __future__ import annotations

import time
from typing import Any

from stentor.core.clock import DAY, SECOND
from stentor.core.errors import StoreUnavailable
from stentor.core.live import Hub
from stentor.core.runlog import RunLog


class FixedClock:
    """Stands until it is moved. Starts at the real time, so that ids and times agree."""

    def __init__(self, now: int | None = None) -> None:
        self._now = time.time_ns() // 1000 if now is None else now

    def now(self) -> int:
        return self._now

    def advance(self, *, seconds: float = 0, days: float = 0) -> None:
        self._now += int(seconds * SECOND + days * DAY)


class BrokenRunLog(RunLog):
    """A run log that cannot be written while `broken` is set."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.broken = False

    def append(self, *args: Any, **kwargs: Any) -> str:
        if self.broken:
            raise StoreUnavailable("The run log cannot be written (injected).")
        return super().append(*args, **kwargs)
