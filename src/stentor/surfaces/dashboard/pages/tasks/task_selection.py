"""Actions on the tasks that were selected in the list: a page says what will happen, then does it.

Both forms redirect to a page of their own, so that Back and a reload never submit one again. What these pages show is
kept in the session: the ids of 500 tasks are too long for an address.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Forbidden
from stentor.core.jsontext import JsonObject
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.access import check_approver
from stentor.domains.tasks.model import MAX_ID_LENGTH, Task
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
CONFIRMATION = "/tasks/selected"
"""The page that asks for confirmation, and then shows what became of the tasks."""


async def offered_actions(page: PageRequest, tasks: list[JsonObject], *, is_whole: bool) -> dict[str, str]:
    """Return the actions that the user may take on a listed task, with their labels; all if others may follow."""
    statuses = {task["status"] for task in tasks}
    offered = {
        action: label
        for action, (label, _, possible) in ACTIONS.items()
        if page.session.may(PERMISSIONS[action]) and (not is_whole or statuses.intersection(possible))
    }
    # An agent's key may reject what it may not approve.
    if is_whole and "approve" in offered and page.session.role == "agent":
        pending = [task["task_id"] for task in tasks if task["status"] == "pending_approval"]
        if not await page.read(_approves_any, page.session.principal, pending):
            del offered["approve"]
    return offered


async def may_approve(page: PageRequest, task_id: str) -> bool:
    """Return whether the gateway would accept an approval, which `access.check_approver` decides."""
    session = page.session
    return session.may("approve") and (
        session.role != "agent" or await page.read(_approves_any, session.principal, [task_id])
    )


def _approves_any(tx: Tx, tenant: str, principal: Principal, task_ids: list[str]) -> bool:
    return any(_approves(tx, principal, task_store.find(tx, tenant, task_id)) for task_id in task_ids)


def _approves(tx: Tx, principal: Principal, task: Task | None) -> bool:
    try:
        if task is not None:
            check_approver(tx, principal, task)
    except Forbidden:
        return False
    return task is not None


async def select_tasks(page: PageRequest) -> Response:
    """Keep the selected tasks, and redirect to the page that asks for confirmation."""
    action, task_ids = await _read_selection(page)
    back = find_list(page)
    if not task_ids:
        return page.redirect(back, "none-selected")
    return _show(page, {"action": action, "task_ids": task_ids, "back": back})


async def show_selection(page: PageRequest) -> Response:
    """Say what the action will do with the selected tasks, and ask for confirmation; or what it has done."""
    key = page.query_param("selection")
    kept = page.session.kept.get((CONFIRMATION, key))
    if kept is None:  # of an earlier session, or one of many
        return page.redirect("/tasks", "selection-lost")
    action, task_ids = kept["action"], kept["task_ids"]
    listed = await asyncio.gather(*(page.find("tasks.get", task_id=task_id) for task_id in task_ids))
    found = [task for task in listed if task]
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
        outcome=kept.get("outcome"),
        titles={task["task_id"]: task["title"] for task in found},
        key=key,
        back=kept["back"],
    )


async def act_on_tasks(page: PageRequest) -> Response:
    """Do it, and redirect to the page that shows what became of each task that it failed for."""
    action, task_ids = await _read_selection(page)
    form = await page.read_form()
    kept = page.session.kept.get((CONFIRMATION, form.get("selection", "")), {})
    back = kept.get("back", "/tasks")
    if not task_ids:
        return page.redirect(back, "none-selected")
    body: JsonObject = {"task_ids": task_ids}
    if action == "reject" and form.get("reason"):
        body["reason"] = form["reason"]
    outcome = await page.call(f"tasks.bulk_{action}", body=body)
    failed = [entry for entry in outcome["outcomes"] if entry["error"]]
    shown = {"succeeded": outcome["succeeded"], "failed": failed}
    task_ids = [entry["task_id"] for entry in failed]
    return _show(page, {"action": action, "task_ids": task_ids, "back": back, "outcome": shown})


def _show(page: PageRequest, kept: JsonObject) -> Response:
    return RedirectResponse(f"{CONFIRMATION}?selection={page.session.keep(CONFIRMATION, kept)}", 303)


def find_list(page: PageRequest) -> str:
    """Return the address of the list as it was filtered, which the browser names as the page that it came from."""
    # Only its query is used, so a forged header cannot lead elsewhere.
    try:
        came_from = urlsplit(page.request.headers.get("referer", ""))
    except ValueError:
        return "/tasks"
    fields = parse_qsl(came_from.query) if came_from.path == "/tasks" else []
    filters = urlencode([(name, value) for name, value in fields if name not in ("notice", "cursor")])
    return f"/tasks?{filters}" if filters else "/tasks"


async def _read_selection(page: PageRequest) -> tuple[str, list[str]]:
    # Not `read_form`, which keeps only the last of several boxes.
    form = await page.form()
    action = read_action(form)
    task_ids = [text for text in form.getlist("task") if isinstance(text, str) and len(text) <= MAX_ID_LENGTH]
    if len(task_ids) > MAX_SELECTED:
        raise HTTPException(400, f"Select at most {MAX_SELECTED} tasks.")
    return action, task_ids


def read_action(form: FormData) -> str:
    """Return the action that a form asks for. Raises HTTPException."""
    action = form.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        raise HTTPException(400, f"Choose one of {', '.join(ACTIONS)}.")
    return action


ROUTES = [
    ("GET", CONFIRMATION, show_selection),
    ("POST", "/tasks/selected/confirm", act_on_tasks),
]
