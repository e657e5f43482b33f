"""Fakes for tests, of this project and of yours; each passes the conformance tests of the real class."""

from __future__ import annotations

import time
from typing import Any

from stentor.core.clock import DAY, SECOND
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout.live import Hub
from stentor.core.runlog import RunLog


class FixedClock:
    """A clock that time passes on with `advance`, and that `jump` sets. It starts at the real time, as ids do."""

    def __init__(self, now: int | None = None) -> None:
        self._now = time.time_ns() // 1000 if now is None else now
        self._passed = 0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> int:
        return self._passed

    def advance(self, *, seconds: float = 0, days: float = 0) -> None:
        """Let time pass; negative seconds set the clock back."""
        micros = int(seconds * SECOND + days * DAY)
        self._now += micros
        self._passed += max(0, micros)

    def jump(self, seconds: float) -> None:
        """Set the clock, while no time passes."""
        self._now += int(seconds * SECOND)


class BrokenRunLog(RunLog):
    """A run log whose writes fail while `broken` is set."""

    def __init__(self, hub: Hub) -> None:
        super().__init__(hub)
        self.broken = False

    def append(self, *args: Any, **kwargs: Any) -> str:
        if self.broken:
            raise StoreUnavailable("The run log cannot be written (injected).")
        return super().append(*args, **kwargs)
