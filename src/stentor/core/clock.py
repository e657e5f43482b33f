"""Time as integer microseconds since the epoch, UTC; as text only in input and output."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

SECOND = 1_000_000
DAY = 86_400 * SECOND
HOUR = 3_600 * SECOND
MINUTE = 60 * SECOND


class Clock(Protocol):
    """A source of the time, so that tests can set it."""

    def now(self) -> int:
        """Return the microseconds since 1970-01-01T00:00:00Z."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> int:
        return time.time_ns() // 1000


def format_iso(us: int) -> str:
    """Format as `2026-11-20T21:45:00.123456Z`: always six decimals, so that texts sort like times."""
    seconds, micros = divmod(us, SECOND)
    return f"{_format_second(seconds)}.{micros:06d}Z"


@lru_cache(maxsize=64)
def _format_second(seconds: int) -> str:
    # Cached, because most formatted times are within the same few seconds.
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def format_iso_or_none(us: int | None) -> str | None:
    return None if us is None else format_iso(us)


def micros_from_datetime(moment: datetime) -> int:
    """Return the microseconds of an aware datetime, exactly; `timestamp()` would round as a float."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds
