"""The list of tasks, and the search by the words or the id of a task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core.clock import format_iso
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import is_readable
from stentor.domains.llm import queries as llm_queries
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks.reading.chart_queries import CHART_RANGES, MINUTE_US
from stentor.domains.tasks.search.service import EVENTS_PER_BATCH
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.pages.agents.agents import read_agent_choices
from stentor.surfaces.dashboard.pages.overview.overview import TASK_STATUSES
from stentor.surfaces.dashboard.pages.tasks import task_selection
from stentor.surfaces.dashboard.presenters.filters import shorten_id
from stentor.surfaces.dashboard.site.page import PageRequest, encode_query

PAGE_SIZE = 50
MATCHES_PER_READ = 500
FILTERS = ("status", "agent", "type", "by", "since", "session")
"""Conditions of the list, by their names in its address."""
SINCE = {"1h": "hour", "24h": "24 hours", "7d": "7 days"}
"""Labels of the time ranges, by their names in the charts."""
_LIKE_AN_ID = re.compile(r"(?=\S*[\d-])\S+")
MIN_PART_CHARACTERS = 8
"""A shorter text is looked up as a complete id, then as a word such as an error code: many ids would end in it."""
MAX_REFERENCE_CHARACTERS = 255
AGAIN_HEADER = "X-Again"
"""Sent by the page of an empty search that waits for the index."""
SEARCHES = (("tasks", "task_id"), ("agents", "agent_id"))
"""What the search field finds: resource, field of its id."""


class TaskListSearch(msgspec.Struct, frozen=True):
    """The filters and the text in the address of a list. `conditions` are those of `tasks.list`, with fixed times."""

    filters: dict[str, str]
    since: str
    text: str
    conditions: JsonObject

    @property
    def query(self) -> str:
        """The address's query."""
        return encode_query({**self.filters, "since": self.since, "q": self.text})


def read_search(
    page: PageRequest, fields: Mapping[str, str] | None = None, *, now: int | None = None
) -> TaskListSearch:
    """Return the search in the page's URL, or in other fields: `since` is a length of time up to now, or up to `now`,
    in microseconds.
    """
    now = page.site.now() if now is None else now
    fields = page.request.query_params if fields is None else fields
    filters = {name: fields.get(name, "").strip() for name in FILTERS}
    since = filters["since"] if filters["since"] in CHART_RANGES else ""
    length, _ = CHART_RANGES.get(since, (None, None))
    # Rounded to the minute, so that the whole page and its next pages use the same time.
    start = None if length is None else format_iso(now // MINUTE_US * MINUTE_US - length)
    conditions = {
        "status": filters["status"],
        "agent_id": filters["agent"],
        "type": filters["type"],
        "submitted_by": filters["by"],
        "session": filters["session"],
        "created_after": start,
    }
    return TaskListSearch(filters, since, _clean_reference(fields.get("q", "").strip()), conditions)


async def list_tasks(page: PageRequest) -> Response:
    """List tasks, newest first; `q` is a part of an id or words of a task, `since` a length of time up to now."""
    search = read_search(page)
    filters = search.filters
    names, current, result, choices = await asyncio.gather(
        page.read(registry_queries.read_names),
        read_agent_choices(page, filters["agent"]),
        find_tasks(page, search, page.query_param("cursor"), PAGE_SIZE),
        _read_choices(page, filters),
    )
    unindexed = result["unindexed_events"] or 0
    if unindexed <= EVENTS_PER_BATCH and not result["tasks"] and page.request.headers.get(AGAIN_HEADER):
        unindexed = 0  # newer events than those of the first search: in a busy service there are always some
    costs = await page.read(llm_queries.read_task_costs, [task["task_id"] for task in result["tasks"]])
    return page.render(
        "tasks.html",
        block="rows" if page.query_param("cursor") else "results",
        tasks=result["tasks"],
        # With a filter, the tasks that follow have the status of these.
        offered=await task_selection.offered_actions(
            page, result["tasks"], is_whole=not result["next_cursor"] or bool(filters["status"])
        ),
        max_selected=task_selection.MAX_SELECTED,
        costs=costs,
        total=result["total"],
        total_is_exact=result["total_is_exact"],
        unindexed=unindexed,
        max_normal_lag=EVENTS_PER_BATCH,
        agents=selectable_agents(page, current, result["tasks"], filters["agent"]),
        choices=choices,
        following=result["next_cursor"],
        names=names,
        statuses=TASK_STATUSES,
        filters=filters,
        query=search.query,
        since=search.since,
        ranges=SINCE,
        text=search.text,
    )


async def find_tasks(page: PageRequest, search: TaskListSearch, cursor: str | None, limit: int) -> JsonObject:
    """Return a page of the list; a text is words of tasks, or the beginning or the end of an id."""
    text, conditions = search.text, {**search.conditions, "cursor": cursor}
    if not text:
        return dict(await page.call("tasks.list", limit=limit, **conditions))
    searches: list[dict[str, Any]] = [{**conditions, "text": text}, {"ref": text}]
    # A cursor belongs to the search that the first page used, and only one for words has further pages and filters.
    if cursor or " " in text or any(search.filters.values()):
        del searches[1]
    elif await _refers_to_id(page, text):
        searches.reverse()
    return await _find_first(page, searches, limit)


async def read_matching(page: PageRequest, search: TaskListSearch, cursor: str | None, **more: Any) -> JsonObject:
    """Return one of very many pages of the tasks that match; a text is words of tasks. `more` are other arguments."""
    arguments = {**search.conditions, "text": search.text, "limit": MATCHES_PER_READ, "cursor": cursor, **more}
    return dict(await page.call_patiently("tasks.list", **arguments))


async def _refers_to_id(page: PageRequest, text: str) -> bool:
    """Return whether a text is looked up as an id before its words are."""
    if not _LIKE_AN_ID.fullmatch(text):
        return False
    if len(text) >= MIN_PART_CHARACTERS:
        return True
    found = await page.find("tasks.list", missing=403, ref=text, limit=1)
    # The exact id comes first.
    return found is not None and any(task["task_id"] == text for task in found["tasks"])


async def _find_first(page: PageRequest, searches: list[dict[str, Any]], limit: int) -> JsonObject:
    """Return the page of the first search that finds anything."""
    found: JsonObject = {"tasks": [], "total": 0, "total_is_exact": True, "next_cursor": None}
    unindexed = 0
    for search in searches:
        try:
            found = await page.call("tasks.list", limit=limit, **search)
        except GatewayError as error:
            if error.status not in (400, 409):
                raise
            continue  # no words, such as a single sign; or the search is switched off
        if found["tasks"] or found["next_cursor"]:
            return found
        unindexed = found["unindexed_events"] or unindexed
    return {**found, "unindexed_events": unindexed}


async def _read_choices(page: PageRequest, filters: dict[str, str]) -> dict[str, list[str]]:
    """Return the types and the keys to filter by, with those chosen."""
    types, submitters = await asyncio.gather(
        page.read(task_queries.list_types), page.read(task_queries.list_submitters)
    )
    choices = {"type": types, "by": submitters}
    for name, values in choices.items():
        if filters[name] and filters[name] not in values:
            values.append(filters[name])
    return choices


def selectable_agents(
    page: PageRequest, names: dict[str, str], tasks: list[JsonObject], chosen: str = ""
) -> dict[str, str]:
    """Return the agents to filter by, with the chosen one: all if the user may list agents, else those of the tasks."""
    assigned = {chosen, *(task["assigned_agent"] for task in tasks)}
    may_list = page.session.may("admin")
    shown = {agent_id: name for agent_id, name in names.items() if may_list or agent_id in assigned}
    return {chosen: shorten_id(chosen)} | shown if chosen else shown


async def find_by_id(page: PageRequest) -> Response:
    """Handle the search field of every page: redirect to the only task or agent that matches, or to the tasks found."""
    text = _clean_reference(page.query_param("q"))
    for kind, id_field in SEARCHES if text else ():
        if kind == "tasks" and not await _refers_to_id(page, text):
            continue  # words; the list finds a task with such an id as well
        found = await page.find(f"{kind}.list", missing=403, ref=text, limit=2)
        matches = [record[id_field] for record in found[kind]] if found else []
        # The exact id comes first, and may be the beginning of another one.
        if len(matches) == 1 or text in matches:
            return RedirectResponse(f"/{kind}/{quote_segment(text if text in matches else matches[0])}", 303)
    return RedirectResponse(f"/tasks?q={quote_segment(text)}", 303)


def _clean_reference(text: str) -> str:
    """Return the text without characters that no id or name has, so that any input is a possible search."""
    return "".join(filter(is_readable, text))[:MAX_REFERENCE_CHARACTERS]


ROUTES = [
    ("GET", "/tasks", list_tasks),
    ("GET", "/find", find_by_id),
]
