"""How agents do their work: one driver per kind of runtime. Workers pull and have none.

What an agent outside the service's own code is given for a task, and what is made of its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from stentor.domains.execution.model import AgentFailed, AttemptOutcome
from stentor.domains.registry.model import Agent
from stentor.domains.tasks.model import TaskClaim

EmitToken = Callable[[str], None]
"""Takes one token of the answer, for whoever watches."""


class RuntimeDriver(Protocol):
    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Do the task. Cancelling the coroutine must stop the work. Raises AgentFailed."""
        ...


def task_payload(claim: TaskClaim) -> dict[str, Any]:
    return {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "type": claim.type,
        "input": claim.input,
        "required_capabilities": list(claim.required_capabilities),
        "timeout_seconds": claim.timeout_seconds,
        "metadata": msgspec.to_builtins(claim.metadata.for_agent),
    }


def parse_outcome(answer: Any) -> AttemptOutcome:
    """Of `{result, performance?, degraded?, cost?}`. Raises AgentFailed."""
    if not isinstance(answer, dict) or "result" not in answer:
        raise AgentFailed("ANSWER_INVALID", "The agent's answer has no 'result'.")
    performance = answer.get("performance")
    if performance is not None and not (isinstance(performance, int | float) and 0 < performance <= 1):
        raise AgentFailed("ANSWER_INVALID", "The answer's 'performance' is not in (0,1].")
    cost = answer.get("cost")
    if cost is not None and (isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost <= 1e6):
        raise AgentFailed("ANSWER_INVALID", "The answer's 'cost' is no amount of US dollars.")
    kind = "degraded_success" if answer.get("degraded") is True else "success"
    return AttemptOutcome(kind, answer["result"], performance=performance, cost=cost)  # type: ignore[arg-type]
