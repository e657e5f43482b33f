"""Time as integer microseconds since the epoch, UTC; text only at the edges."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

SECOND = 1_000_000
DAY = 86_400 * SECOND
HOUR = 3_600 * SECOND


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since 1970-01-01T00:00:00Z."""
        ...


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000


def iso(us: int) -> str:
    """`2026-11-20T21:45:00.123456Z`: always six decimals, so that texts sort like times."""
    return datetime.fromtimestamp(us / SECOND, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def iso_or_none(us: int | None) -> str | None:
    return None if us is None else iso(us)


def from_datetime(moment: datetime) -> int:
    """Microseconds of an aware datetime, without the rounding of a float."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds
