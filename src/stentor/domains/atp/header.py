"""The header fields, their validation, and the hints in specialNotes.

One table serves the text format and the JSON format, so that both accept the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
    """A header field: its names in the struct, in JSON and in the text format, and its values or its length limit."""

    name: str
    json: str
    tag: str
    values: tuple[str, ...] | None
    max_length: int
    required: bool
    purpose: str


HEADER_FIELDS = (
    HeaderField("mode", "mode", "#Mode", MODES, 0, True, "How the response is delivered."),
    HeaderField(
        "context",
        "context",
        "#Context",
        None,
        MAX_CONTEXT_LENGTH,
        True,
        "Correlation text, chosen by the sender.",
    ),
    HeaderField("priority", "priority", "#Priority", PRIORITIES, 0, True, "Priority in the queue."),
    HeaderField("action_type", "actionType", "#ActionType", ACTION_TYPES, 0, True, "The action to execute."),
    HeaderField(
        "target_zone", "targetZone", "#TargetZone", ZONES, 0, True, "The part of the service that executes the action."
    ),
    HeaderField(
        "special_notes",
        "specialNotes",
        "#SpecialNotes",
        None,
        MAX_SPECIAL_NOTES_LENGTH,
        False,
        "Comma-separated hints as key=value. Keys: capability, agent, type.",
    ),
)
FIELDS_BY_TAG = {field.tag: field for field in HEADER_FIELDS}
FIELDS_BY_JSON = {field.json: field for field in HEADER_FIELDS}
MISSING = "is required"


def find_value_problem(field: HeaderField, value: object) -> str | None:
    """Return what is wrong with a value, or None if it is valid."""
    if not isinstance(value, str):
        return "must be a text"
    if field.values is not None:
        return None if value in field.values else f"must be one of {', '.join(field.values)}"
    if not value:
        return "must not be empty"
    if len(value) > field.max_length:
        return f"has {len(value)} characters; at most {field.max_length} are allowed"
    # A line break in a value could forge the next tag of the text format.
    if not value.isprintable():
        return "must be one line of printable characters"
    if value[0] == " " or value[-1] == " ":
        return "must not begin or end with a space"
    return None


def build_header(values: Mapping[str, str]) -> AtpHeader:
    """Build a header from valid values, keyed by the names of the struct."""
    return AtpHeader(
        values["mode"],  # pyrefly: ignore[bad-argument-type] - valid, so one of its words
        values["context"],
        values["priority"],  # pyrefly: ignore[bad-argument-type] - valid, so one of its words
        values["action_type"],  # pyrefly: ignore[bad-argument-type] - valid, so one of its words
        values["target_zone"],  # pyrefly: ignore[bad-argument-type] - valid, so one of its words
        values.get("special_notes"),
    )


def find_content_problem(content: object) -> str | None:
    """Return what is wrong with a message's content as text, or None; the body is not parsed here."""
    if not isinstance(content, str):
        return "must be a text"
    if "\0" in content:
        return "must not contain the character NUL"
    if not content.isascii() and any("\ud800" <= char <= "\udfff" for char in content):
        return "must not contain an unpaired surrogate"
    return None


def parse_hints(notes: str | None) -> dict[str, tuple[str, ...]]:
    """Parse the comma-separated `key=value` parts of a text; other parts are ignored."""
    hints: dict[str, tuple[str, ...]] = {}
    for part in (notes or "").split(","):
        key, equals, value = part.partition("=")
        if equals and key.strip() and value.strip():
            hints[key.strip()] = (*hints.get(key.strip(), ()), value.strip())
    return hints


def required_capabilities(header: AtpHeader, required: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the capabilities that the header or the body requires, without duplicates.

    The body can only exclude agents, never add one: a header without capabilities already admits every agent.
    """
    return tuple(dict.fromkeys((*parse_hints(header.special_notes).get("capability", ()), *required)))


def named_agent(header: AtpHeader) -> str | None:
    """Return the id of the agent that the header names, in lower case."""
    agent_ids = parse_hints(header.special_notes).get("agent", ())
    # Lower case, as agents are stored; a sender may write capitals.
    return agent_ids[0].lower() if agent_ids else None


def task_type_of_text(header: AtpHeader) -> str:
    """Return the task type of a message whose body is plain text."""
    return parse_hints(header.special_notes).get("type", ("message",))[0]
