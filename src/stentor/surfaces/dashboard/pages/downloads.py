"""Files to download: the history of a task as JSON, and lists with their filters as CSV.

They are sent as they are read: a list may have a million rows, and a task a hundred thousand events.
"""

from __future__ import annotations

import asyncio
import csv
import io
import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm import queries as llm_queries
from stentor.domains.registry import queries as registry_queries
from stentor.domains.steps.model import MAX_INLINE_BYTES
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages.models import model_calls
from stentor.surfaces.dashboard.pages.tasks import task_list
from stentor.surfaces.dashboard.site.page import PageRequest

ROWS_PER_READ = 500
TASK_COLUMNS = {
    "task_id": "task_id",
    "title": "title",
    "type": "type",
    "status": "status",
    "agent_id": "assigned_agent",
    "agent": "agent_name",
    "created_at": "created_at",
    "completed_at": "completed_at",
    "duration_ms": "duration_ms",
    "total_duration_ms": "total_duration_ms",
    "attempts": "attempts",
    "model_cost_usd": "cost",
}
"""Columns of a file, with the field of a row that each has."""
CALL_COLUMNS = {
    name: name
    for name in (
        "call_id happened_at provider model operation outcome key team agent_id agent task_id input_tokens "
        "cached_tokens output_tokens estimated cost_usd latency_ms"
    ).split()
}
_FORMULA = re.compile(r'^(?=[\t\r\n])|(^|[;\t\r\n])("*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])')
"""Where a text becomes a formula of a spreadsheet, which could send the table to somebody: at its beginning, and after
what separates cells where the comma is the decimal sign. The signs of East Asian keyboards count too.
"""
log = logging.getLogger(__name__)
_UNSAFE_IN_NAME = re.compile(r"[^A-Za-z0-9._-]+")


async def download_tasks(page: PageRequest) -> Response:
    """All tasks of the list with its filters and its search."""
    search = task_list.read_search(page)
    first = await task_list.find_tasks(page, search, None, ROWS_PER_READ)  # an error of it has a page
    read = partial(task_list.read_matching, page, search, limit=ROWS_PER_READ)

    async def rows() -> AsyncIterator[list[JsonObject]]:
        async for result in _follow(first, read):
            costs = await page.read(llm_queries.read_task_costs, [task["task_id"] for task in result["tasks"]])
            yield [task | {"cost": costs.get(task["task_id"])} for task in result["tasks"]]

    return _send_csv("tasks.csv", TASK_COLUMNS, rows())


async def download_calls(page: PageRequest) -> Response:
    """All model calls of the list with its filters; the most expensive ones if the list shows these."""
    conditions = model_calls.read_conditions(page)
    read = partial(_call, page, "llm.calls", order=page.query_param("order"), **conditions)
    first, names = await asyncio.gather(read(), page.read(registry_queries.read_names))

    async def rows() -> AsyncIterator[list[JsonObject]]:
        async for result in _follow(first, read):
            yield [call | {"agent": names.get(call["agent_id"])} for call in result["calls"]]

    return _send_csv("model-calls.csv", CALL_COLUMNS, rows())


async def _follow(first: JsonObject, read: Any) -> AsyncIterator[JsonObject]:
    """Yield a page of a list and those that follow; `read` returns one by its cursor."""
    result = first
    while True:
        yield result
        if result["next_cursor"] is None:
            return
        result = await read(result["next_cursor"])


def _send_csv(name: str, columns: Mapping[str, str], pages: AsyncIterable[list[JsonObject]]) -> Response:
    async def lines() -> AsyncIterator[bytes]:
        # The mark at the start tells spreadsheets that it is UTF-8.
        yield b"\xef\xbb\xbf" + write_csv([list(columns)])
        async for rows in pages:
            yield await asyncio.to_thread(write_csv, [[row[field] for field in columns.values()] for row in rows])

    return Download(name, "text/csv; charset=utf-8", lines())


def write_csv(rows: Iterable[list[Any]]) -> bytes:
    """Return rows as CSV (RFC 4180), with an apostrophe before what a spreadsheet would take for a formula."""
    text = io.StringIO()
    csv.writer(text).writerows([[_write_cell(value) for value in row] for row in rows])
    return text.getvalue().encode(errors="replace")


def _write_cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")  # never as 1e-05
    return _FORMULA.sub(r"\1\2'", value) if isinstance(value, str) else value


async def download_history(page: PageRequest) -> Response:
    """All that is recorded of a task: its record, input, grade, steps, model calls, subtasks and events.

    Model calls are those that the caller may list.
    """
    task_id = page.path_param("task_id")
    read_events = partial(_call, page, "tasks.activity", task_id=task_id)
    trail = await read_events()  # an error of it has a page
    # Only the events are left of a deleted task.
    task_input, grade = await asyncio.gather(
        page.find("tasks.input", task_id=task_id), page.find("tasks.get_grade", task_id=task_id)
    )
    head = {name: value for name, value in trail.items() if name not in ("events", "next_cursor")}
    head |= {"input": task_input["input"] if task_input else None, "grade": grade}
    lists = {
        "steps": ("steps", partial(_call, page, "steps.list", task_id=task_id)),
        "model_calls": ("calls", partial(_call, page, "llm.calls", task_id=task_id)),
        "subtasks": ("tasks", partial(_call, page, "tasks.list", parent_task_id=task_id)),
    }
    if trail["task"] is None:
        del lists["steps"]

    async def write() -> AsyncIterator[bytes]:
        yield jsontext.encode(head)[:-1]
        for name, (field, read) in lists.items():
            pages = _follow(await read(), read)
            if name == "steps":
                pages = _read_long_values(page, task_id, pages)
            async for part in _write_list(name, field, pages):
                yield part
        async for part in _write_list("events", "events", _follow(trail, read_events)):
            yield part
        yield b"\n}\n"

    name = _UNSAFE_IN_NAME.sub("-", task_id)[:80]
    return Download(f"task-{name}.json", "application/json", write())


async def _read_long_values(
    page: PageRequest, task_id: str, pages: AsyncIterable[JsonObject]
) -> AsyncIterator[JsonObject]:
    """Yield steps with the values that a list leaves out; one by one, as many could be too long for the memory."""
    async for result in pages:
        for step in result["steps"]:
            if step["value"] is None and step["size"] > MAX_INLINE_BYTES:
                step |= await page.call_patiently("steps.read", task_id=task_id, key=step["key"])
            yield {"steps": [step]}


async def _call(page: PageRequest, operation: str, cursor: str | None = None, **arguments: Any) -> JsonObject:
    return dict(await page.call_patiently(operation, limit=ROWS_PER_READ, cursor=cursor, **arguments))


async def _write_list(name: str, field: str, pages: AsyncIterable[JsonObject]) -> AsyncIterator[bytes]:
    """Write a member of an object, one row in a line."""
    yield b",\n" + jsontext.encode(name) + b":["
    is_first = True
    async for result in pages:
        rows = b",\n".join(map(jsontext.encode, result[field]))
        yield (b"\n" if is_first else b",\n") + rows if rows else b""
        is_first = is_first and not rows
    yield b"]"


class Download(StreamingResponse):
    """A file that is sent as it is read. An error on the way ends the response without its end.

    The server then closes the connection, and the browser reports the failure. If the error was raised, every layer
    above would log it with a traceback.
    """

    def __init__(self, name: str, media_type: str, content: AsyncIterator[bytes]) -> None:
        super().__init__(content, media_type=media_type)
        self.headers["Content-Disposition"] = f'attachment; filename="{name}"'
        self._name = name

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (GatewayError, StentorError) as error:
            log.warning("dashboard: download aborted file=%s reason=%s", self._name, error.message)
        except OSError:  # the browser left
            raise
        except Exception:
            log.exception("dashboard: download aborted file=%s", self._name)


ROUTES = [
    ("GET", "/tasks.csv", download_tasks),
    ("GET", "/models/calls.csv", download_calls),
    ("GET", "/tasks/{task_id}/history.json", download_history),
]
