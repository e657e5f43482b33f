"""Spans that are recorded when they have ended, and the port to the exporter of OpenTelemetry.

`domains/llm/otel` implements the port. Without a collector there is no implementation, and nobody makes such a span.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

AttributeValue = str | int | bool


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
