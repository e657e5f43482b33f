"""Spans of OpenTelemetry as OTLP/JSON: one line per event, each a whole request for the traces route of a collector.

The trace is the run, its id the root's UUID; a span's id is the random half of its event's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

from stentor import __version__
from stentor.core import jsontext
from stentor.core.runlog import RunLogEvent

INTERNAL, OK, ERROR = 1, 1, 2
FAILED = frozenset(("task_failed", "task_aborted", "dispatch_denied", "tool_denied", "message_failed"))


def lines(events: Iterable[RunLogEvent], root_of: Callable[[RunLogEvent], str]) -> Iterator[bytes]:
    for event in events:
        yield jsontext.encode(_request(event, root_of(event))) + b"\n"


def _request(event: RunLogEvent, root: str) -> dict[str, Any]:
    scope = {"scope": {"name": "stentor.runlog", "version": __version__}, "spans": [span(event, root)]}
    resource = {"attributes": [_attribute("service.name", "stentor"), _attribute("stentor.tenant", event.tenant)]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def span(event: RunLogEvent, root: str) -> dict[str, Any]:
    end = event.happened_at * 1000
    start = end - 1_000_000 * (event.duration_ms or 0)
    made = {
        "traceId": _hex(root)[:32],
        "spanId": _hex(event.event_id)[16:],
        "name": event.event_type,
        "kind": INTERNAL,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": list(_attributes(event)),
        "status": {"code": ERROR, "message": event.message} if event.event_type in FAILED else {"code": OK},
    }
    return made if event.parent_id is None else {**made, "parentSpanId": _hex(event.parent_id)[16:]}


def _attributes(event: RunLogEvent) -> Iterator[dict[str, Any]]:
    yield _attribute("stentor.event_id", event.event_id)
    yield _attribute("stentor.component", event.component)
    yield _attribute("stentor.message", event.message)
    yield _attribute("stentor.metadata", jsontext.dump(event.metadata))
    if event.task_id is not None:
        yield _attribute("stentor.task_id", event.task_id)
    if event.agent_id is not None:
        yield _attribute("gen_ai.agent.id", event.agent_id)


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def _hex(event_id: str) -> str:
    """Its 32 hexadecimal digits; of an id that is no UUID, a hash."""
    plain = event_id.replace("-", "").lower()
    if len(plain) == 32 and set(plain) <= set("0123456789abcdef"):
        return plain
    return sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
