"""The page of all steps of a task, and of one step with its value, however long."""

from __future__ import annotations

from starlette.responses import Response

from stentor.surfaces.dashboard.presenters.task_view import build_journal
from stentor.surfaces.dashboard.site.page import PageRequest

PAGE_STEPS = 50
MAX_VALUE_CHARACTERS, MAX_SINGLE_CHARACTERS = 4_000, 200_000
"""Characters of a value in the list, and of the value of the step that is shown alone."""


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
        max_value=MAX_SINGLE_CHARACTERS if key else MAX_VALUE_CHARACTERS,
        next_cursor=next_cursor,
    )


ROUTES = [("GET", "/tasks/{task_id}/steps", show_steps)]
