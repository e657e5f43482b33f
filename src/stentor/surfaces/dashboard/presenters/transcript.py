"""The items of a session as turns of a conversation. Pure; never fails, whatever the items are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.conversation import Part, called_functions, read_message

MAX_PARTS = 50
"""Parts of a message that are shown."""
ROLES = ("system", "user", "assistant", "tool")


class TranscriptItem(msgspec.Struct, frozen=True):
    """An item. `role` is one of ROLES, or empty for a value that is not a message, which is then in `value`.

    `speaker` is the role as the message has it; `omitted` parts are not shown.
    """

    position: int
    is_summary: bool
    role: str
    speaker: str
    parts: list[Part]
    omitted: int
    value: Any
    created_at: str
    task_id: str | None


def build_turns(items: Iterable[JsonObject]) -> list[TranscriptItem]:
    """Return the items of a page of the API in their order; a result has the name of its tool, if its call is there."""
    tools: dict[str, str] = {}
    return [_to_turn(item, tools) for item in items]


def _to_turn(item: JsonObject, tools: dict[str, str]) -> TranscriptItem:
    """Return an item as a turn. `tools` are names of tools by the ids of their calls; those of the item are added."""
    message = read_message(item["value"])
    parts = message.parts if message else []
    parts = [
        msgspec.structs.replace(part, name=tools.get(part.name, part.name)) if part.kind == "result" else part
        for part in parts
    ]
    tools |= _called_tools(item["value"])
    return TranscriptItem(
        item["position"],
        item["kind"] == "summary",
        "" if message is None else message.role if message.role in ROLES else "user",
        "data" if message is None else message.role,
        parts[:MAX_PARTS],
        max(0, len(parts) - MAX_PARTS),
        item["value"] if message is None else None,
        item["created_at"],
        item["task_id"],
    )


def _called_tools(value: Any) -> dict[str, str]:
    """Return the names of the tools that a message calls, by the ids of the calls."""
    calls = called_functions(value) if isinstance(value, dict) else ()
    named = ((call_id, function.get("name")) for call_id, function in calls)
    return {call_id: name for call_id, name in named if isinstance(call_id, str) and isinstance(name, str)}
