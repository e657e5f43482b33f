"""The schedule pages: list, a form that makes one, one schedule with its next times and its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.site.forms import find_changed, read_shown, read_task_input
from stentor.surfaces.dashboard.site.page import PageRequest, action

SCHEDULE = "/schedules/{name}"
LISTED_RUNS = 50
TIMING = ("cron", "timezone", "missed", "overlap")
TASK_FIELDS = frozenset(("type", "capability", "title", "input"))
MISSED = {
    "one": "one run for all that were missed",
    "all": "each run, the newest 1,000",
    "skip": "no run",
}
OVERLAP = {"allow": "start the next run too", "skip": "skip the next run"}
EMPTY_FORM = {
    "name": "",
    "cron": "",
    "timezone": "UTC",
    "missed": "one",
    "overlap": "allow",
    "type": "",
    "capability": "",
    "title": "",
    "input": "",
}
FORM_ERRORS = (400, 409, 413)
"""Statuses of errors that a form displays."""


async def _render_list(
    page: PageRequest, problem: str = "", status: int = 200, fields: Mapping[str, str] | None = None
) -> Response:
    """Render the list; after a rejected form with the error and the submitted values."""
    listed = await page.call("schedules.list")
    return page.render(
        "schedules.html",
        status,
        block="live",
        schedules=listed["schedules"],
        problem=problem,
        fields=EMPTY_FORM | dict(fields or {}),
        **_choices(),
    )


async def create_schedule(page: PageRequest) -> Response:
    form = await _read_form(page)
    timing = {name: form.get(name, "") for name in ("name", *TIMING)}
    try:
        made = await page.call("schedules.create", body={**timing, "task": _read_task(form)})
    except InvalidRequest as error:
        return await _render_list(page, error.message, error.status, form)
    except GatewayError as error:
        return await _render_list(page, error.require_status(*FORM_ERRORS).message, error.status, form)
    return page.redirect(_path(made["name"]), "saved")


async def _render_schedule(
    page: PageRequest, problem: str = "", status: int = 200, form: Mapping[str, str] | None = None
) -> Response:
    """Render a schedule; after a rejected form with the error and the submitted values."""
    name = page.path_param("name")
    schedule, runs = await asyncio.gather(
        page.call("schedules.get", name=name), page.call("schedules.runs", name=name, limit=LISTED_RUNS)
    )
    return page.render(
        "schedule.html",
        status,
        block="live",
        schedule=schedule,
        next_times=[(time, _local_time(time, schedule["timezone"])) for time in schedule["next_times"]],
        runs=runs["runs"],
        most_runs=LISTED_RUNS,
        base=_path(name),
        problem=problem,
        shown=_fields(schedule),
        fields=_fields(schedule) | dict(form or {}),
        **_choices(),
    )


async def change_schedule(page: PageRequest) -> Response:
    """Change what the form says differently; a task that stays the same keeps its owner."""
    name, form = page.path_param("name"), await _read_form(page)
    schedule = await page.call("schedules.get", name=name)
    before, shown = _fields(schedule), read_shown(form)
    changed = find_changed({field: form[field] for field in before if field in form}, shown)
    if shown != before:
        problem = "Someone else changed this schedule. Review it with your changes in the form, then save again."
        return await _render_schedule(page, problem, 409, changed)
    try:
        body: JsonObject = {field: changed[field] for field in TIMING if field in changed}
        if task := _read_task(form, changed.keys() & TASK_FIELDS):
            body["task"] = _kept(schedule["task"]) | task
        await page.call("schedules.change", name=name, body=body)
    except InvalidRequest as error:
        return await _render_schedule(page, error.message, error.status, form)
    except GatewayError as error:
        return await _render_schedule(page, error.require_status(*FORM_ERRORS).message, error.status, form)
    return page.redirect(_path(name), "saved")


def _kept(task: JsonObject) -> JsonObject:
    """Return a task as it is submitted, without the fields that were not given."""
    meta = {key: value for key, value in task["metadata"].items() if key != "title"}
    # A response has them in the metadata, a request next to it.
    beside = {field: meta.pop(field, None) for field in ("limit", "session")}
    return {field: value for field, value in (task | beside).items() if value is not None} | {"metadata": meta}


async def run_schedule(page: PageRequest) -> Response:
    """Submit the task now; a denied one is stored as failed, and listed with its reason."""
    name = page.path_param("name")
    try:
        await page.call("schedules.run", name=name)
    except GatewayError as error:
        if error.status != 422:
            raise
        return page.redirect(_path(name), "run-denied")
    return page.redirect(_path(name), "run")


async def _read_form(page: PageRequest) -> dict[str, str]:
    """Return the form with line breaks as they were typed: browsers send them as on Windows."""
    return {name: value.replace("\r\n", "\n") for name, value in (await page.read_form()).items()}


def _read_task(form: Mapping[str, str], fields: Collection[str] = TASK_FIELDS) -> JsonObject:
    """Return these fields of the form's task. An input that begins like JSON must be JSON. Raises InvalidRequest."""
    task: JsonObject = {}
    if "type" in fields:
        task["type"] = form.get("type", "")
    if "input" in fields:
        task["input"] = read_task_input(form.get("input", ""))
    if "capability" in fields:
        parts = form.get("capability", "").split(",")
        task["required_capabilities"] = [part.strip() for part in parts if part.strip()]
    if "title" in fields:
        task["title"] = form.get("title") or None
    return task


def _fields(schedule: JsonObject) -> dict[str, str]:
    """Return a schedule as the values of the form, with the time of its last change."""
    task = schedule["task"]
    value = task["input"]
    return {
        **{name: schedule[name] for name in ("name", *TIMING, "updated_at")},
        "type": task["type"],
        "capability": ", ".join(task["required_capabilities"]),
        "title": task["title"] or "",
        "input": value if isinstance(value, str) else jsontext.dump(value),
    }


def _local_time(time: str, zone: str) -> str:
    """Format an ISO time as `2026-11-27 06:30 Europe/Rome`, in the time zone of a schedule."""
    return f"{datetime.fromisoformat(time).astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M} {zone}"


def _choices() -> dict[str, dict[str, str]]:
    return {"missed_choices": MISSED, "overlap_choices": OVERLAP}


def _path(name: str) -> str:
    return f"/schedules/{quote_segment(name)}"


ROUTES = [
    ("GET", "/schedules", _render_list),
    ("POST", "/schedules", create_schedule),
    ("GET", SCHEDULE, _render_schedule),
    ("POST", SCHEDULE, change_schedule),
    ("POST", f"{SCHEDULE}/pause", action("schedules.change", SCHEDULE, "paused", paused=True)),
    ("POST", f"{SCHEDULE}/resume", action("schedules.change", SCHEDULE, "resumed", paused=False)),
    ("POST", f"{SCHEDULE}/run", run_schedule),
    ("POST", f"{SCHEDULE}/delete", action("schedules.delete", "/schedules", "schedule-deleted")),
]
