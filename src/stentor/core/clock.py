"""Time as integer microseconds since the epoch, UTC; text only at the edges."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
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


def format_iso(us: int) -> str:
    """`2026-11-20T21:45:00.123456Z`: always six decimals, so that texts sort like times."""
    seconds, rest = divmod(us, SECOND)
    return f"{_second(seconds)}.{rest:06d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """Most times that are written fall in the same few seconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def format_iso_or_none(us: int | None) -> str | None:
    return None if us is None else format_iso(us)


def micros_from_datetime(moment: datetime) -> int:
    """Microseconds of an aware datetime, without the rounding of a float."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds
