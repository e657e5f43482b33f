"""Actions on the tasks that were selected in the list: a page says what will happen, then does it."""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.site.page import PageRequest

ACTIONS = {
    "approve": ("Approve", "approved", ("pending_approval",)),
    "reject": ("Reject", "rejected", ("pending_approval",)),
    "cancel": ("Cancel", "cancelled", ("queued", "pending_approval", "executing", "waiting")),
    "retry": ("Retry", "queued again", ("failed", "aborted")),
}
"""Label, participle, and the statuses in which a task may have it."""
PERMISSIONS = {"approve": "approve", "reject": "approve", "cancel": "write", "retry": "write"}
MAX_SELECTED = 500


def offered_actions(page: PageRequest, tasks: list[JsonObject], *, is_whole: bool) -> dict[str, str]:
    """Return the actions that the user may take on a listed task, with their labels; all if others may follow."""
    statuses = {task["status"] for task in tasks}
    return {
        action: label
        for action, (label, _, possible) in ACTIONS.items()
        if page.session.may(PERMISSIONS[action]) and (not is_whole or statuses.intersection(possible))
    }


async def confirm_action(page: PageRequest) -> Response:
    """Say what the action will do with the selected tasks, and ask for confirmation."""
    action, task_ids = await _read_selection(page)
    if not task_ids:
        return _back_to_list(page)
    found = [task for task in await asyncio.gather(*(_find_task(page, task_id) for task_id in task_ids)) if task]
    label, participle, statuses = ACTIONS[action]
    affected = [task for task in found if task["status"] in statuses]
    return page.render(
        "selection.html",
        action=action,
        label=label,
        participle=participle,
        affected=affected,
        counts=Counter(task["status"] for task in affected),
        others=Counter(task["status"] for task in found if task["status"] not in statuses),
        outcome=None,
    )


async def act_on_tasks(page: PageRequest) -> Response:
    """Do it, and show what became of each task that it failed for."""
    action, task_ids = await _read_selection(page)
    if not task_ids:
        return _back_to_list(page)
    body: JsonObject = {"task_ids": task_ids}
    if action == "reject" and (reason := (await page.read_form()).get("reason")):
        body["reason"] = reason
    label, participle, _ = ACTIONS[action]
    outcome = await page.call(f"tasks.bulk_{action}", body=body)
    return page.render(
        "selection.html",
        action=action,
        label=label,
        participle=participle,
        affected=[],
        counts={},
        others={},
        outcome=outcome,
        titles=await _read_titles(page, [entry["task_id"] for entry in outcome["outcomes"] if entry["error"]]),
    )


def _back_to_list(page: PageRequest) -> Response:
    """Return to the list as it was filtered, which the browser names as the page that it came from."""
    # Only its query is used, so a forged header cannot lead elsewhere.
    came_from = urlsplit(page.request.headers.get("referer", ""))
    filters = f"{came_from.query}&" if came_from.path == "/tasks" and came_from.query else ""
    return RedirectResponse(f"/tasks?{filters}notice=none-selected", 303)


async def _read_selection(page: PageRequest) -> tuple[str, list[str]]:
    # Not `read_form`, which keeps only the last of several boxes.
    form = await page.form()
    action = form.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        raise HTTPException(400, f"Choose one of {', '.join(ACTIONS)}.")
    task_ids = [text for text in form.getlist("task") if isinstance(text, str)]
    if len(task_ids) > MAX_SELECTED:
        raise HTTPException(400, f"Select at most {MAX_SELECTED} tasks.")
    return action, task_ids


async def _read_titles(page: PageRequest, task_ids: list[str]) -> dict[str, str]:
    found = await asyncio.gather(*(_find_task(page, task_id) for task_id in task_ids))
    return {task["task_id"]: task["title"] for task in found if task}


async def _find_task(page: PageRequest, task_id: str) -> JsonObject | None:
    return await page.find("tasks.get", task_id=task_id)


ROUTES = [
    ("POST", "/tasks/selected", confirm_action),
    ("POST", "/tasks/selected/confirm", act_on_tasks),
]
