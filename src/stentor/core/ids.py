"""Generate UUIDv7 ids (RFC 9562) that sort by creation: strictly increasing within a process.

`advance_past` keeps the order across processes whose clocks differ.
"""

from __future__ import annotations

import os
import threading
import time

UUID_LENGTH = 36
LAST_GROUP_START = 25
"""Position of the last group of a UUID, counted from 1 as in SQL."""
_POOL = 512
"""Random tails generated at once, because each call of os.urandom releases the GIL and waits to get it back."""
_VARIANT: dict[str, str] = dict(zip("0123456789abcdef", "89ab89ab89ab89ab", strict=True))
# Ids are made in the thread of the event loop and in those of the database.
_lock = threading.Lock()
_last = 0
_millisecond = -1
_prefix = ""
_tails: list[str] = []


def new_id() -> str:
    """Return a UUIDv7 as text: 48 bits of milliseconds, 12 bits of their fraction, 62 random bits."""
    global _last, _millisecond, _prefix
    ms, us = divmod(time.time_ns() // 1000, 1000)
    with _lock:
        # At least one more than the last: a clock that stops or goes back must not break the order.
        _last = stamp = max(ms << 12 | us << 2, _last + 1)
        if stamp >> 12 != _millisecond:
            _millisecond = ms = stamp >> 12
            _prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"
        if not _tails:
            _tails.extend(_random_tails())
        return f"{_prefix}{stamp & 0xFFF:03x}{_tails.pop()}"


def matches_part(record_id: str, part: str) -> bool:
    """Return whether a record may be referred to by this part of its id: its beginning, its end, or the beginning of
    the last group of a UUID, which lists show.
    """
    last_group = record_id[LAST_GROUP_START - 1 :] if len(record_id) == UUID_LENGTH else ""
    return record_id.startswith(part) or record_id.endswith(part) or last_group.startswith(part or "-")


def advance_past(other: str) -> None:
    """Make every later id sort after `other`, an id of a process whose clock may be ahead of ours."""
    global _last
    stamp = int(other[0:8] + other[9:13] + other[15:18], 16)
    if stamp > _last:
        with _lock:
            _last = max(_last, stamp)


def _random_tails() -> list[str]:
    """Return random values for the last two groups of an id; their first two bits are the variant."""
    random_hex = os.urandom(_POOL * 8).hex()
    starts = range(0, _POOL * 16, 16)
    return [f"-{_VARIANT[random_hex[n]]}{random_hex[n + 1 : n + 4]}-{random_hex[n + 4 : n + 16]}" for n in starts]


def rewind(record_id: str, milliseconds: int) -> str:
    """Return a text that sorts before all ids from this many milliseconds before this one; "" for ""."""
    if not record_id:
        return ""
    # The first 48 bits of a UUIDv7 are its time in milliseconds.
    return min_id_at((int(record_id[:8] + record_id[9:13], 16) - milliseconds) * 1_000)


def min_id_at(us: int) -> str:
    """Return a text that sorts below all ids from the time `us` (microseconds) on, to select ids by time.

    It sorts above all ids of earlier milliseconds.
    """
    ms = max(0, us // 1000)
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"
