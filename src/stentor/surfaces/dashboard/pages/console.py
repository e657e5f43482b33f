"""The console: an instruction in, tokens out."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import RedirectResponse, Response

from stentor.core.errors import InvalidRequest
from stentor.domains.conversation.model import said
from stentor.surfaces.dashboard.pages import console_form, console_rows
from stentor.surfaces.dashboard.pages.console_form import Fields
from stentor.surfaces.dashboard.site.calls import Refused, decoded, part
from stentor.surfaces.dashboard.site.page import Page

RUNS = 8
"""Newest tasks that are listed."""
LONG = 200_000
"""Characters of an instruction or a result."""
UNDER_WAY = ("queued", "pending_approval", "executing")


async def console(page: Page) -> Response:
    return await _shown(page, Fields(agent=page.query("agent"), capability=page.query("capability")))


async def submit(page: Page) -> Response:
    """A task that nobody may take is stored too, and shown as any other."""
    fields = console_form.read(await page.form())
    try:
        names = await page.rows.names(page.tenant)
        found = await page.post("/tasks", console_form.body(fields, names))
    except InvalidRequest as error:
        return await _shown(page, fields, error.status, error.message)
    except Refused as refused:
        details = refused.details if isinstance(refused.details, dict) else {}
        if isinstance(details.get("task_id"), str):
            return _to(details["task_id"])
        if refused.status not in (400, 413, 429):
            raise
        return await _shown(page, fields, refused.status, refused.message)
    return _to(found["task_id"])


def _to(task_id: str) -> Response:
    return RedirectResponse(f"/console/{part(task_id)}", 303)


async def run(page: Page) -> Response:
    """One task as the console shows it: who does it, what it says, what came out."""
    task_id = page.param("task_id")
    trail, given = await asyncio.gather(
        page.get(f"/tasks/{part(task_id)}/activity"), page.rows.input(page.tenant, task_id, LONG)
    )
    task = trail["task"] or {}
    asked = None if given is None else decoded(given.encode()) or given
    values = {
        "task_id": task_id,
        "task": task,
        "trail": trail,
        "routing": trail["routing"] if isinstance(trail["routing"], dict) else None,
        "asked": asked,
        "answer": said(task["result"]) if task.get("result") is not None else None,
        "wrong": _wrong(task),
        "under_way": trail["status"] in UNDER_WAY,
    }
    return await _shown(page, console_form.of_task(task, asked) if task else Fields(), **values)


def _wrong(task: dict[str, Any]) -> dict[str, str] | None:
    """Code, sentence and what to do of a task that failed."""
    error = task.get("error")
    if not isinstance(error, dict):
        return None
    refused = task["outcome_class"] == "routing_failed"
    code = str(error.get("code") or "")
    return {
        "title": "Nobody took it" if refused else f"The task is {task['status']}",
        "code": code,
        "message": str(error.get("message") or ""),
        "advice": console_form.advice(code) if refused else "",
    }


async def _shown(page: Page, fields: Fields, status: int = 200, problem: str = "", **values: Any) -> Response:
    agents, runs, inputs, names = await asyncio.gather(
        _agents(page),
        page.get("/tasks", limit=RUNS),
        page.rows.read(lambda tx: console_rows.newest_inputs(tx, page.tenant, 2 * RUNS)),
        page.rows.names(page.tenant),
    )
    return page.render(
        "console-run.html" if values else "console.html",
        status,
        block="live" if values and page.query("part") != "runs" else "runs",
        fields=fields,
        problem=problem,
        agents=agents,
        capabilities=sorted({one for agent in agents or () for one in agent["capabilities"]}),
        runs=[{**task, "asked": _beginning(inputs.get(task["task_id"]))} for task in runs["tasks"]],
        names=names,
        priorities=console_form.PRIORITIES,
        **values,
    )


async def _agents(page: Page) -> list[dict[str, Any]] | None:
    """Those that may get work; None when the key may not list them."""
    try:
        found = await page.get("/registry/agents", status="active", limit=1000)
    except Refused as refused:
        if refused.status != 403:
            raise
        return None
    return sorted(found["agents"], key=lambda agent: agent["name"])


def _beginning(text: str | None) -> str:
    """The first words of an input, whether or not its JSON text is cut."""
    if text is None:
        return ""
    whole = decoded(text.encode())
    return said(whole) if whole is not None else text.lstrip('{["')


ROUTES = [
    ("GET", "/console", console),
    ("POST", "/console", submit),
    ("GET", "/console/{task_id:path}", run),
]
