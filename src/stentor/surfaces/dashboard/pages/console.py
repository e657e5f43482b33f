"""The console: an instruction in, tokens out.

The fields of the console: what they say as a task, and what to do when no agent takes it. Pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.conversation.model import extract_result_text
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks import queries as task_queries
from stentor.surfaces.dashboard import instruction
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.instruction import Instruction
from stentor.surfaces.dashboard.site.page import PageRequest

LISTED_TASKS = 8
"""Newest tasks that are listed."""
INPUT_PREFIX_CHARACTERS = 200
MAX_INPUT_CHARACTERS = 200_000
"""Characters of an instruction or a result."""
PENDING_STATUSES = ("queued", "pending_approval", "executing")


async def show_console(page: PageRequest) -> Response:
    return await _render_console(
        page, ConsoleFields(agent=page.query_param("agent"), capability=page.query_param("capability"))
    )


async def submit_instruction(page: PageRequest) -> Response:
    """A task that nobody may take is stored too, and shown as any other."""
    fields = read_fields(await page.read_form())
    try:
        names = await page.read(registry_queries.read_names)
        found = await page.call("tasks.submit", body=build_task_body(fields, names))
    except InvalidRequest as error:
        return await _render_console(page, fields, error.status, error.message)
    except GatewayError as refused:
        details = refused.details if isinstance(refused.details, dict) else {}
        if isinstance(details.get("task_id"), str):
            return _redirect_to_task(details["task_id"])
        if refused.status not in (400, 413, 429):
            raise
        return await _render_console(page, fields, refused.status, refused.message)
    return _redirect_to_task(found["task_id"])


def _redirect_to_task(task_id: str) -> Response:
    return RedirectResponse(f"/console/{quote_segment(task_id)}", 303)


async def show_run(page: PageRequest) -> Response:
    """One task as the console shows it: who does it, what it says, what came out."""
    task_id = page.path_param("task_id")
    trail, given = await asyncio.gather(
        page.call("tasks.activity", task_id=task_id),
        page.read(task_queries.read_input, task_id, MAX_INPUT_CHARACTERS),
    )
    task = trail["task"] or {}
    asked = None if given is None else jsontext.decode_or_none(given.encode()) or given
    values = {
        "task_id": task_id,
        "task": task,
        "trail": trail,
        "routing": trail["routing"] if isinstance(trail["routing"], dict) else None,
        "asked": asked,
        "answer": extract_result_text(task["result"]) if task.get("result") is not None else None,
        "wrong": _task_error(task),
        "under_way": trail["status"] in PENDING_STATUSES,
    }
    return await _render_console(page, fields_from_task(task, asked) if task else ConsoleFields(), **values)


def _task_error(task: dict[str, Any]) -> dict[str, str] | None:
    """Code, sentence and what to do of a task that failed."""
    error = task.get("error")
    if not isinstance(error, dict):
        return None
    refused = task["outcome_class"] == "routing_failed"
    code = str(error.get("code") or "")
    return {
        "title": "No agent took it" if refused else f"The task is {task['status']}",
        "code": code,
        "message": str(error.get("message") or ""),
        "advice": routing_advice(code) if refused else "",
    }


async def _render_console(
    page: PageRequest, fields: ConsoleFields, status: int = 200, problem: str = "", **values: Any
) -> Response:
    agents, runs, inputs, names = await asyncio.gather(
        _list_active_agents(page),
        page.call("tasks.list", limit=LISTED_TASKS),
        page.read(task_queries.read_newest_inputs, INPUT_PREFIX_CHARACTERS, 2 * LISTED_TASKS),
        page.read(registry_queries.read_names),
    )
    return page.render(
        "console-run.html" if values else "console.html",
        status,
        block="live" if values and page.query_param("part") != "runs" else "runs",
        fields=fields,
        problem=problem,
        agents=agents,
        capabilities=sorted({one for agent in agents or () for one in agent["capabilities"]}),
        runs=[{**task, "asked": _input_excerpt(inputs.get(task["task_id"]))} for task in runs["tasks"]],
        names=names,
        priorities=PRIORITIES,
        **values,
    )


async def _list_active_agents(page: PageRequest) -> list[dict[str, Any]] | None:
    """Those that may get work; None when the key may not list them."""
    try:
        found = await page.call("agents.list", status="active", limit=1000)
    except GatewayError as refused:
        if refused.status != 403:
            raise
        return None
    return sorted(found["agents"], key=lambda agent: agent["name"])


def _input_excerpt(text: str | None) -> str:
    """The first words of an input, whether or not its JSON text is cut."""
    if text is None:
        return ""
    whole = jsontext.decode_or_none(text.encode())
    return extract_result_text(whole) if whole is not None else text.lstrip('{["')


ROUTES = [
    ("GET", "/console", show_console),
    ("POST", "/console", submit_instruction),
    ("GET", "/console/{task_id:path}", show_run),
]


PRIORITIES = ("high", "normal", "low")
DEFAULT_TIMEOUT_SECONDS = "300"
ADVICE = {
    "ROUTING_CAPABILITY_UNAVAILABLE": "Choose a capability that an agent has, or register an agent with this one.",
    "ROUTING_TENANT_DENIED": "The agent belongs to another tenant. Choose one of yours.",
    "ROUTING_AGENT_UNAVAILABLE": "Every agent that could do it is suspended or quarantined. Activate one of them.",
    "ROUTING_AUTHORITY_DENIED": "The grant does not cover this. Ask its issuer for a wider one.",
    "ROUTING_TRUST_FLOOR": "No agent that could do it has enough trust. Raise an agent's trust, or lower the floor.",
    "ROUTING_AGENT_INELIGIBLE": "The chosen agent may not take it. Choose another agent, or none.",
    "ROUTING_POLICY_DENIED": "The policy file denies it to every agent. The operator can change that file.",
}
DEFAULT_ADVICE = "Change the instruction or the agent, and submit again."


class ConsoleFields(msgspec.Struct, frozen=True):
    """As they stand in the form; `agent` is an id or a name."""

    instruction: str = ""
    capability: str = ""
    agent: str = ""
    priority: str = "normal"
    timeout: str = DEFAULT_TIMEOUT_SECONDS


def read_fields(form: Mapping[str, str]) -> ConsoleFields:
    given = {name: form[name] for name in ConsoleFields.__struct_fields__ if form.get(name)}
    return ConsoleFields(**given)


def fields_from_task(task: Mapping[str, Any], given: Any) -> ConsoleFields:
    """What a task was asked, for the next one; an input that is no text is left out."""
    wanted = task["required_capabilities"]
    return ConsoleFields(
        given if isinstance(given, str) else "",
        wanted[0] if wanted else "",
        task["agent_preference"] or "",
        task["metadata"].get("priority") or "normal",
    )


def build_task_body(fields: ConsoleFields, names: Mapping[str, str]) -> dict[str, Any]:
    """What the gateway takes; `names` are those of the agents by id. Raises InvalidRequest."""
    agent_id = _resolve_agent_id(fields.agent, names) if fields.agent else None
    try:
        asked = Instruction(instruction=fields.instruction, capability=fields.capability or None)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(f"{first['loc'][0]}: {_sentence(str(first['msg']))}") from None
    draft = instruction.plan_task(asked, agent_id).draft
    return {
        "type": draft.type,
        "input": draft.input,
        "required_capabilities": list(draft.required_capabilities),
        "timeout_seconds": _parse_timeout(fields.timeout),
        "agent_preference": draft.agent_preference,
        "metadata": {"priority": fields.priority, "tags": ["console"]},
    }


def _parse_timeout(text: str) -> int | str:
    """What is no number is left to the gateway to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def _resolve_agent_id(text: str, names: Mapping[str, str]) -> str:
    if text in names:
        return text
    found = [agent_id for agent_id, name in names.items() if name == text]
    if len(found) == 1:
        return found[0]
    raise InvalidRequest(f"agent: {'several agents have' if found else 'no agent has'} this name; give an id.")


def _sentence(text: str) -> str:
    return (text if text.endswith(".") else f"{text}.").removeprefix("Value error, ")


def routing_advice(code: str | None) -> str:
    """What to do after a refusal of the routing."""
    return ADVICE.get(code or "", DEFAULT_ADVICE)
