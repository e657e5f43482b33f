"""The list of model calls, and one call with what was kept of it. Usage and providers are in `models`."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

from starlette.responses import Response

from stentor.core import jsontext
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_SIZE = 50
FILTERS = ("provider", "model", "key", "agent_id", "task_id", "outcome")
MAX_TEXT_CHARACTERS = 20_000


async def list_calls(page: PageRequest) -> Response:
    filters = {name: page.query_param(name) for name in FILTERS}
    result, names = await asyncio.gather(
        page.call("llm.calls", limit=PAGE_SIZE, cursor=page.query_param("cursor"), **filters),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "model-calls.html",
        block="rows" if page.query_param("cursor") else "results",
        calls=result["calls"],
        more=urlencode({**filters, "cursor": result["next_cursor"]}) if result["next_cursor"] else "",
        filters=filters,
        names=names,
    )


async def show_call(page: PageRequest) -> Response:
    call, names = await asyncio.gather(
        page.call("llm.call", call_id=page.path_param("call_id")), page.read(registry_queries.read_names)
    )
    contents = {name: _decode(call[name]) for name in ("request", "response")}
    return page.render("model-call.html", call=call | contents, names=names, max_characters=MAX_TEXT_CHARACTERS)


def _decode(text: str | None) -> Any:
    """Return the JSON of a text; a text that is none, such as an event stream, as it is."""
    return None if text is None else jsontext.decode_or_none(text.encode()) or text


ROUTES = [
    ("GET", "/models/calls", list_calls),
    ("GET", "/models/calls/{call_id}", show_call),
]
