"""A run as what its page draws: a list in which only branches are nested, and what its ids lead to. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from stentor.domains.memory.vaults import DEFAULT
from stentor.surfaces.dashboard.pages.note import address as note_address
from stentor.surfaces.dashboard.site.calls import part

DEEPEST = 6
"""Branches in branches; what is deeper stands at that depth, for the sake of narrow screens and of browsers."""
Event = dict[str, Any]
KINDS = {
    "message_id": ("message", "/messages/"),
    "update_id": ("update", "/governance/updates/"),
    "checkpoint_id": ("checkpoint", "/governance/checkpoints/"),
    "rollback_id": ("rollback", "/governance/rollbacks/"),
}
"""Members of an event's metadata that name something with a page."""


class Link(msgspec.Struct, frozen=True):
    kind: str
    id: str
    address: str


class Mark(msgspec.Struct, frozen=True):
    """What the template writes next: `list`, `end` of a list, `event` (its item begins), `done` (its item ends)."""

    kind: str
    event: Event | None = None
    links: list[Link] = []


def marks(events: list[Event]) -> Iterator[Mark]:
    """Oldest first. An event is followed by what it led to in its own task; what else it led to are branches.

    What cannot be reached from an event without a parent here stands at the top too, so none is left out.
    """
    known = {event["provenance_id"] for event in events}
    children: dict[str, list[Event]] = {}
    for event in events:
        children.setdefault(str(event["parent_provenance_id"]), []).append(event)
    tops = [event for event in events if event["parent_provenance_id"] not in known]
    seen: set[str] = set()
    yield Mark("list")
    for top in (*tops, *events):
        yield from _chain(top, children, seen)
    yield Mark("end")


def _chain(top: Event, children: dict[str, list[Event]], seen: set[str]) -> Iterator[Mark]:
    """Without recursion: a run may be as deep as it is long."""
    todo: list[tuple[Mark | Event, int]] = [(top, 0)]
    while todo:
        found, depth = todo.pop()
        if isinstance(found, Mark):
            yield found
        elif found["provenance_id"] not in seen:
            seen.add(found["provenance_id"])
            yield Mark("event", found, links(found))
            todo += reversed(_after(found, children.get(found["provenance_id"], []), depth))


def _after(event: Event, led_to: list[Event], depth: int) -> list[tuple[Mark | Event, int]]:
    """The rest of the event's item, and what follows it in the same list."""
    following = _following(event, led_to)
    branches = [one for one in led_to if one is not following]
    nested = depth < DEEPEST and bool(branches)
    inner: list[tuple[Mark | Event, int]] = [(one, depth + nested) for one in branches]
    rest: list[tuple[Mark | Event, int]] = [(following, depth)] if following else []
    done: tuple[Mark | Event, int] = (Mark("done"), depth)
    if not nested:
        return [done, *inner, *rest]
    return [(Mark("list"), depth), *inner, (Mark("end"), depth), done, *rest]


def _following(event: Event, led_to: list[Event]) -> Event | None:
    return next((one for one in led_to if one["task_id"] == event["task_id"]), None)


def links(event: Event) -> list[Link]:
    """Pages of what the event is about."""
    metadata = event["metadata"] if isinstance(event["metadata"], dict) else {}
    found = []
    if event["task_id"]:
        found.append(Link("task", event["task_id"], f"/tasks/{part(event['task_id'])}"))
    if event["agent_id"]:
        found.append(Link("agent", event["agent_id"], f"/agents/{part(event['agent_id'])}"))
    for name, (kind, where) in KINDS.items():
        if metadata.get(name) and isinstance(metadata[name], str):
            found.append(Link(kind, metadata[name], where + part(metadata[name])))
    path = metadata.get("path")
    if event["event_type"].startswith("memory_") and path and isinstance(path, str):
        found.append(Link("note", path, note_address(path, str(metadata.get("vault", DEFAULT)))))
    return found


def all_links(events: list[Event]) -> dict[str, list[Link]]:
    """Of a whole run by kind, each once, in the order of their first event."""
    found: dict[str, list[Link]] = {}
    for link in dict.fromkeys(link for event in events for link in links(event)):
        found.setdefault(link.kind, []).append(link)
    return found


def lasted(events: list[Event]) -> float:
    """Milliseconds from the first event to the last one."""
    times = [datetime.fromisoformat(event["timestamp"]) for event in events]
    return (max(times) - min(times)).total_seconds() * 1000
