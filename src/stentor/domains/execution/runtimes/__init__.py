"""Drivers that run tasks, one per kind of runtime, and the payload and the result that they share.

Workers have no driver: they pull their tasks through `service.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from stentor.core import jsontext
from stentor.core.db import Tx
from stentor.core.errors import LeaseLost
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.model import AgentFailed, AttemptOutcome
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.access import require_task
from stentor.domains.tasks.model import TaskClaim

EmitToken = Callable[[str], None]
"""Publishes one output token to the readers of the task's live stream."""
TOKEN_MARKER = b'"token"'


class RuntimeDriver(Protocol):
    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Run the task. Cancelling the coroutine must stop the work. Raises AgentFailed."""
        ...


def task_payload(claim: TaskClaim) -> JsonObject:
    """Return the JSON that an endpoint or a program receives."""
    return {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "type": claim.type,
        "input": claim.input,
        "required_capabilities": list(claim.required_capabilities),
        "timeout_seconds": claim.timeout_seconds,
        "metadata": msgspec.to_builtins(claim.metadata.for_agent),
    }


def parse_outcome(reply: Any) -> AttemptOutcome:
    """Return the outcome for `{result, performance?, degraded?, cost?}`. Raises AgentFailed, with the cost if any."""
    cost = find_cost(reply)
    if not isinstance(reply, dict) or "result" not in reply:
        raise AgentFailed(
            "ANSWER_INVALID",
            "The result of the agent has no field 'result': it must be an object that has one.",
            cost=cost,
        )
    performance = reply.get("performance")
    if performance is not None and not (_is_number(performance) and 0 < performance <= 1):
        raise AgentFailed(
            "ANSWER_INVALID",
            "The 'performance' in the agent's result must be a number above 0 and at most 1.",
            cost=cost,
        )
    if cost is None and reply.get("cost") is not None:
        raise AgentFailed(
            "ANSWER_INVALID", "The 'cost' in the agent's result must be a number of US dollars from 0 to 1,000,000."
        )
    kind = "degraded_success" if reply.get("degraded") is True else "success"
    return AttemptOutcome(kind, reply["result"], performance=performance, cost=cost)


def find_cost(reply: Any) -> float | None:
    """Return the `cost` of a reply in US dollars; None without a valid one, as a failure needs none."""
    cost = reply.get("cost") if isinstance(reply, dict) else None
    return cost if cost is not None and _is_number(cost) and 0 <= cost <= 1e6 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_token_line(line: bytes) -> str | None:
    """Return the token if a line of a program's output is `{"token": "..."}`, else None."""
    # Only the beginning: a result may be one line of megabytes that mentions the word somewhere.
    if TOKEN_MARKER not in line[:64]:
        return None
    try:
        value = _line_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    token = value.get("token")
    return token if len(value) == 1 and isinstance(token, str) else None


_line_decoder = msgspec.json.Decoder(JsonObject, float_hook=jsontext.parse_float)


def lease_check(claim: TaskClaim) -> Callable[[Tx], None]:
    """Return the check that the broker makes before each call, because an outdated attempt may make no more calls."""

    def check(tx: Tx) -> None:
        task = require_task(tx, claim.tenant, claim.task_id)
        if task.status != "executing" or task.epoch != claim.epoch:
            raise LeaseLost("You no longer hold the lease of this task.", {"epoch": claim.epoch})

    return check
