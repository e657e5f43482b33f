"""The caller's place in a distributed trace (W3C Trace Context), carried on to the calls that are made for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

HEADER = "traceparent"
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def parse_traceparent(value: str) -> str | None:
    """The value, or None for one that the standard has receivers pass over."""
    return value if _FORM.match(value) else None


def current_traceparent() -> str | None:
    """That of the request or the task that this work is for."""
    return _current.get()


@contextmanager
def use_traceparent(traceparent: str | None) -> Iterator[None]:
    """The work of this block is for the caller with this place in a trace."""
    token = _current.set(traceparent)
    try:
        yield
    finally:
        _current.reset(token)


def outbound_headers(own: str | None = None) -> dict[str, str]:
    """What a call to the outside carries on: the place of its own span where it has one, else the caller's."""
    traceparent = own or _current.get()
    return {HEADER: traceparent} if traceparent else {}
