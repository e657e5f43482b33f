"""The pages of one task: its routing decision, activity and actions, and its steps. `task_list` has the list of tasks.

Also the event streams of open pages: live updates, and the events of one task.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from stentor.core import jsontext, runlog
from stentor.core.db import Tx
from stentor.core.errors import RegistryRecordError
from stentor.core.jsontext import JsonObject
from stentor.domains.activity.model import event_to_json
from stentor.domains.conversation.model import find_result_text
from stentor.domains.llm import queries as llm_queries
from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry import store as registry_store
from stentor.domains.registry.model import Agent
from stentor.domains.routing import explain
from stentor.domains.schedules import store as schedule_store
from stentor.domains.sessions import store as session_store
from stentor.domains.steps import queries as step_queries
from stentor.domains.steps import store as step_store
from stentor.domains.steps.model import describe_question, is_superseded
from stentor.domains.steps.operations import StepOut
from stentor.domains.tasks import queries as task_queries
from stentor.domains.tasks import store as task_store
from stentor.domains.tasks.wire import GradeOut
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.pages.agents.agents import label_agents
from stentor.surfaces.dashboard.pages.tasks import task_selection
from stentor.surfaces.dashboard.pages.tasks.decisions import CHOICES
from stentor.surfaces.dashboard.pages.tasks.task_list import selectable_agents
from stentor.surfaces.dashboard.presenters import agent_view
from stentor.surfaces.dashboard.presenters.filters import escape_bidi
from stentor.surfaces.dashboard.presenters.task_view import (
    MAX_BODY_CHARACTERS,
    build_journal,
    choose_bodies,
    present_denial,
)
from stentor.surfaces.dashboard.presenters.waterfall import build_subtask_bar, build_waterfall
from stentor.surfaces.dashboard.site.page import PageRequest, action
from stentor.web.sse import EventStreamResponse, SseEvent

TASK = "/tasks/{task_id}"
MAX_EVENTS = 100
"""How many of the first and of the last events of a task are on its page."""
MAX_SUBTASKS, MAX_DECISIONS = 100, 200
PAGE_CHARACTERS, ROW_CHARACTERS, MIN_ROOM = 200_000, 400, 20_000
"""Characters of all rows with what they open to, of a row without it, and of all that rows open to in any case.

A page with live parts is sent again at each change, so a task of many steps must not make it long.
"""
GRADES = tuple(step / 10 for step in range(10, -1, -1))
MAX_TEXT_CHARACTERS = 20_000
"""Characters of an input or a result on a page."""
MAX_STEPS = 50
"""How many of the first and of the last steps of a task are on its page."""
PAGE_STEPS = 50
STEP_EVENTS = ("step_started", "step_completed", "step_failed")
MAX_SINGLE_CHARACTERS = 200_000
"""Characters of the value of the only step on a page."""


async def show_task(
    page: PageRequest, problem: str = "", status: int = 200, rerun_input: str | None = None
) -> Response:
    """Show a task. `problem` is why a requested rerun was refused, with the input `rerun_input` if it had one."""
    task_id = page.path_param("task_id")
    (trail, has_gap), subtasks, (names, current, input_text, calls) = await asyncio.gather(
        _read_trail(page, task_id),
        page.call("tasks.list", parent_task_id=task_id, limit=MAX_SUBTASKS),
        page.read(_read_records, task_id),
    )
    linked, grade = await page.read(_find_linked_and_grade, trail["task"])
    agent_id = trail["task"] and trail["task"]["assigned_agent"]
    # Only admins may read the record of an agent.
    agent = await page.read(_find_agent, agent_id) if agent_id and page.session.may("admin") else None
    journal = await _read_journal(page, trail, has_gap=has_gap)
    decisions = await _read_decisions(page, trail["task"], journal)
    state = await _read_state(page, trail["task"])
    rows = build_journal(journal["steps"], trail["status"])
    values = {(step["key"], step["epoch"]): step["value"] for step in journal["steps"]}
    bars = build_waterfall(trail["events"], map(build_subtask_bar, subtasks["tasks"]), page.site.now(), values)
    room = max(PAGE_CHARACTERS - ROW_CHARACTERS * (len(rows) + len(bars) + len(trail["events"])), MIN_ROOM)
    bodies = [[row.value for row in rows], [(bar.value, bar.details) for bar in bars]]
    opened = choose_bodies([*bodies, [event["metadata"] for event in trail["events"]]], room)
    return page.render(
        "task.html",
        status,
        block="live",
        problem=problem,
        rerun_input=rerun_input,
        # Not an input that was cut, nor one that a field would show in a different order.
        may_change_input=input_text is not None
        and len(input_text) < MAX_TEXT_CHARACTERS
        and escape_bidi(input_text) == input_text,
        address=f"/tasks/{quote_segment(task_id)}",  # not the request's path, which may end in /rerun
        task=trail["task"],
        task_id=task_id,
        trail=trail,
        calls=calls,
        agents=_agents_for_rerun(page, trail, current),
        agent=agent,
        tiers=agent_view.TIERS,
        routing=_present_decision(trail["routing"]),
        denial=present_denial(trail["task"]),
        names=names,
        # A text that was cut is not JSON any more, and is displayed as it is.
        task_input=None if input_text is None else jsontext.decode_or_none(input_text.encode()) or input_text,
        result_text=find_result_text(trail["task"]["result"]) if trail["task"] else None,
        state=state,
        linked=linked,
        choices=CHOICES,
        may_approve=await task_selection.may_approve(page, task_id),
        typed=None,
        decisions=[row.step for row in build_journal(decisions, trail["status"]) if row.is_open],
        journal=rows,
        more_steps=journal["next_cursor"] is not None,
        opened=dict(zip(("steps", "bars", "events"), opened, strict=True)),
        max_steps=MAX_STEPS,
        max_body=MAX_BODY_CHARACTERS,
        has_gap=has_gap,
        max_events=MAX_EVENTS,
        waterfall=bars,
        subtasks=subtasks,
        max_characters=MAX_TEXT_CHARACTERS,
        grade=grade,
        grades=GRADES,
    )


def _agents_for_rerun(page: PageRequest, trail: JsonObject, names: dict[str, str]) -> dict[str, str]:
    """Return the agents that may be chosen to do the task again, those that were admitted for it first."""
    admitted = [candidate["agent_id"] for candidate in (trail["routing"] or {}).get("candidates", [])]
    choices = selectable_agents(page, names, [trail["task"]] if trail["task"] else [])
    return {agent_id: choices[agent_id] for agent_id in dict.fromkeys([*admitted, *choices]) if agent_id in choices}


async def _read_state(page: PageRequest, task: JsonObject | None) -> JsonObject:
    """Return the notice about a task and what it waits for, with a request only if its status may have either."""
    state: JsonObject = {"notice": None, "notice_code": None, "waits_for": []}
    if task is None:
        return state
    # The activity has neither.
    if task["status"] not in ("pending_approval", "queued", "waiting", "executing", "cancelled"):
        return state
    found = await page.find("tasks.get", task_id=task["task_id"])
    return found if found is not None and found["status"] == task["status"] else state


def _read_records(
    tx: Tx, tenant: str, task_id: str
) -> tuple[dict[str, str], dict[str, str], str | None, llm_queries.TaskCalls]:
    """Return the names of all agents, of the agents to choose from, and a task's input and model calls."""
    return (
        registry_queries.read_names(tx, tenant),
        label_agents(registry_queries.read_current_names(tx, tenant)),
        task_queries.read_input(tx, tenant, task_id, MAX_TEXT_CHARACTERS),
        llm_queries.read_task_calls(tx, tenant, task_id),
    )


def _find_linked_and_grade(tx: Tx, tenant: str, task: JsonObject | None) -> tuple[set[str], JsonObject | None]:
    """Return which of the session and the schedule of a task still have a page, and its grade if it has one."""
    if task is None:
        return set(), None
    finders, names = {"session": session_store.find, "schedule": schedule_store.find}, task["metadata"]
    linked = {kind for kind, find in finders.items() if names.get(kind) and find(tx, tenant, str(names[kind]))}
    grade = task_store.find_grade(tx, tenant, task["task_id"]) if task["status"] == "completed" else None
    return linked, None if grade is None else GradeOut.of(grade).model_dump(mode="json")


def _find_agent(tx: Tx, tenant: str, agent_id: str) -> Agent | None:
    """Return the agent, None if its record cannot be read: the page shows the rest of the task."""
    try:
        return registry_store.find(tx, tenant, agent_id)
    except RegistryRecordError:
        return None


async def _read_trail(page: PageRequest, task_id: str) -> tuple[JsonObject, bool]:
    """Return the activity of a task with its first and last events, and whether there are others between them."""
    trail = await page.call("tasks.activity", task_id=task_id, limit=MAX_EVENTS)
    if trail["next_cursor"] is None:
        return trail, False
    # One more than needed shows whether there are others.
    latest = await page.read(runlog.read_latest_events, task_id, MAX_EVENTS + 1)
    shown = trail["events"][-1]["event_id"]
    latest = [event for event in latest if event.event_id > shown]
    events = [*trail["events"], *map(event_to_json, latest[-MAX_EVENTS:])]
    return {**trail, "events": events}, len(latest) > MAX_EVENTS


async def _read_journal(page: PageRequest, trail: JsonObject, *, has_gap: bool) -> JsonObject:
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
        for step in step_queries.list_latest(tx, tenant, task_id, MAX_STEPS)
    ]


async def _read_decisions(page: PageRequest, task: JsonObject | None, journal: JsonObject) -> list[JsonObject]:
    """Return the steps that a person may have to decide, also those after the first ones."""
    if task is None or journal["next_cursor"] is None:
        return list(journal["steps"])
    return await page.read(_list_undecided, task["task_id"], task["assigned_agent"] or "")


def _list_undecided(tx: Tx, tenant: str, task_id: str, agent_id: str) -> list[JsonObject]:
    agent = registry_store.find(tx, tenant, agent_id)
    steps = step_store.list_undecided(tx, tenant, task_id, MAX_DECISIONS)
    asked = [(step, question) for step in steps if (question := describe_question(step, agent)) is not None]
    return [
        StepOut.of(step, value=None, superseded=False, question=question).model_dump(mode="json")
        for step, question in asked
    ]


def _present_decision(decision: JsonObject | None) -> JsonObject | None:
    """Return the decision with an explanation, None if it cannot be read."""
    if not decision or not explain.is_readable(decision):
        return None
    listed = decision["candidates"]
    factors = [name for name in ("failing", "overload") if any(each.get(name) for each in listed)]
    formula = " × ".join(
        ["(expected + uncertainty)" if factors else "expected + uncertainty", *(f"(1 − {name})" for name in factors)]
    )
    return {**decision, "sentence": explain.explain_decision(decision), "factors": factors, "formula": formula}


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


async def reject_task(page: PageRequest) -> Response:
    reason = (await page.read_form()).get("reason")
    return await _post(page, "reject", "rejected", {"reason": reason} if reason else {})


async def grade_task(page: PageRequest) -> Response:
    form = await page.read_form()
    comment = form.get("comment")
    # A text that is not a number becomes null, which the gateway rejects.
    body = {"grade": jsontext.decode_or_none(form.get("grade", "").encode())} | (
        {"comment": comment} if comment else {}
    )
    return await _post(page, "grade", "graded", body)


async def _post(page: PageRequest, verb: str, notice: str, body: JsonObject) -> Response:
    task_id = page.path_param("task_id")
    await page.call(f"tasks.{verb}", task_id=task_id, body=body)
    return page.redirect(f"/tasks/{quote_segment(task_id)}", notice)


async def stream_changes(page: PageRequest) -> Response:
    """Stream the topics that changed since the page was rendered, at most once a second."""
    return EventStreamResponse(
        page.site.live_updates.stream_changes(page.tenant, page.changes_since),
        # Counted by session and not by key, so that open tabs do not use up the streams of a program with the same key.
        page.site.stream_limit,
        page.session.csrf,
    )


async def stream_task(page: PageRequest) -> Response:
    """Stream the gateway's events of a task, with the user's key."""
    task_id = page.path_param("task_id")
    await page.call("tasks.get", task_id=task_id)  # an error response is possible only before the stream starts
    # The browser sends it by itself when it reconnects.
    after = page.request.headers.get("last-event-id")
    task_events = page.site.gateway.stream_task(page.session.key, task_id, after)
    events = (SseEvent(event.kind, event.data, event.id) async for event in task_events)
    return EventStreamResponse(events, page.site.stream_limit, page.session.csrf)


ROUTES = [
    ("GET", TASK, show_task),
    ("GET", f"{TASK}/steps", show_steps),
    ("POST", f"{TASK}/cancel", action("tasks.cancel", TASK, "cancelled")),
    ("POST", f"{TASK}/retry", action("tasks.retry", TASK, "retried")),
    ("POST", f"{TASK}/approve", action("tasks.approve", TASK, "approved")),
    ("POST", f"{TASK}/reject", reject_task),
    ("POST", f"{TASK}/grade", grade_task),
    ("GET", "/live", stream_changes),
    ("GET", f"{TASK}/stream", stream_task),
]
