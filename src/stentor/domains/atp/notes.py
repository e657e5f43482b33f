"""Special notes as hints, and what the envelope says of who may do the work."""

from __future__ import annotations

from collections.abc import Sequence

from stentor.domains.atp.model import Header


def hints(notes: str | None) -> dict[str, tuple[str, ...]]:
    """The `key=value` parts of a text with commas between them; other parts say nothing to the service."""
    found: dict[str, tuple[str, ...]] = {}
    for part in (notes or "").split(","):
        key, equals, value = part.partition("=")
        if equals and key.strip() and value.strip():
            found[key.strip()] = (*found.get(key.strip(), ()), value.strip())
    return found


def capabilities(header: Header, required: Sequence[str] = ()) -> tuple[str, ...]:
    """What the envelope asks for, and what its body requires besides: which can leave fewer agents, never add one.

    An envelope that names nothing reaches every admitted agent, so there too the body only narrows.
    """
    return tuple(dict.fromkeys((*hints(header.special_notes).get("capability", ()), *required)))


def agent(header: Header) -> str | None:
    """The agent that the envelope names, by its id."""
    named = hints(header.special_notes).get("agent", ())
    return named[0].lower() if named else None


def task_type(header: Header) -> str:
    """Of a message whose body is a plain text."""
    return hints(header.special_notes).get("type", ("message",))[0]
