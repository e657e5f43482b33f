"""Export the run log as W3C PROV-JSON or as OpenTelemetry spans, streamed: memory does not grow with the log.

PROV-JSON: each event is an activity, and its record an entity that the activity generated and that was derived from the
record of its parent. A task is an entity, its result another one that was derived from it. Registry agents and
components of the service are software agents. Each section is one pass over the events.

OTLP/JSON: one line per event, each a complete request for the traces endpoint of a collector. The trace is the run with
the root's UUID as its id; the span id is the random half of the event's UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from urllib.parse import quote

import msgspec

from stentor import __version__
from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.db import Tx
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.domains.provenance import store
from stentor.domains.provenance.model import parse_event

PAGE_SIZE = 1_000
MAX_CACHED_ROOTS = 100_000
PROV_PREFIXES = {"st": "urn:stentor:", "prov": "http://www.w3.org/ns/prov#", "xsd": "http://www.w3.org/2001/XMLSchema#"}
SPAN_KIND_INTERNAL, STATUS_OK, STATUS_ERROR = 1, 1, 2
FAILED_EVENT_TYPES = frozenset(("task_failed", "task_aborted", "dispatch_denied", "tool_denied", "message_failed"))

ProvEntry = tuple[str, JsonObject]


class EventSelection(msgspec.Struct, frozen=True):
    """The events of a task, or of a time range in microseconds without its end; always of one tenant."""

    tenant: str
    task_id: str | None = None
    since: int = 0
    before: int = 2**62


def read_events(tx: Tx, selection: EventSelection) -> Iterator[RunLogEvent]:
    """Read the selected events by id, page by page. Raises CorruptRecord at a malformed event."""
    after = ""
    while True:
        if selection.task_id is not None:
            rows = store.page_of_task(tx, selection.tenant, selection.task_id, after, PAGE_SIZE)
        else:
            rows = store.page_of_span(tx, selection.tenant, selection.since, selection.before, after, PAGE_SIZE)
        if not rows:
            return
        yield from map(parse_event, rows)
        after = rows[-1][0]


class RunRoots:
    """Finds the first event of an event's run by following parents; remembers up to MAX_CACHED_ROOTS of them."""

    def __init__(self, tx: Tx, tenant: str) -> None:
        self._tx = tx
        self._tenant = tenant
        self._roots: dict[str, str] = {}

    def root_of(self, event: RunLogEvent) -> str:
        """Return the id of the root; the last event before a missing parent counts as one."""
        path, parent_id = [event.event_id], event.parent_id
        while parent_id is not None and parent_id not in self._roots and parent_id not in path:
            row = store.find_event(self._tx, self._tenant, parent_id)
            if row is None:
                break
            path.append(parent_id)
            parent_id = row[4]
        root = self._roots.get(parent_id, path[-1]) if parent_id is not None else path[-1]
        # All at once and not the oldest: events come in the order of their ids, so old runs rarely return.
        if len(self._roots) > MAX_CACHED_ROOTS:
            self._roots.clear()
        self._roots |= dict.fromkeys(path, root)
        return root


def write_prov_json(read: Callable[[], Iterable[RunLogEvent]]) -> Iterator[bytes]:
    """Write one PROV-JSON document in pieces; `read` is called once for each section."""
    yield b'{"prefix":' + jsontext.encode(PROV_PREFIXES)
    for name, entries in PROV_SECTIONS.items():
        yield b"," + jsontext.encode(name) + b":{"
        seen: set[str] = set()
        first = True
        for key, value in (entry for event in read() for entry in entries(event)):
            if name == "agent":  # many events have the same agent; a JSON object must not repeat a key
                if key in seen:
                    continue
                seen.add(key)
            yield (b"" if first else b",") + jsontext.encode(key) + b":" + jsontext.encode(value)
            first = False
        yield b"}"
    yield b"}\n"


def _step(event_id: str) -> str:
    return f"st:step/{event_id}"


def _record(event_id: str) -> str:
    return f"st:record/{event_id}"


def _task(event: RunLogEvent) -> str:
    return f"st:task/{quote(event.task_id or '', safe='')}"


def _agent(event: RunLogEvent) -> str:
    if event.agent_id is not None:
        return f"st:agent/{quote(event.agent_id, safe='')}"
    return f"st:component/{quote(event.component, safe='')}"


def _qualified(name: str) -> dict[str, str]:
    return {"$": name, "type": "prov:QUALIFIED_NAME"}


def _entities(event: RunLogEvent) -> Iterator[ProvEntry]:
    yield (
        _record(event.event_id),
        {
            "prov:type": _qualified("st:record"),
            "prov:value": event.message,
            "st:metadata": jsontext.dump(event.metadata),
        },
    )
    if event.event_type == "prompt_received":
        yield _task(event), {"prov:type": _qualified("st:task")}
    if event.event_type == "task_completed":
        yield f"st:result/{event.event_id}", {"prov:type": _qualified("st:result")}


def _activities(event: RunLogEvent) -> Iterator[ProvEntry]:
    started = event.happened_at - 1000 * (event.duration_ms or 0)
    times = {"prov:startTime": format_iso(started), "prov:endTime": format_iso(event.happened_at)}
    yield _step(event.event_id), {**times, "prov:type": event.event_type, "st:component": event.component}


def _agents(event: RunLogEvent) -> Iterator[ProvEntry]:
    yield _agent(event), {"prov:type": _qualified("prov:SoftwareAgent")}


def _generated(event: RunLogEvent) -> Iterator[ProvEntry]:
    step, at = _step(event.event_id), format_iso(event.happened_at)
    yield f"_:g{event.event_id}", {"prov:entity": _record(event.event_id), "prov:activity": step, "prov:time": at}
    if event.event_type == "prompt_received":
        yield f"_:t{event.event_id}", {"prov:entity": _task(event), "prov:activity": step, "prov:time": at}
    if event.event_type == "task_completed":
        result = f"st:result/{event.event_id}"
        yield f"_:r{event.event_id}", {"prov:entity": result, "prov:activity": step, "prov:time": at}


def _used(event: RunLogEvent) -> Iterator[ProvEntry]:
    if event.task_id is not None and event.event_type != "prompt_received":
        yield f"_:u{event.event_id}", {"prov:activity": _step(event.event_id), "prov:entity": _task(event)}


def _derived(event: RunLogEvent) -> Iterator[ProvEntry]:
    if event.parent_id is not None:
        pair = {"prov:generatedEntity": _record(event.event_id), "prov:usedEntity": _record(event.parent_id)}
        yield f"_:d{event.event_id}", pair
    if event.event_type == "task_completed":
        result = f"st:result/{event.event_id}"
        yield f"_:e{event.event_id}", {"prov:generatedEntity": result, "prov:usedEntity": _task(event)}


def _informed(event: RunLogEvent) -> Iterator[ProvEntry]:
    if event.parent_id is not None:
        pair = {"prov:informed": _step(event.event_id), "prov:informant": _step(event.parent_id)}
        yield f"_:i{event.event_id}", pair


def _associated(event: RunLogEvent) -> Iterator[ProvEntry]:
    yield f"_:a{event.event_id}", {"prov:activity": _step(event.event_id), "prov:agent": _agent(event)}


def _attributed(event: RunLogEvent) -> Iterator[ProvEntry]:
    if event.event_type == "task_completed":
        result = f"st:result/{event.event_id}"
        yield f"_:b{event.event_id}", {"prov:entity": result, "prov:agent": _agent(event)}


PROV_SECTIONS: dict[str, Callable[[RunLogEvent], Iterator[ProvEntry]]] = {
    "entity": _entities,
    "activity": _activities,
    "agent": _agents,
    "wasGeneratedBy": _generated,
    "used": _used,
    "wasDerivedFrom": _derived,
    "wasInformedBy": _informed,
    "wasAssociatedWith": _associated,
    "wasAttributedTo": _attributed,
}


def write_otlp_json(events: Iterable[RunLogEvent], root_of: Callable[[RunLogEvent], str]) -> Iterator[bytes]:
    """Write one line per event: an OTLP/JSON request with one span. `root_of` returns the id of an event's run."""
    scope = {"name": "stentor.runlog", "version": __version__}
    for event in events:
        spans = [{"scope": scope, "spans": [build_span(event, root_of(event))]}]
        resource = {"attributes": [_attribute("service.name", "stentor"), _attribute("stentor.tenant", event.tenant)]}
        yield jsontext.encode({"resourceSpans": [{"resource": resource, "scopeSpans": spans}]}) + b"\n"


def build_span(event: RunLogEvent, root: str) -> JsonObject:
    """Build the span of an event. The event is recorded when the work ends, so its time is the end."""
    end = event.happened_at * 1000
    start = end - 1_000_000 * (event.duration_ms or 0)
    failed = event.event_type in FAILED_EVENT_TYPES
    span = {
        "traceId": _hex_id(root)[:32],
        "spanId": _hex_id(event.event_id)[16:],
        "name": event.event_type,
        "kind": SPAN_KIND_INTERNAL,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": list(_attributes(event)),
        "status": {"code": STATUS_ERROR, "message": event.message} if failed else {"code": STATUS_OK},
    }
    return span if event.parent_id is None else {**span, "parentSpanId": _hex_id(event.parent_id)[16:]}


def _attributes(event: RunLogEvent) -> Iterator[JsonObject]:
    yield _attribute("stentor.event_id", event.event_id)
    yield _attribute("stentor.component", event.component)
    yield _attribute("stentor.message", event.message)
    yield _attribute("stentor.metadata", jsontext.dump(event.metadata))
    if event.task_id is not None:
        yield _attribute("stentor.task_id", event.task_id)
    if event.agent_id is not None:
        yield _attribute("gen_ai.agent.id", event.agent_id)


def _attribute(key: str, value: str) -> JsonObject:
    return {"key": key, "value": {"stringValue": value}}


def _hex_id(event_id: str) -> str:
    """Return the 32 hexadecimal digits of a UUID; a hash for any other id."""
    digits = event_id.replace("-", "").lower()
    if len(digits) == 32 and set(digits) <= set("0123456789abcdef"):
        return digits
    return sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
