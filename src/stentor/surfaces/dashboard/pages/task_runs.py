"""Runs of the same task: run it again, on another agent if one is chosen, and compare two runs side by side."""

from __future__ import annotations

import asyncio

from starlette.responses import RedirectResponse, Response

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.governance.impact import diff_documents
from stentor.domains.llm import queries as llm_queries
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks import queries as task_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.pages.tasks import show_task
from stentor.surfaces.dashboard.presenters.change_review import review_diff
from stentor.surfaces.dashboard.presenters.filters import explain_denial
from stentor.surfaces.dashboard.presenters.run_summary import RunSummary, summarize_run
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_EVENTS = 500
MAX_TEXT_CHARACTERS = 20_000


async def rerun_task(page: PageRequest) -> Response:
    task_id = page.path_param("task_id")
    form = await page.read_form()
    given = {"agent_preference": form.get("agent"), "from_step": form.get("step")}
    body = {name: value for name, value in given.items() if value}
    try:
        submitted = await page.call("tasks.rerun", task_id=task_id, body=body)
    except GatewayError as error:
        if not error.code.startswith("ROUTING_"):
            raise
        return await show_task(page, _explain_refusal(error), error.status)
    return page.redirect(f"/tasks/{quote_segment(submitted['task_id'])}", "submitted-again")


def _explain_refusal(error: GatewayError) -> str:
    details = error.details if isinstance(error.details, dict) else {}
    if reason := details.get("reason"):
        return f"The agent that you chose {explain_denial(reason)}. Choose another one."
    return error.message


async def compare_tasks(page: PageRequest) -> Response:
    """Compare two tasks; without a second one, the task with the one that it repeats."""
    first_id, second_id = page.query_param("with"), page.path_param("task_id")
    if not first_id:
        repeated = (await page.call("tasks.get", task_id=second_id))["metadata"].get("rerun_of")
        if repeated is None:
            return RedirectResponse(f"/tasks/{quote_segment(second_id)}", 303)
        first_id = repeated
    runs = await asyncio.gather(*(_read_run(page, task_id) for task_id in (first_id, second_id)))
    names = await page.read(registry_queries.read_names)
    first, second = runs
    return page.render(
        "compare.html",
        runs=runs,
        names=names,
        inputs=review_diff(_diff("input", first.task_input, second.task_input)),
        results=review_diff(_diff("result", first.task["result"], second.task["result"])),
        errors=review_diff(_diff("error", first.task["error"], second.task["error"])),
    )


async def _read_run(page: PageRequest, task_id: str) -> RunSummary:
    trail, text, calls, grade = await asyncio.gather(
        page.call("tasks.activity", task_id=task_id, limit=MAX_EVENTS),
        page.read(task_queries.read_input, task_id, MAX_TEXT_CHARACTERS),
        page.read(llm_queries.read_task_calls, task_id),
        page.find("tasks.get_grade", task_id=task_id),
    )
    task = trail["task"] or await page.call("tasks.get", task_id=task_id)
    return summarize_run(task, jsontext.decode_or_none((text or "").encode()) or text, calls, trail["events"], grade)


def _diff(name: str, before: object, after: object) -> list[JsonObject]:
    return diff_documents(before, after, name)


ROUTES = [
    ("POST", "/tasks/{task_id}/rerun", rerun_task),
    ("GET", "/tasks/{task_id}/compare", compare_tasks),
]
