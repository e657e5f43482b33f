"""Tasks: the list, one task with its decision and its trail, and what a person may do to it.

Streams that open pages read: what changed, and what happens to one task.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import RedirectResponse, Response

from stentor.core import jsontext
from stentor.domains.registry import queries as registry_queries
from stentor.domains.routing import explain
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks.operations import Row as TaskRow
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.pages.overview import TASK_STATUSES
from stentor.surfaces.dashboard.site.page import PageRequest
from stentor.web.sse import EventStreamResponse, SseEvent

PAGE_SIZE = 50
MAX_EVENTS = 500
LEGACY_SCORE_TERMS = ("composite", "hebbian", "trust")
"""What the scores of decisions that name no rule are made of."""
GRADES = tuple(step / 10 for step in range(10, -1, -1))
MAX_TEXT_CHARACTERS = 20_000
"""Characters of an input or a result that a page shows."""


async def list_tasks(page: PageRequest) -> Response:
    """Newest first; `q` is the beginning of an id."""
    wanted = {
        "status": page.query_param("status"),
        "agent_id": page.query_param("agent"),
        "cursor": page.query_param("cursor"),
    }
    text = page.query_param("q")
    names, found = await asyncio.gather(
        page.read(registry_queries.read_names),
        _find_by_prefix(page, text) if text else page.call("tasks.list", limit=PAGE_SIZE, **wanted),
    )
    return page.render(
        "tasks.html",
        block="rows" if page.query_param("cursor") else "results",
        tasks=found["tasks"],
        total=found["total"],
        agents=_selectable_agents(page, names, found["tasks"]),
        following=found["next_cursor"],
        names=names,
        statuses=TASK_STATUSES,
        wanted=wanted,
        text=text,
    )


def _selectable_agents(page: PageRequest, names: dict[str, str], tasks: list[dict[str, Any]]) -> dict[str, str]:
    """Agents to filter by: all of them for whoever may list agents, else those of the tasks that are shown."""
    if page.session.may("admin"):
        return names
    seen = {task["assigned_agent"] for task in tasks}
    return {agent_id: name for agent_id, name in names.items() if agent_id in seen}


async def _find_by_prefix(page: PageRequest, text: str) -> dict[str, Any]:
    """Tasks whose id begins with the text; an id that exists is the first."""
    tasks = [] if "\0" in text else await page.read(task_queries.list_by_id_prefix, text, PAGE_SIZE)
    rows = [TaskRow.of(task).model_dump(mode="json", by_alias=True) for task in tasks]
    return {"tasks": rows, "total": len(rows), "next_cursor": None}


async def show_task(page: PageRequest) -> Response:
    task_id = page.path_param("task_id")
    trail, names, given = await asyncio.gather(
        page.call("tasks.activity", task_id=task_id, limit=MAX_EVENTS),
        page.read(registry_queries.read_names),
        page.read(task_queries.read_input, task_id, MAX_TEXT_CHARACTERS),
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
        long=MAX_TEXT_CHARACTERS,
        terms=LEGACY_SCORE_TERMS,
        grade=await _read_grade(page, task_id) if ended else None,
        grades=GRADES,
    )


async def _read_grade(page: PageRequest, task_id: str) -> dict[str, Any] | None:
    try:
        return dict(await page.call("tasks.get_grade", task_id=task_id))
    except GatewayError as refused:
        if refused.status == 404:
            return None
        raise


def _value(text: str | None) -> Any:
    """What the JSON text says, or the text itself where it was cut."""
    return None if text is None else jsontext.decode_or_none(text.encode()) or text


def _routing(decision: dict[str, Any] | None) -> dict[str, Any] | None:
    """The decision with the sentence that says why; for one of an earlier rule also the shares of its terms."""
    terms = explain.classify_terms(decision) if decision else None
    if not decision or terms is None:
        return None
    alpha, beta = decision["alpha"], decision["beta"]
    shown = {**decision, "terms": terms, "sentence": explain.explain_decision(decision)}
    return shown | {"shares": {"composite": 1 - alpha - beta, "hebbian": alpha, "trust": beta}}


async def cancel_task(page: PageRequest) -> Response:
    return await _post_action(page, "cancel", "cancelled")


async def retry_task(page: PageRequest) -> Response:
    return await _post_action(page, "retry", "retried")


async def approve_task(page: PageRequest) -> Response:
    return await _post_action(page, "approve", "approved")


async def reject_task(page: PageRequest) -> Response:
    reason = (await page.read_form()).get("reason")
    return await _post_action(page, "reject", "rejected", {"reason": reason} if reason else {})


async def grade_task(page: PageRequest) -> Response:
    form = await page.read_form()
    comment = form.get("comment")
    body = {"grade": jsontext.decode_or_none(form.get("grade", "").encode())} | (
        {"comment": comment} if comment else {}
    )
    return await _post_action(page, "grade", "graded", body)


async def _post_action(page: PageRequest, action: str, notice: str, body: Any = None) -> Response:
    task_id = page.path_param("task_id")
    await page.call(f"tasks.{action}", task_id=task_id, body=body)
    return page.redirect(f"/tasks/{quote_segment(task_id)}", notice)


async def find_by_id(page: PageRequest) -> Response:
    """From the search of every page: a task, an agent, or a list."""
    text = page.query_param("q")
    for kind, parameter in (("tasks", "task_id"), ("agents", "agent_id")) if text else ():
        try:
            await page.call(f"{kind}.get", **{parameter: text})
        except GatewayError:
            continue
        return RedirectResponse(f"/{kind}/{quote_segment(text)}", 303)
    return RedirectResponse(f"/tasks?q={quote_segment(text)}", 303)


ROUTES = [
    ("GET", "/tasks", list_tasks),
    ("GET", "/find", find_by_id),
    ("GET", "/tasks/{task_id}", show_task),
    ("POST", "/tasks/{task_id}/cancel", cancel_task),
    ("POST", "/tasks/{task_id}/retry", retry_task),
    ("POST", "/tasks/{task_id}/approve", approve_task),
    ("POST", "/tasks/{task_id}/reject", reject_task),
    ("POST", "/tasks/{task_id}/grade", grade_task),
]


READ = "read"


async def stream_changes(page: PageRequest) -> Response:
    """Topics that had events since the page was made, at most once a second."""
    return EventStreamResponse(
        page.site.live_updates.stream_changes(page.tenant, page.changes_since),
        page.site.stream_limit,
        page.session.csrf,
    )


async def stream_task(page: PageRequest) -> Response:
    """A task's stream as the gateway gives it, with the reader's own key."""
    task_id = page.path_param("task_id")
    await page.call("tasks.get", task_id=task_id)  # whoever may not see the task hears so before a stream begins
    after = page.request.headers.get("last-event-id")
    steps = page.site.gateway.stream_task(page.session.key, task_id, after)
    frames = (SseEvent(step.kind, step.data, step.id) async for step in steps)
    return EventStreamResponse(frames, page.site.stream_limit, page.session.csrf)


STREAM_ROUTES = [("GET", "/live", stream_changes), ("GET", "/tasks/{task_id}/stream", stream_task)]
