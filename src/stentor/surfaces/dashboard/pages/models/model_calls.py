"""The list of model calls, and one call with what was kept of it. Usage and providers are in `models`."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import jsontext
from stentor.domains.llm.contents.store import find_short_texts
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.pages.agents.agents import read_agent_choices
from stentor.surfaces.dashboard.presenters.conversation import Conversation, read_request, read_response
from stentor.surfaces.dashboard.site.forms import times_of_days
from stentor.surfaces.dashboard.site.page import PageRequest, action, encode_query

CALL = "/models/calls/{call_id}"
PAGE_SIZE = 50
FILTERS = ("provider", "model", "key", "team", "agent_id", "task_id", "outcome")
DAYS = ("from", "to")
MAX_TEXT_CHARACTERS = 20_000


def read_conditions(page: PageRequest) -> dict[str, str]:
    """Return the filters in the URL as arguments of `llm.calls`. Raises InvalidRequest for a wrong day."""
    filters = {name: page.query_param(name) for name in (*FILTERS, *DAYS)}
    return {name: filters[name] for name in FILTERS} | times_of_days(filters)


async def list_calls(page: PageRequest) -> Response:
    filters = {name: page.query_param(name) for name in (*FILTERS, *DAYS)}
    order = page.query_param("order")
    result, names, agent_choices = await asyncio.gather(
        page.call(
            "llm.calls",
            limit=PAGE_SIZE,
            cursor=page.query_param("cursor"),
            order=order,
            **read_conditions(page),
        ),
        page.read(registry_queries.read_names),
        read_agent_choices(page, filters["agent_id"]),
    )
    return page.render(
        "model-calls.html",
        block="rows" if page.query_param("cursor") else "results",
        calls=result["calls"],
        excerpts=await _read_excerpts(page, [call["call_id"] for call in result["calls"]]),
        query=encode_query(filters),
        more=urlencode({**filters, "cursor": result["next_cursor"]}) if result["next_cursor"] else "",
        filters=filters,
        order=order,
        names=names,
        agent_choices=agent_choices,
    )


async def _read_excerpts(page: PageRequest, call_ids: list[str]) -> dict[str, tuple[str, str]]:
    """Return the last words to the model and its answer by call, for admins: they may read the content of all calls."""
    if not call_ids or not page.session.may("admin"):
        return {}
    # Texts that are short when compressed may be long, and fifty of them would hold up the event loop.
    return await asyncio.to_thread(_excerpt, await page.read(find_short_texts, call_ids))


def _excerpt(texts: dict[str, tuple[str | None, str | None]]) -> dict[str, tuple[str, str]]:
    return {
        call_id: (_last_text(read_request(request or "")), _last_text(read_response(response or "")))
        for call_id, (request, response) in texts.items()
    }


def _last_text(conversation: Conversation | None) -> str:
    """Return the last text of a conversation, or the name of its last tool call."""
    parts = [part for message in (conversation.messages if conversation else []) for part in message.parts]
    last = next((part for part in reversed(parts) if part.kind in ("text", "call", "result")), None)
    if last is None:
        return ""
    return f"{last.name}()" if last.kind == "call" else last.text


async def show_call(page: PageRequest) -> Response:
    call, names = await asyncio.gather(
        page.call("llm.call", call_id=page.path_param("call_id")), page.read(registry_queries.read_names)
    )
    sides = [
        {"title": title, "text": call[name], "raw": _decode(call[name]), "conversation": read(call[name] or "")}
        for title, name, read in (("Prompt", "request", read_request), ("Answer", "response", read_response))
    ]
    if call["outcome"] != "ok" and call["response"] is not None and sides[1]["conversation"] is None:
        sides[1]["title"] = "Error message"
    return page.render(
        "model-call.html", block="call", call=call, sides=sides, names=names, max_characters=MAX_TEXT_CHARACTERS
    )


def _decode(text: str | None) -> Any:
    """Return the JSON of a text; a text that is none, such as an event stream, as it is."""
    return None if text is None else jsontext.decode_or_none(text.encode()) or text


async def delete_contents(page: PageRequest) -> Response:
    """Delete the contents of a key, before a day, or both; without either the gateway refuses."""
    form = await page.read_form()
    before = form.get("before", "")
    await page.call("llm.delete_contents", key=form.get("key", ""), before=before and f"{before}T00:00:00Z")
    return page.redirect("/models/calls", "content-deleted")


ROUTES = [
    ("GET", "/models/calls", list_calls),
    ("POST", "/models/calls/delete-content", delete_contents),
    ("GET", CALL, show_call),
    ("POST", f"{CALL}/delete-content", action("llm.delete_content", CALL, "content-deleted")),
]
