"""What a person is asked about a step, and what the answers do: for the API, the pages and the commands. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from stentor.core.clock import format_iso
from stentor.domains.registry.model import Agent
from stentor.domains.steps.model import Step

HAPPENED = "It happened: it is not sent again. Its value is recorded, and the task goes on with it when it is retried."
NOT_HAPPENED = "It did not happen: it is sent again, with the same key, when the task is retried."
HTTP_REQUEST, TOOL_CALL = "request", "/tool "
"""Key and name of the request to an `http` agent, and a part of the keys of the tools that an `llm` agent calls."""


def describe_question(step: Step, agent: Agent | None) -> str | None:
    """Return what a person is asked about an open step of an agent's task; None if nothing is asked."""
    if step.state != "started" or step.kind not in ("question", "effect"):
        return None
    if step.kind == "question":
        return step.reference
    moment = f"{format_iso(step.started_at)[:19].replace('T', ' ')} UTC"
    name, kind = ("its agent", "") if agent is None else (f"the agent {agent.name}", agent.runtime.kind)
    if kind == "http" and step.key == HTTP_REQUEST:
        host = urlsplit(agent.runtime.endpoint or "").hostname if agent is not None else None
        return f"Did {name} do the task? The request was sent{f' to {host}' if host else ''} at {moment}."
    what = "call of the tool" if kind == "llm" and TOOL_CALL in step.key else "effect"
    return f"Did the {what} {step.name!r} happen? {name[0].upper()}{name[1:]} began it at {moment}."
