"""How far an index is behind, in seconds: measured, from a change to its being found."""

from __future__ import annotations

from collections import deque

from stentor.core.figures import LONG, Histogram

KEPT = 256


class Lag:
    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=KEPT)
        self.all = Histogram(LONG)
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
