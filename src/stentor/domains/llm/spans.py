"""The port to distributed tracing: each call that passes the gate may become a span of the operator's collector."""

from __future__ import annotations

from typing import Protocol

import msgspec

from stentor.core import trace_context
from stentor.domains.llm.model import Operation, Usage
from stentor.domains.llm.routes import Target


class CallStart(msgspec.Struct, frozen=True):
    """What is known when a call begins. `started` is microseconds since 1970; `event_id` that of the run log."""

    operation: Operation
    target: Target
    started: int
    event_id: str
    tenant: str
    agent_id: str | None = None
    task_id: str | None = None


class Span(Protocol):
    """One call under way. `traceparent` is the place in the trace that the provider is told."""

    @property
    def traceparent(self) -> str | None: ...

    def end(self, usage: Usage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        """Once, and without waiting. `error_type` is a code, never a message."""
        ...


class Spans(Protocol):
    def begin(self, call: CallStart) -> Span:
        """Its parent is the place of the request or task that the call is for."""
        ...

    async def close(self) -> None:
        """Send what is left, for a moment at most; a second time does nothing."""
        ...


class _NoSpan:
    @property
    def traceparent(self) -> str | None:
        return trace_context.current_traceparent()

    def end(self, usage: Usage | None, *, response_id: str = "", error_type: str | None = None) -> None:
        pass


NO_SPAN = _NoSpan()


class NoSpans:
    """For a service without a collector: the caller's place in the trace goes on unchanged."""

    def begin(self, call: CallStart) -> Span:
        return NO_SPAN

    async def close(self) -> None:
        pass
