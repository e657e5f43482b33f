"""The fields of the console: what they say as a task, and what to do when no agent takes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from stentor.core.errors import InvalidRequest
from stentor.surfaces.dashboard import instruction
from stentor.surfaces.dashboard.instruction import Instruction

PRIORITIES = ("high", "normal", "low")
TIMEOUT = "300"
ADVICE = {
    "ROUTING_CAPABILITY_UNAVAILABLE": "Ask for a capability that an agent has, or register an agent with this one.",
    "ROUTING_TENANT_DENIED": "The agent belongs to another tenant. Choose one of yours.",
    "ROUTING_AGENT_UNAVAILABLE": "Every agent that could do it is suspended or quarantined. Activate one of them.",
    "ROUTING_AUTHORITY_DENIED": "The grant does not cover this. Ask whoever gave it for a wider one.",
    "ROUTING_TRUST_FLOOR": "No agent that could do it has enough trust. Raise an agent's trust, or lower the floor.",
    "ROUTING_AGENT_INELIGIBLE": "The chosen agent may not take it. Leave the agent open, or choose another one.",
    "ROUTING_POLICY_DENIED": "The policy file keeps it from every agent. The operator can change that file.",
}
OTHERWISE = "Change the instruction or who is asked, and submit it again."


class Fields(msgspec.Struct, frozen=True):
    """As they stand in the form; `agent` is an id or a name."""

    instruction: str = ""
    capability: str = ""
    agent: str = ""
    priority: str = "normal"
    timeout: str = TIMEOUT


def read(form: Mapping[str, str]) -> Fields:
    given = {name: form[name] for name in Fields.__struct_fields__ if form.get(name)}
    return Fields(**given)


def of_task(task: Mapping[str, Any], given: Any) -> Fields:
    """What a task was asked, for the next one; an input that is no text is left out."""
    wanted = task["required_capabilities"]
    return Fields(
        given if isinstance(given, str) else "",
        wanted[0] if wanted else "",
        task["agent_preference"] or "",
        task["metadata"].get("priority") or "normal",
    )


def body(fields: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    """What the gateway takes; `names` are those of the agents by id. Raises InvalidRequest."""
    agent_id = _agent(fields.agent, names) if fields.agent else None
    try:
        asked = Instruction(instruction=fields.instruction, capability=fields.capability or None)
    except ValidationError as error:
        first = error.errors()[0]
        raise InvalidRequest(f"{first['loc'][0]}: {_sentence(str(first['msg']))}") from None
    draft = instruction.plan(asked, agent_id).draft
    return {
        "type": draft.type,
        "input": draft.input,
        "required_capabilities": list(draft.required_capabilities),
        "timeout_seconds": _number(fields.timeout),
        "agent_preference": draft.agent_preference,
        "metadata": {"priority": fields.priority, "tags": ["console"]},
    }


def _number(text: str) -> int | str:
    """What is no number is left to the gateway to refuse."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def _agent(text: str, names: Mapping[str, str]) -> str:
    if text in names:
        return text
    found = [agent_id for agent_id, name in names.items() if name == text]
    if len(found) == 1:
        return found[0]
    raise InvalidRequest(f"agent: {'several agents have' if found else 'no agent has'} this name; give an id.")


def _sentence(text: str) -> str:
    return (text if text.endswith(".") else f"{text}.").removeprefix("Value error, ")


def advice(code: str | None) -> str:
    """What to do after a refusal of the routing."""
    return ADVICE.get(code or "", OTHERWISE)
