"""Propagation of W3C Trace Context: the client's `traceparent` is passed on to outbound calls."""

from __future__ import annotations

import re
from contextvars import ContextVar

HEADER = "traceparent"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def parse_traceparent(value: str) -> str | None:
    """Return the value, or None for an invalid one, which the standard says to ignore."""
    return value if _TRACEPARENT.match(value) else None


def current_traceparent() -> str | None:
    """Return the `traceparent` of the current request or task."""
    return _current.get()


class TraceparentScope:
    """Sets the current `traceparent` for a block; a class, because each request and each attempt enters one."""

    __slots__ = ("_token", "_traceparent")

    def __init__(self, traceparent: str | None) -> None:
        self._traceparent = traceparent

    def __enter__(self) -> None:
        self._token = _current.set(self._traceparent)

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._token)


def outbound_headers(own: str | None = None) -> dict[str, str]:
    """Return the trace headers of an outbound call: `own` (the call's own span) if given, else the current one."""
    traceparent = own or _current.get()
    return {HEADER: traceparent} if traceparent else {}
