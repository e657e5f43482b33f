"""Runs of the same task: run it again, on another agent if one is chosen; compare two runs side by side; replay a run
with the agent as it is now, or with another agent or model.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core import jsontext, runlog
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.governance.impact import diff_documents
from stentor.domains.llm import queries as llm_queries
from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry.queries import AgentListFilter
from stentor.domains.tasks import queries as task_queries
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.pages.agents.agents import label_agents
from stentor.surfaces.dashboard.pages.tasks.tasks import show_task
from stentor.surfaces.dashboard.presenters.change_review import review_diff
from stentor.surfaces.dashboard.presenters.filters import explain_denial, format_input
from stentor.surfaces.dashboard.presenters.replay_view import SUMMARIES, build_rows, color_of
from stentor.surfaces.dashboard.site.forms import read_task_input
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_STEPS, MAX_AGENTS = 200, 1_000
MAX_TEXT_CHARACTERS = 20_000
ALL_CHARACTERS = 2**31 - 1


class RunSummary(msgspec.Struct, frozen=True):
    """A task with its input, and what its model and tool calls add up to; `cost` in US dollars, None if unknown."""

    task: JsonObject
    task_input: Any
    model_calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    tool_calls: int
    grade: float | None


async def rerun_task(page: PageRequest) -> Response:
    task_id = page.path_param("task_id")
    form = await page.read_form()
    given = {"agent_preference": form.get("agent"), "from_step": await page.read_field("step")}
    body: JsonObject = {name: value for name, value in given.items() if value}
    text = None
    if "input" in form:
        # A text that looks like JSON stays a text unless the user changes it; a number stays a number even then.
        text, before = _normalize_lines(await page.read_field("input")), await _read_input(page, task_id)
        if text != _normalize_lines(format_input(before)):
            try:
                body["input"] = read_task_input(text, before)
            except InvalidRequest as error:
                return await show_task(page, error.message, error.status, text)
    try:
        submitted = await page.call("tasks.rerun", task_id=task_id, body=body)
    except GatewayError as error:
        # The user chose the agent on this page, so the page says why it cannot be used.
        if not error.code.startswith("ROUTING_"):
            raise
        return await show_task(page, _explain_refusal(error), error.status, text)
    return page.redirect(f"/tasks/{quote_segment(submitted['task_id'])}", "submitted-again")


def _normalize_lines(text: str) -> str:
    """Return a text with the line ends that browsers do not keep as they were."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


async def _read_input(page: PageRequest, task_id: str) -> Any:
    text = await page.read(task_queries.read_input, task_id, ALL_CHARACTERS)
    return "" if text is None else jsontext.decode(text.encode())


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
        inputs=review_diff(diff_documents(first.task_input, second.task_input, "input")),
        results=review_diff(diff_documents(first.task["result"], second.task["result"], "result")),
        errors=review_diff(diff_documents(first.task["error"], second.task["error"], "error")),
    )


async def _read_run(page: PageRequest, task_id: str) -> RunSummary:
    task, task_input, calls, tool_calls, grade = await asyncio.gather(
        page.call("tasks.get", task_id=task_id),
        _read_input(page, task_id),
        page.read(llm_queries.read_task_calls, task_id),
        page.read(runlog.count_task_events, task_id, "tool_called"),
        page.find("tasks.get_grade", task_id=task_id),
    )
    return RunSummary(
        task,
        task_input,
        calls.calls,
        calls.input_tokens,
        calls.output_tokens,
        calls.dollars,
        tool_calls,
        grade=grade["grade"] if grade else None,
    )


async def show_replay(page: PageRequest) -> Response:
    """Replay the task. What cannot be replayed here is said in the page, with what to do instead."""
    task_id = page.path_param("task_id")
    agent, model = page.query_param("agent"), page.query_param("model")
    task, agents = await asyncio.gather(page.call("tasks.get", task_id=task_id), _list_agents(page))
    report, problem = None, ""
    try:
        report = await page.call("tasks.replay", task_id=task_id, agent_id=agent, model=model)
    except GatewayError as error:
        if error.status not in (400, 404, 409):
            raise
        problem = error.message
    rows = list(build_rows(report["steps"])) if report else []
    return page.render(
        "replay.html",
        task=task,
        address=f"/tasks/{quote_segment(task_id)}",
        report=report,
        problem=problem,
        rows=rows[:MAX_STEPS],
        omitted=max(0, len(rows) - MAX_STEPS),
        summary=SUMMARIES.get(report["verdict"], "") if report else "",
        color=color_of(report["verdict"]) if report else "",
        agents=agents,
        chosen={"agent": agent, "model": model},
        max_characters=MAX_TEXT_CHARACTERS,
    )


async def _list_agents(page: PageRequest) -> dict[str, str]:
    """Return the agents to choose from: those of the runtime `llm`, none for who may not list agents."""
    if not page.session.may("admin"):
        return {}
    agents, _ = await page.read(registry_queries.list_agents, AgentListFilter(), page.site.now(), MAX_AGENTS)
    return label_agents({agent.agent_id: agent.name for agent in agents if agent.kind == "llm"})


ROUTES = [
    ("POST", "/tasks/{task_id}/rerun", rerun_task),
    ("GET", "/tasks/{task_id}/compare", compare_tasks),
    ("GET", "/tasks/{task_id}/replay", show_replay),
]
