"""The run log for other tools: W3C PROV-JSON, and spans of OpenTelemetry.

The events that are exported, in the order of their ids, page by page.

W3C PROV-JSON, written piece by piece.

Each event is an activity and its record an entity that the activity generated and that was derived from the record
of its parent. A task is an entity as well, and its result one that was derived from it. Agents are those of the
registry, and the parts of the service as software agents. A section is one pass over the events: nothing is kept.

Spans of OpenTelemetry as OTLP/JSON: one line per event, each a whole request for the traces route of a collector.

The trace is the run, its id the root's UUID; a span's id is the random half of its event's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import msgspec

from stentor import __version__
from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.db import Tx
from stentor.core.db.driver import Row
from stentor.core.runlog import RunLogEvent
from stentor.domains.provenance import store
from stentor.domains.provenance.model import parse_event

PAGE_SIZE = 1_000
MAX_CACHED_ROOTS = 100_000
"""Roots of runs kept in memory at a time."""


class EventSelection(msgspec.Struct, frozen=True):
    """Of one tenant: a task's events, or those of a time range in microseconds, its end excluded."""

    tenant: str
    task_id: str | None = None
    since: int = 0
    before: int = 2**62


def read_events(tx: Tx, chosen: EventSelection) -> Iterator[RunLogEvent]:
    """Raises CorruptRecord at an event that cannot be read."""
    after = ""
    while rows := _read_page(tx, chosen, after):
        yield from map(parse_event, rows)
        after = rows[-1][0]


def _read_page(tx: Tx, chosen: EventSelection, after: str) -> list[Row]:
    if chosen.task_id is not None:
        return store.page_of_task(tx, chosen.tenant, chosen.task_id, after, PAGE_SIZE)
    return store.page_of_span(tx, chosen.tenant, chosen.since, chosen.before, after, PAGE_SIZE)


class RunRoots:
    """The first event of an event's run, by following parents; parents come before their children mostly."""

    def __init__(self, tx: Tx, tenant: str) -> None:
        self._tx = tx
        self._tenant = tenant
        self._known: dict[str, str] = {}

    def root_of(self, event: RunLogEvent) -> str:
        """Its id; a parent that is not in the log ends the way."""
        way, at = [event.event_id], event.parent_id
        while at is not None and at not in self._known and at not in way:
            row = store.find_event(self._tx, self._tenant, at)
            if row is None:
                break
            way.append(at)
            at = row[4]
        root = self._known.get(at, way[-1]) if at is not None else way[-1]
        if len(self._known) > MAX_CACHED_ROOTS:
            self._known.clear()
        self._known |= dict.fromkeys(way, root)
        return root


ProvEntry = tuple[str, dict[str, Any]]
PROV_PREFIXES = {"st": "urn:stentor:", "prov": "http://www.w3.org/ns/prov#", "xsd": "http://www.w3.org/2001/XMLSchema#"}


def write_prov_json(read: Callable[[], Iterable[RunLogEvent]]) -> Iterator[bytes]:
    """One PROV-JSON document in pieces; `read` is called once for each section."""
    yield b'{"prefix":' + jsontext.encode(PROV_PREFIXES)
    for name, entries in PROV_SECTIONS.items():
        yield b"," + jsontext.encode(name) + b":{"
        seen: set[str] = set()
        first = True
        for key, value in (entry for event in read() for entry in entries(event)):
            if name == "agent":  # few of them, and each of many events
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


def _typed(value: str, kind: str) -> dict[str, str]:
    return {"$": value, "type": kind}


def _entities(event: RunLogEvent) -> Iterator[ProvEntry]:
    shown = {"prov:type": _typed("st:record", "prov:QUALIFIED_NAME"), "prov:value": event.message}
    yield _record(event.event_id), {**shown, "st:metadata": jsontext.dump(event.metadata)}
    if event.event_type == "prompt_received":
        yield _task(event), {"prov:type": _typed("st:task", "prov:QUALIFIED_NAME")}
    if event.event_type == "task_completed":
        yield f"st:result/{event.event_id}", {"prov:type": _typed("st:result", "prov:QUALIFIED_NAME")}


def _activities(event: RunLogEvent) -> Iterator[ProvEntry]:
    started = event.happened_at - 1000 * (event.duration_ms or 0)
    times = {"prov:startTime": format_iso(started), "prov:endTime": format_iso(event.happened_at)}
    yield _step(event.event_id), {**times, "prov:type": event.event_type, "st:component": event.component}


def _agents(event: RunLogEvent) -> Iterator[ProvEntry]:
    yield _agent(event), {"prov:type": _typed("prov:SoftwareAgent", "prov:QUALIFIED_NAME")}


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


INTERNAL, OK, ERROR = 1, 1, 2
FAILED_EVENT_TYPES = frozenset(("task_failed", "task_aborted", "dispatch_denied", "tool_denied", "message_failed"))


def write_otlp_json(events: Iterable[RunLogEvent], root_of: Callable[[RunLogEvent], str]) -> Iterator[bytes]:
    for event in events:
        yield jsontext.encode(_request(event, root_of(event))) + b"\n"


def _request(event: RunLogEvent, root: str) -> dict[str, Any]:
    scope = {"scope": {"name": "stentor.runlog", "version": __version__}, "spans": [build_span(event, root)]}
    resource = {"attributes": [_attribute("service.name", "stentor"), _attribute("stentor.tenant", event.tenant)]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def build_span(event: RunLogEvent, root: str) -> dict[str, Any]:
    end = event.happened_at * 1000
    start = end - 1_000_000 * (event.duration_ms or 0)
    made = {
        "traceId": _hex_id(root)[:32],
        "spanId": _hex_id(event.event_id)[16:],
        "name": event.event_type,
        "kind": INTERNAL,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": list(_attributes(event)),
        "status": {"code": ERROR, "message": event.message} if event.event_type in FAILED_EVENT_TYPES else {"code": OK},
    }
    return made if event.parent_id is None else {**made, "parentSpanId": _hex_id(event.parent_id)[16:]}


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


def _hex_id(event_id: str) -> str:
    """Its 32 hexadecimal digits; of an id that is no UUID, a hash."""
    plain = event_id.replace("-", "").lower()
    if len(plain) == 32 and set(plain) <= set("0123456789abcdef"):
        return plain
    return sha256(event_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
