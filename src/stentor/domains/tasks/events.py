"""What the run log says of a task before it runs: received, routed or denied, queued or waiting for approval."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.errors import RoutingDenied
from stentor.core.runlog import EventDraft
from stentor.domains.atp import model as atp
from stentor.domains.atp.model import Header
from stentor.domains.learning.service import skipped
from stentor.domains.registry.model import Agent
from stentor.domains.routing.model import Decision
from stentor.domains.tasks.model import TaskDraft
from stentor.domains.tasks.placement import Placement


def submitted(
    principal: Principal, draft: TaskDraft, placement: Placement, header: Header | None = None
) -> list[EventDraft]:
    """`header` is that of the message which the task came as."""
    meta: dict[str, Any] = {
        "type": draft.type,
        "required_capabilities": draft.required_capabilities,
        "by": principal.name,
        "priority": draft.metadata.priority or "normal",
    }
    if header is not None:
        meta["atp"] = atp.shown(header)
    return [
        EventDraft("prompt_received", "tasks", f"Task of type {draft.type} received.", meta),
        *placed(placement, draft.priority, {}),
    ]


def placed(placement: Placement, priority: int, extra: dict[str, Any]) -> list[EventDraft]:
    if placement.denial is not None:
        error = error_of(placement.denial) | {"outcome_class": "routing_failed", "learning_eligible": False}
        denied = EventDraft("dispatch_denied", "routing", placement.denial.message, error | extra)
        return [denied, skipped("routing_failed")]
    decision = placement.decision
    assert decision is not None
    routing = {"routing": msgspec.to_builtins(decision), "agent_name": decision.agent_name} | extra
    message = f"Routed to {decision.agent_name} among {decision.candidates_total}."
    decided = EventDraft("routing_decision", "routing", message, routing, agent_id=decision.agent_id)
    if placement.status == "pending_approval":
        meta = {"agent_id": decision.agent_id, "trust_tier": "human"}
        return [decided, EventDraft("approval_requested", "tasks", "Waits for a human's approval.", meta)]
    return [decided, queued(priority)]


def rerouted(decision: Decision, priority: int, offline: Agent) -> list[EventDraft]:
    """A task that waited for an agent which is offline waits for another one."""
    routing = {
        "routing": msgspec.to_builtins(decision),
        "agent_name": decision.agent_name,
        "rerouted_from": {"agent_id": offline.agent_id, "agent_name": offline.name, "reason": "offline"},
    }
    message = f"Routed to {decision.agent_name} among {decision.candidates_total}, because {offline.name} is offline."
    return [EventDraft("routing_decision", "routing", message, routing, agent_id=decision.agent_id), queued(priority)]


def queued(priority: int) -> EventDraft:
    return EventDraft("task_queued", "execution", "Queued.", {"priority": priority})


def error_of(denial: RoutingDenied, **details: str) -> dict[str, Any]:
    return {"code": denial.code, "message": denial.message, "details": (denial.details or {}) | details}
