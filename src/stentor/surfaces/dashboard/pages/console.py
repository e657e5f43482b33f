"""The console page: submit an instruction and watch its output.

The form's fields become an `Instruction`, which `instruction` plans as a task, as for the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec
from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.conversation.model import extract_result_text
from stentor.domains.registry import queries as registry_queries
from stentor.domains.tasks import queries as task_queries
from stentor.surfaces.dashboard import instruction
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.instruction import Instruction
from stentor.surfaces.dashboard.pages.agents.agents import label_agents
from stentor.surfaces.dashboard.site.forms import int_or_text
from stentor.surfaces.dashboard.site.page import PageRequest

LISTED_TASKS = 8
"""Recent tasks on the page."""
MAX_INPUT_CHARACTERS = 200_000
PENDING_STATUSES = ("queued", "pending_approval", "executing", "waiting")
PRIORITIES = ("high", "normal", "low")
DEFAULT_TIMEOUT_SECONDS = "300"
ADVICE = {
    "ROUTING_CAPABILITY_UNAVAILABLE": "Choose a capability that an agent has, or register an agent with this one.",
    "ROUTING_TENANT_DENIED": "The agent belongs to another tenant. Choose one of yours.",
    "ROUTING_AGENT_UNAVAILABLE": "Every capable agent is suspended, quarantined or archived. Activate or restore one.",
    "ROUTING_AUTHORITY_DENIED": "The grant does not cover this task. Ask its issuer for a wider one.",
    "ROUTING_TRUST_FLOOR": "No capable agent has enough trust. Raise an agent's trust, or lower the minimum.",
    "ROUTING_AGENT_INELIGIBLE": "The requested agent is not eligible. Choose another agent, or none.",
    "ROUTING_POLICY_DENIED": "The policy file denies the task to every agent. The operator can change that file.",
}
DEFAULT_ADVICE = "Change the instruction or the agent, and submit again."


class ConsoleFields(msgspec.Struct, frozen=True):
    """The fields of the form as text; `agent` is an id or a name."""

    instruction: str = ""
    capability: str = ""
    agent: str = ""
    priority: str = "normal"
    timeout: str = DEFAULT_TIMEOUT_SECONDS


class TaskError(TypedDict):
    """Why a task failed, and what the user can do; `advice` is empty unless routing failed."""

    title: str
    code: str
    message: str
    advice: str


async def show_console(page: PageRequest) -> Response:
    return await _render_console(
        page, ConsoleFields(agent=page.query_param("agent"), capability=page.query_param("capability"))
    )


async def submit_instruction(page: PageRequest) -> Response:
    """Submit a task and redirect to it; display errors that the user can correct above the form."""
    fields = read_fields(await page.read_form())
    try:
        names = await page.read(registry_queries.read_names)
        task = await page.call("tasks.submit", body=build_task_body(fields, names))
        task_id = task["task_id"]
    except InvalidRequest as error:
        return await _render_console(page, fields, error.status, error.message)
    except GatewayError as error:
        # A task without an eligible agent is stored as failed: its page has the error and the advice.
        task_id = error.details.get("task_id") if isinstance(error.details, dict) else None
        if not isinstance(task_id, str):
            if error.status not in (400, 413, 429):
                raise
            return await _render_console(page, fields, error.status, error.message)
    return RedirectResponse(f"/console/{quote_segment(task_id)}", 303)


async def show_run(page: PageRequest) -> Response:
    """Render one task: routing, output, result or error."""
    task_id = page.path_param("task_id")
    trail, input_text = await asyncio.gather(
        page.call("tasks.activity", task_id=task_id),
        page.read(task_queries.read_input, task_id, MAX_INPUT_CHARACTERS),
    )
    task = trail["task"] or {}
    task_input = None if input_text is None else jsontext.decode_or_none(input_text.encode()) or input_text
    values = {
        "task_id": task_id,
        "task": task,
        "trail": trail,
        "routing": trail["routing"] if isinstance(trail["routing"], dict) else None,
        "task_input": task_input,
        "answer": extract_result_text(task["result"]) if task.get("result") is not None else None,
        "error": _present_error(task),
        "is_unfinished": trail["status"] in PENDING_STATUSES,
    }
    return await _render_console(page, fields_from_task(task, task_input) if task else ConsoleFields(), **values)


def _present_error(task: JsonObject) -> TaskError | None:
    error = task.get("error")
    if not isinstance(error, dict):
        return None
    has_no_agent = task["outcome_class"] == "routing_failed"
    code, status = str(error.get("code") or ""), task["status"]
    return {
        "title": "No eligible agent" if has_no_agent else f"The task {'' if status == 'failed' else 'was '}{status}",
        "code": code,
        "message": str(error.get("message") or ""),
        "advice": routing_advice(code) if has_no_agent else "",
    }


async def _render_console(
    page: PageRequest, fields: ConsoleFields, status: int = 200, problem: str = "", **values: Any
) -> Response:
    result, runs, names = await asyncio.gather(
        # 403: the key has no permission to list agents, and the form offers no choice.
        page.find("agents.list", missing=403, status="active", limit=1000),
        page.call("tasks.list", limit=LISTED_TASKS),
        page.read(registry_queries.read_names),
    )
    agents = _with_labels(result["agents"]) if result else None
    return page.render(
        "console-run.html" if values else "console.html",
        status,
        block="live" if values and page.query_param("part") != "runs" else "runs",
        fields=fields,
        problem=problem,
        agents=agents,
        capabilities=sorted({capability for agent in agents or () for capability in agent["capabilities"]}),
        runs=runs["tasks"],
        names=names,
        priorities=PRIORITIES,
        **values,
    )


def _with_labels(agents: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the agents with a `label` each, in the order of the labels."""
    by_id = {agent["agent_id"]: agent for agent in agents}
    labels = label_agents({agent_id: agent["name"] for agent_id, agent in by_id.items()})
    return [{**by_id[agent_id], "label": label} for agent_id, label in labels.items()]


def read_fields(form: Mapping[str, str]) -> ConsoleFields:
    return ConsoleFields(**{name: form[name] for name in ConsoleFields.__struct_fields__ if form.get(name)})


def fields_from_task(task: Mapping[str, Any], task_input: Any) -> ConsoleFields:
    """Return the fields of a task as defaults for the next one; an input that is not text is left out."""
    capabilities = task["required_capabilities"]
    return ConsoleFields(
        task_input if isinstance(task_input, str) else "",
        # The form has one capability; others that a task requires are lost when it is submitted again.
        capabilities[0] if capabilities else "",
        task["agent_preference"] or "",
        task["metadata"].get("priority") or "normal",
    )


def build_task_body(fields: ConsoleFields, names: Mapping[str, str]) -> JsonObject:
    """Return the body of `tasks.submit`. `names` are the agents' names by id. Raises InvalidRequest."""
    agent_id = _resolve_agent_id(fields.agent, names) if fields.agent else None
    try:
        body = Instruction(instruction=fields.instruction, capability=fields.capability or None)
    except ValidationError as error:
        first = error.errors()[0]
        message = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
        raise InvalidRequest(f"{first['loc'][0]}: {message}.") from None
    draft = instruction.plan_task(body, agent_id).draft
    return {
        "type": draft.type,
        "input": draft.input,
        "required_capabilities": list(draft.required_capabilities),
        "timeout_seconds": int_or_text(fields.timeout),
        "agent_preference": draft.agent_preference,
        "metadata": {"priority": fields.priority, "tags": ["console"]},
    }


def _resolve_agent_id(text: str, names: Mapping[str, str]) -> str:
    if text in names:
        return text
    agent_ids = [agent_id for agent_id, name in names.items() if name == text]
    if len(agent_ids) == 1:
        return agent_ids[0]
    raise InvalidRequest(f"agent: {'several agents have' if agent_ids else 'no agent has'} this name; use an agent ID.")


def routing_advice(code: str | None) -> str:
    """Return what the user can do after routing failed with this code."""
    return ADVICE.get(code or "", DEFAULT_ADVICE)


ROUTES = [
    ("GET", "/console", show_console),
    ("POST", "/console", submit_instruction),
    ("GET", "/console/{task_id:path}", show_run),
]
