"""What each field of a header may hold. One table for the wire form and the JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stentor.domains.atp.model import (
    ACTION_TYPES,
    MAX_CONTEXT,
    MAX_NOTES,
    MODES,
    PRIORITIES,
    ZONES,
    Header,
)


class Field(NamedTuple):
    """A field of the header: its names in the struct, in JSON and on the wire, and its values or their length."""

    name: str
    json: str
    tag: str
    values: tuple[str, ...] | None
    most: int
    required: bool
    purpose: str


FIELDS = (
    Field("mode", "mode", "#Mode", MODES, 0, True, "How the answer comes."),
    Field("context", "context", "#Context", None, MAX_CONTEXT, True, "What the message belongs to; yours to choose."),
    Field("priority", "priority", "#Priority", PRIORITIES, 0, True, "Its place in the queue."),
    Field("action_type", "actionType", "#ActionType", ACTION_TYPES, 0, True, "What is to be done."),
    Field("target_zone", "targetZone", "#TargetZone", ZONES, 0, True, "The part of the service that does it."),
    Field(
        "special_notes",
        "specialNotes",
        "#SpecialNotes",
        None,
        MAX_NOTES,
        False,
        "Hints as key=value, comma separated: capability, agent, type.",
    ),
)
BY_TAG = {field.tag: field for field in FIELDS}
BY_JSON = {field.json: field for field in FIELDS}
MISSING = "is required"


def problem(field: Field, value: Any) -> str | None:
    """What is wrong with a value, or None."""
    if not isinstance(value, str):
        return "must be a text"
    if field.values is not None:
        return None if value in field.values else f"must be one of {', '.join(field.values)}"
    if not value:
        return "must not be empty"
    if len(value) > field.most:
        return f"has {len(value)} characters; {field.most} are the most"
    if not value.isprintable():
        return "must be one line of printable characters"
    if value[0] == " " or value[-1] == " ":
        return "must not begin or end with a space"
    return None


def built(values: Mapping[str, str]) -> Header:
    """A header of values that have no problem, by the names of the struct."""
    return Header(
        values["mode"],  # type: ignore[arg-type]
        values["context"],
        values["priority"],  # type: ignore[arg-type]
        values["action_type"],  # type: ignore[arg-type]
        values["target_zone"],  # type: ignore[arg-type]
        values.get("special_notes"),
    )


def content_problem(content: Any) -> str | None:
    """Of the message's text, whatever it says."""
    if not isinstance(content, str):
        return "must be a text"
    if "\0" in content:
        return "must not contain the character NUL"
    if not content.isascii() and any("\ud800" <= char <= "\udfff" for char in content):
        return "must not contain half of a surrogate pair"
    return None
