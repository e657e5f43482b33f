"""What an agent outside the service's own code is given for a task, and what is made of its answer."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.domains.execution.model import AgentFailed, Outcome
from stentor.domains.tasks.model import Claim


def body(claim: Claim) -> dict[str, Any]:
    return {
        "task_id": claim.task_id,
        "epoch": claim.epoch,
        "type": claim.type,
        "input": claim.input,
        "required_capabilities": list(claim.required_capabilities),
        "timeout_seconds": claim.timeout_seconds,
        "metadata": msgspec.to_builtins(claim.metadata.for_agent),
    }


def outcome(answer: Any) -> Outcome:
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
    return Outcome(kind, answer["result"], performance=performance, cost=cost)  # type: ignore[arg-type]
