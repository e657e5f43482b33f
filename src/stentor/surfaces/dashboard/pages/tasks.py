"""Tasks: the list, one task with its decision and its trail, and what a person may do to it."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import RedirectResponse, Response

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.domains.routing import explain
from stentor.surfaces.dashboard.pages.overview import STATUSES
from stentor.surfaces.dashboard.site.calls import Refused, decoded, part
from stentor.surfaces.dashboard.site.page import Page

SHOWN = 50
EVENTS = 500
EARLIER_TERMS = ("composite", "hebbian", "trust")
"""What the scores of decisions that name no rule are made of."""
GRADES = tuple(step / 10 for step in range(10, -1, -1))
LONG = 20_000
"""Characters of an input or a result that a page shows."""


async def tasks(page: Page) -> Response:
    """Newest first; `q` is the beginning of an id."""
    wanted = {"status": page.query("status"), "agent_id": page.query("agent"), "cursor": page.query("cursor")}
    text = page.query("q")
    names, found = await asyncio.gather(
        page.rows.names(page.tenant),
        _named(page, text) if text else page.get("/tasks", limit=SHOWN, **wanted),
    )
    return page.render(
        "tasks.html",
        block="rows" if page.query("cursor") else "results",
        tasks=found["tasks"],
        total=found["total"],
        agents=_offered(page, names, found["tasks"]),
        following=found["next_cursor"],
        names=names,
        statuses=STATUSES,
        wanted=wanted,
        text=text,
    )


def _offered(page: Page, names: dict[str, str], tasks: list[dict[str, Any]]) -> dict[str, str]:
    """Agents to filter by: all of them for whoever may list agents, else those of the tasks that are shown."""
    if page.session.may("admin"):
        return names
    seen = {task["assigned_agent"] for task in tasks}
    return {agent_id: name for agent_id, name in names.items() if agent_id in seen}


async def _named(page: Page, text: str) -> dict[str, Any]:
    """Tasks whose id begins with the text; an id that exists is the first."""
    rows = [] if "\0" in text else await page.rows.tasks_named(page.tenant, text, SHOWN)
    columns = ("task_id", "status", "assigned_agent", "type", "created_at", "completed_at")
    found = [
        dict(zip(columns, (*row[:4], format_iso(row[4]), format_iso_or_none(row[5])), strict=True)) for row in rows
    ]
    return {"tasks": found, "total": len(found), "next_cursor": None}


async def task(page: Page) -> Response:
    task_id = page.param("task_id")
    trail, names, given = await asyncio.gather(
        page.get(f"/tasks/{part(task_id)}/activity", limit=EVENTS),
        page.rows.names(page.tenant),
        page.rows.input(page.tenant, task_id, LONG),
    )
    ended = trail["task"] is not None and trail["task"]["status"] == "completed"
    return page.render(
        "task.html",
        block="live",
        task=trail["task"],
        task_id=task_id,
        trail=trail,
        routing=_routing(trail["routing"]),
        names=names,
        given=_value(given),
        long=LONG,
        terms=EARLIER_TERMS,
        grade=await _grade(page, task_id) if ended else None,
        grades=GRADES,
    )


async def _grade(page: Page, task_id: str) -> dict[str, Any] | None:
    try:
        return dict(await page.get(f"/tasks/{part(task_id)}/grade"))
    except Refused as refused:
        if refused.status == 404:
            return None
        raise


def _value(text: str | None) -> Any:
    """What the JSON text says, or the text itself where it was cut."""
    return None if text is None else decoded(text.encode()) or text


def _routing(decision: dict[str, Any] | None) -> dict[str, Any] | None:
    """The decision with the sentence that says why; for one of an earlier rule also the shares of its terms."""
    terms = explain.terms(decision) if decision else None
    if not decision or terms is None:
        return None
    alpha, beta = decision["alpha"], decision["beta"]
    shown = {**decision, "terms": terms, "sentence": explain.sentence(decision)}
    return shown | {"shares": {"composite": 1 - alpha - beta, "hebbian": alpha, "trust": beta}}


async def cancel(page: Page) -> Response:
    return await _act(page, "cancel", "cancelled")


async def retry(page: Page) -> Response:
    return await _act(page, "retry", "retried")


async def approve(page: Page) -> Response:
    return await _act(page, "approve", "approved")


async def reject(page: Page) -> Response:
    reason = (await page.form()).get("reason")
    return await _act(page, "reject", "rejected", {"reason": reason} if reason else {})


async def grade(page: Page) -> Response:
    form = await page.form()
    comment = form.get("comment")
    body = {"grade": decoded(form.get("grade", "").encode())} | ({"comment": comment} if comment else {})
    return await _act(page, "grade", "graded", body)


async def _act(page: Page, verb: str, notice: str, body: Any = None) -> Response:
    path = f"/tasks/{part(page.param('task_id'))}"
    await page.post(f"{path}/{verb}", body)
    return page.back(path, notice)


async def find(page: Page) -> Response:
    """From the search of every page: a task, an agent, or a list."""
    text = page.query("q")
    for path in (f"/tasks/{part(text)}", f"/registry/agents/{part(text)}") if text else ():
        try:
            await page.get(path)
        except Refused:
            continue
        return RedirectResponse(path.removeprefix("/registry"), 303)
    return RedirectResponse(f"/tasks?q={part(text)}", 303)


ROUTES = [
    ("GET", "/tasks", tasks),
    ("GET", "/find", find),
    ("GET", "/tasks/{task_id}", task),
    ("POST", "/tasks/{task_id}/cancel", cancel),
    ("POST", "/tasks/{task_id}/retry", retry),
    ("POST", "/tasks/{task_id}/approve", approve),
    ("POST", "/tasks/{task_id}/reject", reject),
    ("POST", "/tasks/{task_id}/grade", grade),
]
