"""The session pages: the list, and one session with its transcript, its tasks and its values.

A session is named in the query: its id is the caller's own and may be `a/b` or `..`, which no path keeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.conversation import Part, called_functions, read_message
from stentor.surfaces.dashboard.site.forms import int_or_text
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE, PAGE_ITEMS, PAGE_VALUES, PAGE_TASKS = 50, 50, 50, 10
MAX_REFERENCE_CHARACTERS = 255
MAX_TEXT_CHARACTERS, MAX_OPEN_CHARACTERS, MAX_VALUE_CHARACTERS = 20_000, 2_000, 4_000
"""Characters of a text that are shown; of one that is not folded; of a value."""
MAX_PARTS = 50
"""Parts of a message that are shown."""
ROLES = ("system", "user", "assistant", "tool")


async def list_sessions(page: PageRequest) -> Response:
    """List sessions, the last changed first; `q` is the beginning or the end of an id, or a name."""
    text = "".join(c for c in page.query_param("q") if c.isprintable())[:MAX_REFERENCE_CHARACTERS]
    cursor = "" if text else page.query_param("cursor")
    listed = await page.call("sessions.list", ref=text, cursor=cursor, limit=PAGE_SIZE)
    return page.render(
        "sessions.html",
        block="results",
        sessions=listed["sessions"],
        following=listed["next_cursor"],
        is_first=not cursor,
        text=text,
        page_size=PAGE_SIZE,
        address=_address,
    )


async def show_session(page: PageRequest) -> Response:
    session_id = _session_id(page)
    if not session_id:
        return RedirectResponse("/sessions", 303)
    before, cursor = page.query_param("before"), page.query_param("values")
    record, (items, has_earlier), values, tasks = await asyncio.gather(
        page.call("sessions.get", session_id=session_id),
        _read_items(page, session_id, before),
        page.call("sessions.values", session_id=session_id, limit=PAGE_VALUES, cursor=cursor),
        page.call("tasks.list", session=session_id, limit=PAGE_TASKS),
    )
    return page.render(
        "session.html",
        block="live",
        record=record,
        title=record["name"] or session_id,
        turns=build_turns(items),
        earlier=_address(session_id, before=items[0]["position"]) if has_earlier else "",
        is_newest=not before,
        values=values["values"],
        more_values=_address(session_id, values=values["next_cursor"]) if values["next_cursor"] else "",
        tasks=tasks,
        here=_address(session_id),
        all_tasks=f"/tasks?{urlencode({'session': session_id})}",
        delete=f"/sessions/session/delete?{urlencode({'id': session_id})}",
        max_characters=MAX_TEXT_CHARACTERS,
        open_characters=MAX_OPEN_CHARACTERS,
        value_characters=MAX_VALUE_CHARACTERS,
    )


async def _read_items(page: PageRequest, session_id: str, before: str) -> tuple[list[JsonObject], bool]:
    """Return the last items, or the last ones before a position, and whether there are earlier ones."""
    position: dict[str, Any] = {"before": int_or_text(before)} if before else {}
    result = await page.call("sessions.items", session_id=session_id, newest=True, limit=PAGE_ITEMS, **position)
    items = result["items"]
    if not items or len(items) == result["item_count"]:
        return items, False
    # A page may be short because its values are long, so only another read can tell.
    earlier = await page.call("sessions.items", session_id=session_id, before=items[0]["position"], limit=1)
    return items, bool(earlier["items"])


async def delete_session(page: PageRequest) -> Response:
    await page.call("sessions.delete", session_id=_session_id(page))
    return page.redirect("/sessions", "session-deleted")


def _session_id(page: PageRequest) -> str:
    """Return the id as it is in the query, with spaces around it."""
    # Not `query_param`, which strips: an id of the caller may begin or end with a space.
    return page.request.query_params.get("id", "")


def _address(session_id: str, **more: str | int) -> str:
    return f"/sessions/session?{urlencode({'id': session_id, **more})}"


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


ROUTES = [
    ("GET", "/sessions", list_sessions),
    ("GET", "/sessions/session", show_session),
    ("POST", "/sessions/session/delete", delete_session),
]
