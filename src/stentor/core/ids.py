"""UUIDv7 (RFC 9562), strictly increasing within a process, so that ids sort by creation."""

from __future__ import annotations

import os
import struct
import threading
import time

_lock = threading.Lock()
_last = 0
_drawn: list[int] = []
_POOL = 512
"""Random numbers fetched at once: each fetch gives up the interpreter and waits for it."""


def new_id() -> str:
    """A UUIDv7 as text: 48 bits of milliseconds, 12 of their fraction, 62 random ones."""
    global _last
    us = time.time_ns() // 1000
    stamp = (us // 1000 << 12) | (us % 1000 << 2)
    with _lock:
        _last = stamp = max(stamp, _last + 1)
        if not _drawn:
            _drawn.extend(struct.unpack(f"{_POOL}Q", os.urandom(_POOL * 8)))
        low = _drawn.pop() & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    text = f"{stamp >> 12:012x}7{stamp & 0xFFF:03x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
