"""How far an index is behind, in seconds: measured, from a change to its being found."""

from __future__ import annotations

from collections import deque

import msgspec

from stentor.core.clock import SECOND
from stentor.core.metrics import LONG_BUCKETS_S, Histogram
from stentor.domains.notes.model import Stat

KEPT = 256
MARGIN = SECOND
"""How late the system may tell of a change, in microseconds."""


class Look(msgspec.Struct, frozen=True):
    """When files were looked at, and when they were before that; in microseconds."""

    before: int
    at: int

    def since(self, stat: Stat) -> int:
        """When a change that is seen now was made: at the file's time, unless that is older than the look before.

        A file that was moved or copied here may be as old as any.
        """
        time = max(stat.modified_at, stat.created_at)
        return time if self.before - MARGIN <= time <= self.at else self.at


class Lag:
    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=KEPT)
        self.all = Histogram(LONG_BUCKETS_S)
        """Of all changes since the start."""

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self.all.observe(seconds)

    @property
    def last(self) -> float:
        return self._last[-1] if self._last else 0.0

    @property
    def p95(self) -> float:
        """Of the latest changes; 0 before the first."""
        ordered = sorted(self._last)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] if ordered else 0.0
