"""What each field of a header may hold. One table for the wire form and the JSON form.

Special notes as hints, and what the envelope says of who may do the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stentor.domains.atp.model import (
    ACTION_TYPES,
    MAX_CONTEXT_LENGTH,
    MAX_SPECIAL_NOTES_LENGTH,
    MODES,
    PRIORITIES,
    ZONES,
    AtpHeader,
)


class HeaderField(NamedTuple):
    """A field of the header: its names in the struct, in JSON and on the wire, and its values or their length."""

    name: str
    json: str
    tag: str
    values: tuple[str, ...] | None
    max_length: int
    required: bool
    purpose: str


HEADER_FIELDS = (
    HeaderField("mode", "mode", "#Mode", MODES, 0, True, "How the answer comes."),
    HeaderField(
        "context",
        "context",
        "#Context",
        None,
        MAX_CONTEXT_LENGTH,
        True,
        "What the message belongs to; yours to choose.",
    ),
    HeaderField("priority", "priority", "#Priority", PRIORITIES, 0, True, "Its place in the queue."),
    HeaderField("action_type", "actionType", "#ActionType", ACTION_TYPES, 0, True, "What is to be done."),
    HeaderField("target_zone", "targetZone", "#TargetZone", ZONES, 0, True, "The part of the service that does it."),
    HeaderField(
        "special_notes",
        "specialNotes",
        "#SpecialNotes",
        None,
        MAX_SPECIAL_NOTES_LENGTH,
        False,
        "Hints as key=value, comma separated: capability, agent, type.",
    ),
)
FIELDS_BY_TAG = {field.tag: field for field in HEADER_FIELDS}
FIELDS_BY_JSON = {field.json: field for field in HEADER_FIELDS}
MISSING = "is required"


def find_value_problem(field: HeaderField, value: Any) -> str | None:
    """What is wrong with a value, or None."""
    if not isinstance(value, str):
        return "must be a text"
    if field.values is not None:
        return None if value in field.values else f"must be one of {', '.join(field.values)}"
    if not value:
        return "must not be empty"
    if len(value) > field.max_length:
        return f"has {len(value)} characters; {field.max_length} are the most"
    if not value.isprintable():
        return "must be one line of printable characters"
    if value[0] == " " or value[-1] == " ":
        return "must not begin or end with a space"
    return None


def build_header(values: Mapping[str, str]) -> AtpHeader:
    """A header of values that have no problem, by the names of the struct."""
    return AtpHeader(
        values["mode"],  # type: ignore[arg-type]
        values["context"],
        values["priority"],  # type: ignore[arg-type]
        values["action_type"],  # type: ignore[arg-type]
        values["target_zone"],  # type: ignore[arg-type]
        values.get("special_notes"),
    )


def find_content_problem(content: Any) -> str | None:
    """Of the message's text, whatever it says."""
    if not isinstance(content, str):
        return "must be a text"
    if "\0" in content:
        return "must not contain the character NUL"
    if not content.isascii() and any("\ud800" <= char <= "\udfff" for char in content):
        return "must not contain half of a surrogate pair"
    return None


def parse_hints(notes: str | None) -> dict[str, tuple[str, ...]]:
    """The `key=value` parts of a text with commas between them; other parts say nothing to the service."""
    found: dict[str, tuple[str, ...]] = {}
    for part in (notes or "").split(","):
        key, equals, value = part.partition("=")
        if equals and key.strip() and value.strip():
            found[key.strip()] = (*found.get(key.strip(), ()), value.strip())
    return found


def required_capabilities(header: AtpHeader, required: Sequence[str] = ()) -> tuple[str, ...]:
    """What the envelope asks for, and what its body requires besides: which can leave fewer agents, never add one.

    An envelope that names nothing reaches every admitted agent, so there too the body only narrows.
    """
    return tuple(dict.fromkeys((*parse_hints(header.special_notes).get("capability", ()), *required)))


def named_agent(header: AtpHeader) -> str | None:
    """The agent that the envelope names, by its id."""
    named = parse_hints(header.special_notes).get("agent", ())
    return named[0].lower() if named else None


def task_type_of_text(header: AtpHeader) -> str:
    """Of a message whose body is a plain text."""
    return parse_hints(header.special_notes).get("type", ("message",))[0]
