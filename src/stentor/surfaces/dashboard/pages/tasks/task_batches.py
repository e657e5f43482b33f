"""Actions on all tasks that match the filters of the list: a page says what will happen, then shows the progress.

The work continues in this process after the response. Each task is changed as the operation on one task would, so a
restart in the middle leaves no task half changed. The page's address has the action and the search: after a restart it
shows the tasks that are left and asks for confirmation again, as the work needs the key of a signed-in user.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core.clock import format_iso, micros_from_datetime
from stentor.core.errors import ServiceUnavailable
from stentor.core.jsontext import JsonObject
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks.reading.chart_queries import MINUTE_US
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages.tasks import task_selection
from stentor.surfaces.dashboard.pages.tasks.task_list import SINCE, TaskListSearch, read_matching, read_search
from stentor.surfaces.dashboard.pages.tasks.task_selection import ACTIONS, CONFIRMATION, PERMISSIONS
from stentor.surfaces.dashboard.presenters.filters import humanize
from stentor.surfaces.dashboard.site.page import HTMX_HEADER, PageRequest

ADDRESS = "/tasks/matching"
"""The page that asks for confirmation, and then shows how far the work is."""
MAX_EXAMPLES, MAX_PROBLEMS = 10, 100
TASKS_PER_PART = 100
"""Tasks that are changed before the page shows it, and before a stop."""
MAX_COUNTED = 1_000
"""Tasks that are read to count those of a search for words."""
LABELS = {"status": "status", "agent": "agent", "type": "type", "by": "submitted by", "session": "session"}
log = logging.getLogger(__name__)


class Batch(msgspec.Struct):
    """An action on all tasks that match a search and were created before a time, in the format of the API.

    `total` is how many there were at its start, or at least that many. `problems` are the first tasks that were not
    changed. `message` is why it ended early.
    """

    action: str
    search: TaskListSearch
    before: str
    reason: str
    total: int
    is_exact: bool
    state: Literal["running", "stopping", "stopped", "done", "broken"] = "running"
    succeeded: int = 0
    failed: int = 0
    problems: list[JsonObject] = []
    message: str = ""

    @property
    def is_running(self) -> bool:
        return self.state in ("running", "stopping")

    async def run(self, page: PageRequest) -> None:
        """Change the tasks with the key of the page's user, in parts."""
        seen: set[str] = set()
        try:
            # Repeats until there are no others: a task may change to a status whose list was read before.
            while await self._change_matching(page, seen) and self.state == "running":
                pass
            self.state = "done" if self.state == "running" else "stopped"
        except (GatewayError, ServiceUnavailable) as error:
            self.state, self.message = "broken", error.message
        except Exception as error:
            log.error("pages: action on many tasks failed action=%s", self.action, exc_info=error)
            self.state, self.message = "broken", "See the dashboard log for details."

    async def _change_matching(self, page: PageRequest, seen: set[str]) -> bool:
        """Read the lists once and change the tasks in them; return whether there was one that was not seen before."""
        changed = False
        for status in _statuses(self.action, self.search):
            cursor = None
            while self.state == "running":
                listed = await read_matching(page, self.search, cursor, status=status, limit=TASKS_PER_PART)
                # A list is read from new to old, so none of its pages repeats a task, but another list may contain it.
                rows = {row["task_id"]: row for row in listed["tasks"] if row["created_at"] <= self.before}
                rows = {task_id: row for task_id, row in rows.items() if task_id not in seen}
                if rows:
                    changed = True
                    seen.update(rows)
                    await self._change(page, rows)
                cursor = listed["next_cursor"]
                if cursor is None:
                    break
        return changed

    async def _change(self, page: PageRequest, rows: dict[str, JsonObject]) -> None:
        body: JsonObject = {"task_ids": list(rows)} | ({"reason": self.reason} if self.reason else {})
        outcome = await page.call_patiently(f"tasks.bulk_{self.action}", body=body)
        self.succeeded += outcome["succeeded"]
        self.failed += outcome["failed"]
        problems = [
            entry | {"title": rows[entry["task_id"]]["title"]} for entry in outcome["outcomes"] if entry["error"]
        ]
        self.problems = [*self.problems, *problems][:MAX_PROBLEMS]


def _statuses(action: str, search: TaskListSearch) -> list[str]:
    """Return the statuses that the action changes, among those that the search has."""
    chosen = search.filters["status"]
    return [status for status in ACTIONS[action][2] if chosen in ("", status)]


async def select(page: PageRequest) -> Response:
    """Keep what was chosen in the list, all that match or some, and redirect to the page that asks for confirmation."""
    form = await page.form()
    if "all" not in form:
        return await task_selection.select_tasks(page)
    action = task_selection.read_action(form)
    # What comes later was not there when the user decided.
    return _show(page, _describe(page, action, dict(parse_qsl(str(form.get("query", "")))), page.site.now()))


def _describe(page: PageRequest, action: str, fields: Mapping[str, str], before: int) -> JsonObject:
    """Return what the page keeps; a length of time in the fields ends at `before`, in microseconds."""
    search = read_search(page, fields, now=before)
    back = f"/tasks?{search.query}" if search.query else "/tasks"
    is_older = before < page.site.now() - MINUTE_US
    return {"action": action, "search": search, "before": format_iso(before), "is_older": is_older, "back": back}


def _read_address(page: PageRequest) -> JsonObject | None:
    """Return what the page of an earlier session kept, without its progress; None for an incomplete address."""
    try:
        before = micros_from_datetime(datetime.fromisoformat(page.query_param("before")))
    except (ValueError, TypeError, OverflowError):  # TypeError: a time without a zone
        return None
    action = page.query_param("action")
    # Before 1970 there is no task, and the start of a length of time could be before the year 1.
    if before < 0 or action not in ACTIONS or not page.session.may(PERMISSIONS[action]):
        return None
    return _describe(page, action, page.request.query_params, before)


async def show(page: PageRequest) -> Response:
    """Say what the action will do, and ask for confirmation; or show its progress."""
    key = page.query_param("selection")
    kept = page.session.kept.pop((ADDRESS, key), None)
    if kept is None:  # of an earlier session, or one of many
        kept = _read_address(page)
        if kept is None:
            return page.redirect("/tasks", "selection-lost")
        target = _address(page.session.keep(ADDRESS, kept), kept) + "&notice=tasks-left"
        # A page that was showing the progress asks only for a part of the new one.
        is_part = HTMX_HEADER in page.request.headers
        return Response(headers={"HX-Redirect": target}) if is_part else RedirectResponse(target, 303)
    page.session.kept[ADDRESS, key] = kept  # as the newest: an open page is not lost
    label, participle, _ = ACTIONS[kept["action"]]
    counts, examples, is_exact = ({}, [], True) if "batch" in kept else await _count(page, kept)
    return page.render(
        "matching.html",
        block="progress",
        action=kept["action"],
        label=label,
        participle=participle,
        batch=kept.get("batch"),
        counts=counts,
        total=sum(counts.values()),
        is_exact=is_exact,
        examples=examples[:MAX_EXAMPLES],
        filters=await _describe_filters(page, kept["search"]),
        key=key,
        address=_address(key, kept),
        back=kept["back"],
    )


async def _count(page: PageRequest, kept: JsonObject) -> tuple[dict[str, int], list[JsonObject], bool]:
    """Return how many tasks match in each status that changes, the newest of them, and whether the count is exact."""
    search: TaskListSearch = kept["search"]
    statuses = _statuses(kept["action"], search)
    limit = MAX_COUNTED if search.text or kept["is_older"] else MAX_EXAMPLES
    lists = await asyncio.gather(
        *(read_matching(page, search, None, status=status, limit=limit) for status in statuses)
    )
    counts, newest, is_exact = {}, [], True
    for status, listed in zip(statuses, lists, strict=True):
        rows = [row for row in listed["tasks"] if row["created_at"] <= kept["before"]]
        newest += rows
        # The list is from new to old, so its first rows are those that came later.
        if count := listed["total"] - (len(listed["tasks"]) - len(rows)):
            counts[status] = count
        is_exact &= listed["total_is_exact"] and (bool(rows) or listed["next_cursor"] is None)
    return counts, sorted(newest, key=lambda row: row["created_at"])[::-1], is_exact


async def _describe_filters(page: PageRequest, search: TaskListSearch) -> dict[str, str]:
    """Return the filters that are set, with their labels."""
    filters = {LABELS[name]: value for name, value in search.filters.items() if value and name in LABELS}
    if "agent" in filters:
        filters["agent"] = (await page.read(registry_queries.read_names)).get(filters["agent"], filters["agent"])
    if "status" in filters:
        filters["status"] = humanize(filters["status"])
    if search.since:
        filters["created"] = f"in the last {SINCE[search.since]}"
    return filters | ({"words": search.text} if search.text else {})


async def start(page: PageRequest) -> Response:
    """Begin what was confirmed, once, and redirect to the page that shows its progress."""
    form = await page.read_form()
    kept = page.session.kept.get((ADDRESS, form.get("selection", "")))
    if kept is None:
        return page.redirect("/tasks", "selection-lost")
    if "batch" not in kept:
        counts, _, is_exact = await _count(page, kept)
        reason = form.get("reason", "") if kept["action"] == "reject" else ""
        batch = Batch(kept["action"], kept["search"], kept["before"], reason, sum(counts.values()), is_exact)
        if kept.setdefault("batch", batch) is batch:  # only if no second click was faster
            page.site.run_in_background(batch.run(page))
    return _go(form["selection"], kept)


async def stop(page: PageRequest) -> Response:
    """Stop after the part that is being changed."""
    key = (await page.read_form()).get("selection", "")
    kept = page.session.kept.get((ADDRESS, key), {})
    if "batch" not in kept:
        return page.redirect("/tasks", "selection-lost")
    if kept["batch"].state == "running":
        kept["batch"].state = "stopping"
    return _go(key, kept)


def _show(page: PageRequest, kept: JsonObject) -> Response:
    return _go(page.session.keep(ADDRESS, kept), kept)


def _go(key: str, kept: JsonObject) -> Response:
    return RedirectResponse(_address(key, kept), 303)


def _address(key: str, kept: JsonObject) -> str:
    """Return the page's address: `selection` finds its progress, the rest finds the tasks that are left without it."""
    search: TaskListSearch = kept["search"]
    fields = urlencode({"selection": key, "action": kept["action"], "before": kept["before"]})
    return f"{ADDRESS}?{fields}" + (f"&{search.query}" if search.query else "")


ROUTES = [
    ("POST", CONFIRMATION, select),
    ("GET", ADDRESS, show),
    ("POST", f"{ADDRESS}/confirm", start),
    ("POST", f"{ADDRESS}/stop", stop),
]
