"""The sync lag: the time from a change in the vault to its being searchable."""

from __future__ import annotations

import math
from collections import deque

import msgspec

from stentor.core.clock import SECOND
from stentor.core.metrics import LONG_BUCKETS_S, Histogram
from stentor_vault.notes.model import Stat

LAG_SAMPLES = 256
CLOCK_MARGIN_US = SECOND
"""How late a file event may arrive, in microseconds."""


class ChangeWindow(msgspec.Struct, frozen=True):
    """The interval between the previous check of the files and this one, in microseconds."""

    start: int
    end: int

    def changed_at(self, stat: Stat) -> int:
        """Return when a file changed that was detected as changed now.

        That is the file's time if it lies in the window, else the window's end: a file that was moved or copied here
        may have any time.
        """
        time = max(stat.modified_at, stat.created_at)
        return time if self.start - CLOCK_MARGIN_US <= time <= self.end else self.end


class SyncLag:
    """The latest lags between a change and its being found by a kind of search, in seconds."""

    def __init__(self, metric: str, search: str) -> None:
        self._samples: deque[float] = deque(maxlen=LAG_SAMPLES)
        text = f"Time from a change in the vault until it is found by {search} search."
        self.histogram = Histogram(metric, text, LONG_BUCKETS_S)
        """Of all changes since the start."""

    def add(self, lag_s: float) -> None:
        self._samples.append(lag_s)
        self.histogram.observe(lag_s)

    @property
    def last(self) -> float:
        return self._samples[-1] if self._samples else 0.0

    @property
    def p95(self) -> float:
        """The 95th percentile of the latest changes; 0 before the first."""
        ordered = sorted(self._samples)
        return ordered[math.ceil(len(ordered) * 95 / 100) - 1] if ordered else 0.0
