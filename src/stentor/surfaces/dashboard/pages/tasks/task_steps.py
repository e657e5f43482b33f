"""The steps of a task: those on its page, the page of all of them, and one step with its value, however long."""

from __future__ import annotations

from starlette.responses import Response

from stentor.core.db.transaction import Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.steps import queries
from stentor.domains.steps.model import is_superseded
from stentor.domains.steps.operations import StepOut
from stentor.domains.tasks import store as task_store
from stentor.surfaces.dashboard.presenters.task_view import MAX_BODY_CHARACTERS, build_journal
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_STEPS = 50
"""How many of the first and of the last steps of a task are on its page."""
PAGE_STEPS = 50
STEP_EVENTS = ("step_started", "step_completed", "step_failed")
MAX_SINGLE_CHARACTERS = 200_000
"""Characters of the value of the only step on a page."""


async def show_steps(page: PageRequest) -> Response:
    """List the steps of a task, oldest first; with `key` show that one alone."""
    task_id = page.path_param("task_id")
    task = await page.call("tasks.get", task_id=task_id)
    key = page.request.query_params.get("key", "")  # with the white space around it
    steps, next_cursor = [], None
    if key:
        steps.append(await page.call("steps.read", task_id=task_id, key=key))
    else:
        cursor = page.query_param("cursor")
        listed = await page.call("steps.list", task_id=task_id, limit=PAGE_STEPS, cursor=cursor)
        steps, next_cursor = listed["steps"], listed["next_cursor"]
    rows = build_journal(steps, task["status"])
    return page.render(
        "steps.html",
        task=task,
        task_id=task_id,
        rows=rows,
        is_one=bool(key),
        with_value=range(len(rows)),
        max_value=MAX_SINGLE_CHARACTERS if key else MAX_BODY_CHARACTERS,
        next_cursor=next_cursor,
    )


async def read_journal(page: PageRequest, trail: JsonObject, *, has_gap: bool) -> JsonObject:
    """Return the first and the last steps of a task; no request is made if its activity has no step."""
    has_steps = has_gap or any(event["event_type"] in STEP_EVENTS for event in trail["events"])
    if trail["task"] is None or not has_steps:
        return {"steps": [], "next_cursor": None}
    task_id = trail["task"]["task_id"]
    journal = dict(await page.call("steps.list", task_id=task_id, limit=2 * MAX_STEPS))
    if journal["next_cursor"] is not None:
        journal["steps"] = [*journal["steps"][:MAX_STEPS], *await page.read(_list_latest_steps, task_id)]
    return journal


def _list_latest_steps(tx: Tx, tenant: str, task_id: str) -> list[JsonObject]:
    task = task_store.find(tx, tenant, task_id)
    if task is None:
        return []
    return [
        StepOut.of(step, value=step.value, superseded=is_superseded(step, task)).model_dump(mode="json")
        for step in queries.list_latest(tx, tenant, task_id, MAX_STEPS)
    ]


ROUTES = [("GET", "/tasks/{task_id}/steps", show_steps)]
