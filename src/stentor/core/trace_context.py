"""Propagation of W3C Trace Context: the client's `traceparent` is passed on to outbound calls.

Also the spans that are recorded when they have ended, and the port to the exporter of OpenTelemetry, which is
`domains/llm/otel`. Without a collector there is no exporter, and nobody makes such a span.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Protocol

import msgspec

HEADER = "traceparent"
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)
AttributeValue = str | int | bool


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


class EndedSpan(msgspec.Struct, frozen=True):
    """A span with its times in microseconds since 1970.

    `traceparent` names the span itself: its ids are derived from what it describes, so that another process can name
    it as a parent before it has ended. `parent` is the `traceparent` of its parent, None for a root.
    """

    name: str
    traceparent: str
    parent: str | None
    started: int
    ended: int
    attributes: dict[str, AttributeValue]
    error_type: str | None = None
    is_client: bool = False


class SpanRecorder(Protocol):
    """Records spans without blocking. Fails open: a span that cannot be exported is lost."""

    def is_sampled(self, trace_id: str, parent: str | None, name: str) -> bool:
        """Return whether the sampler takes a span; `trace_id` in hex, `parent` as in EndedSpan."""
        ...

    def record(self, span: EndedSpan) -> None: ...
