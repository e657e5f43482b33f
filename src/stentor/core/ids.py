"""UUIDv7 (RFC 9562), strictly increasing within a process and behind what it has seen, so that ids sort by creation."""

from __future__ import annotations

import os
import threading
import time

_POOL = 512
"""Random tails made at once: each fetch of randomness gives up the interpreter and waits for it."""
_VARIANT = str.maketrans("0123456789abcdef", "89ab89ab89ab89ab")
_lock = threading.Lock()
_last = 0
_millisecond = -1
_prefix = ""
_tails: list[str] = []


def new_id() -> str:
    """A UUIDv7 as text: 48 bits of milliseconds, 12 of their fraction, 62 random ones."""
    global _last, _millisecond, _prefix
    ms, us = divmod(time.time_ns() // 1000, 1000)
    with _lock:
        _last = stamp = max(ms << 12 | us << 2, _last + 1)
        if stamp >> 12 != _millisecond:
            _millisecond = ms = stamp >> 12
            _prefix = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"
        if not _tails:
            _tails.extend(_random_tails())
        return f"{_prefix}{stamp & 0xFFF:03x}{_tails.pop()}"


def advance_past(other: str) -> None:
    """Make every later id sort behind this one, of a process whose clock may be ahead of ours."""
    global _last
    stamp = int(other[0:8] + other[9:13] + other[15:18], 16)
    if stamp > _last:
        with _lock:
            _last = max(_last, stamp)


def _random_tails() -> list[str]:
    """The last two groups of ids, whose first two bits are the variant."""
    drawn = os.urandom(_POOL * 8).hex()
    words = (drawn[at : at + 16] for at in range(0, _POOL * 16, 16))
    return [f"-{word[0].translate(_VARIANT)}{word[1:4]}-{word[4:]}" for word in words]


def min_id_at(us: int) -> str:
    """A text below every id made at or after a time (microseconds), and above every one made a millisecond before."""
    ms = max(0, us // 1000)
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"
