"""W3C PROV-JSON, written piece by piece.

Each event is an activity and its record an entity that the activity generated and that was derived from the record
of its parent. A task is an entity as well, and its result one that was derived from it. Agents are those of the
registry, and the parts of the service as software agents. A section is one pass over the events: nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.runlog import RunLogEvent

Entry = tuple[str, dict[str, Any]]
PREFIX = {"st": "urn:stentor:", "prov": "http://www.w3.org/ns/prov#", "xsd": "http://www.w3.org/2001/XMLSchema#"}


def document(read: Callable[[], Iterable[RunLogEvent]]) -> Iterator[bytes]:
    """One PROV-JSON document in pieces; `read` is called once for each section."""
    yield b'{"prefix":' + jsontext.encode(PREFIX)
    for name, entries in SECTIONS.items():
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


def _entities(event: RunLogEvent) -> Iterator[Entry]:
    shown = {"prov:type": _typed("st:record", "prov:QUALIFIED_NAME"), "prov:value": event.message}
    yield _record(event.event_id), {**shown, "st:metadata": jsontext.dump(event.metadata)}
    if event.event_type == "prompt_received":
        yield _task(event), {"prov:type": _typed("st:task", "prov:QUALIFIED_NAME")}
    if event.event_type == "task_completed":
        yield f"st:result/{event.event_id}", {"prov:type": _typed("st:result", "prov:QUALIFIED_NAME")}


def _activities(event: RunLogEvent) -> Iterator[Entry]:
    started = event.happened_at - 1000 * (event.duration_ms or 0)
    times = {"prov:startTime": format_iso(started), "prov:endTime": format_iso(event.happened_at)}
    yield _step(event.event_id), {**times, "prov:type": event.event_type, "st:component": event.component}


def _agents(event: RunLogEvent) -> Iterator[Entry]:
    yield _agent(event), {"prov:type": _typed("prov:SoftwareAgent", "prov:QUALIFIED_NAME")}


def _generated(event: RunLogEvent) -> Iterator[Entry]:
    step, at = _step(event.event_id), format_iso(event.happened_at)
    yield f"_:g{event.event_id}", {"prov:entity": _record(event.event_id), "prov:activity": step, "prov:time": at}
    if event.event_type == "prompt_received":
        yield f"_:t{event.event_id}", {"prov:entity": _task(event), "prov:activity": step, "prov:time": at}
    if event.event_type == "task_completed":
        result = f"st:result/{event.event_id}"
        yield f"_:r{event.event_id}", {"prov:entity": result, "prov:activity": step, "prov:time": at}


def _used(event: RunLogEvent) -> Iterator[Entry]:
    if event.task_id is not None and event.event_type != "prompt_received":
        yield f"_:u{event.event_id}", {"prov:activity": _step(event.event_id), "prov:entity": _task(event)}


def _derived(event: RunLogEvent) -> Iterator[Entry]:
    if event.parent_id is not None:
        pair = {"prov:generatedEntity": _record(event.event_id), "prov:usedEntity": _record(event.parent_id)}
        yield f"_:d{event.event_id}", pair
    if event.event_type == "task_completed":
        result = f"st:result/{event.event_id}"
        yield f"_:e{event.event_id}", {"prov:generatedEntity": result, "prov:usedEntity": _task(event)}


def _informed(event: RunLogEvent) -> Iterator[Entry]:
    if event.parent_id is not None:
        pair = {"prov:informed": _step(event.event_id), "prov:informant": _step(event.parent_id)}
        yield f"_:i{event.event_id}", pair


def _associated(event: RunLogEvent) -> Iterator[Entry]:
    yield f"_:a{event.event_id}", {"prov:activity": _step(event.event_id), "prov:agent": _agent(event)}


def _attributed(event: RunLogEvent) -> Iterator[Entry]:
    if event.event_type == "task_completed":
        result = f"st:result/{event.event_id}"
        yield f"_:b{event.event_id}", {"prov:entity": result, "prov:agent": _agent(event)}


SECTIONS: dict[str, Callable[[RunLogEvent], Iterator[Entry]]] = {
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
