"""Time as integer microseconds since the epoch, UTC; as text only in input and output."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import msgspec

SECOND = 1_000_000
DAY = 86_400 * SECOND
HOUR = 3_600 * SECOND
MINUTE = 60 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST, _LONGEST = datetime.min.replace(tzinfo=UTC) - _EPOCH, datetime.max.replace(tzinfo=UTC) - _EPOCH
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
# A clock that continues while the machine sleeps, where available: the lease of a worker on another machine that was
# silent in the meantime has expired.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
log = logging.getLogger(__name__)


class Clock(Protocol):
    """A source of the time, so that tests can set it."""

    def now(self) -> int:
        """Return the microseconds since 1970-01-01T00:00:00Z."""
        ...

    def monotonic(self) -> int:
        """Return the microseconds since an arbitrary moment; nobody can set this clock."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1000


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
    """Return the microseconds of an aware datetime, exactly; `timestamp()` would round as a float.

    Raises OverflowError if it has no date in UTC, so that `format_iso` can write whatever this returns.
    """
    delta = moment - _EPOCH
    if not _SHORTEST <= delta <= _LONGEST:
        raise OverflowError("the time is not in the years 1 to 9999 in UTC")
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds


def format_duration(ms: float) -> str:
    """Format as `420 µs`, `12 ms`, `3.4 s`, `5 min 20 s`, `2 min` or `3 h 5 min`.

    A duration of 0 is `< 1 ms`: recorded ones are whole milliseconds.
    """
    if ms < 0.0005:
        return "< 1 ms"
    if ms < 1:
        return f"{ms * 1000:.0f} µs"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(int(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def format_relative_time(seconds: float) -> str:
    """Format as `3 min ago`, `in 2 d 23 h` or `just now`; negative seconds lie in the future.

    A time in the future may be a deadline, so a small amount gets a second unit.
    """
    size = int(abs(seconds))
    if size < 1:
        return "just now"
    place = next(place for place, (_, unit) in enumerate(_UNITS) if size >= unit)
    name, unit = _UNITS[place]
    amount, rest = divmod(size, unit)
    if seconds > 0:
        return f"{amount} {name} ago"
    text = f"in {amount} {name}"
    # From ten units on, the next smaller unit tells a reader nothing useful.
    if amount < 10 and place + 1 < len(_UNITS):
        name, unit = _UNITS[place + 1]
        text += f" {rest // unit} {name}" if rest >= unit else ""
    return text


class ClockWatch:
    """Notices that a clock was set back, by the times that one job reads from it, in microseconds."""

    def __init__(self) -> None:
        # Also at the first check, because the clock may have been set back while no service was running.
        self._last_now = 1 << 62

    async def look(self, now: int, bring_back: Callable[[], Awaitable[object]]) -> None:
        """Await `bring_back` if the clock was set back by more than a second since the last check. If it fails, it is
        awaited again at the next check.
        """
        if now < self._last_now - SECOND:
            await bring_back()
        self._last_now = now


class JumpWatch:
    """Notices that the clock of the database was set ahead: it advanced further than the monotonic one of this process.

    All times are in microseconds.
    """

    def __init__(self, monotonic: Callable[[], int], last: tuple[int, int] | None = None) -> None:
        self._monotonic = monotonic
        self.last = last if last is not None and last[0] <= monotonic() else None
        """The monotonic time before the last look, and what the clock said then; at first of the process before."""

    def begin(self) -> int:
        """Return the monotonic time to give to `look`. Call it before the time is read from the database."""
        return self._monotonic()

    async def look(self, begun: int, now: int, follow: Callable[[int, int, int], Awaitable[object]]) -> None:
        """Await `follow` if the clock jumped ahead since the last check, by more than a second plus a thousandth of the
        time. It gets the times of the last check and of this one, and the length of the jump. If it fails, it is
        awaited again at the next check.
        """
        if self.last is not None:
            last_begun, last_now = self.last
            # The longest time that may have passed: a stopped process or a late answer is not a jump.
            passed = self._monotonic() - last_begun
            jump = now - last_now - passed
            # Over a long time, two clocks drift apart even if nobody sets them, especially on two machines.
            if jump > max(SECOND, passed // 1000):
                await follow(last_now, now, jump)
        self.last = begun, now


class ClockLook(msgspec.Struct, frozen=True):
    """`now` is what the clock said, `begun` the time since the boot just before; both in microseconds."""

    boot_id: str
    begun: int
    now: int


class ClockMark:
    """The time of the last check, in a file: from it the next process sees whether the clock was set while none ran.

    The file has a time of the database's clock and one of the clock since the boot of this machine, which nobody can
    set, with the id of the boot. After another boot, or on another machine, the two cannot be compared and nothing is
    known. Fails open: without a file that can be used, no jump is found.
    """

    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = boot_id or _read_boot_id()

    def read(self) -> tuple[int, int] | None:
        """Return `begun` and `now` of the last look, None unless it was made since the same boot."""
        try:
            look = msgspec.json.decode(self._path.read_bytes(), type=ClockLook)
        except (OSError, msgspec.MsgspecError):
            return None
        return (look.begun, look.now) if look.boot_id == self._boot_id else None

    def write(self, begun: int, now: int) -> None:
        """Store a check. Not synced to disk: after a crash of the machine the boot id is different anyway."""
        if self._boot_id is None:
            return
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(ClockLook(self._boot_id, begun, now)))
            new.replace(self._path)
        except OSError as error:
            log.warning("clock: mark not written path=%s error=%s", self._path, error)


def _read_boot_id() -> str | None:
    """Return the id of this boot, None if the system has none."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
