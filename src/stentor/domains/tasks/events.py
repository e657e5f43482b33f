"""Run log events of a task before it runs, and the ATP envelope of responses about it. Pure.

The events of attempts are in `execution`. A task that came as an ATP message keeps the message's header, which its
first event records; any other task gets the default header that the same request would have had as a message.
Source: core contract, "Routing rules".
"""

from __future__ import annotations

import msgspec

from stentor.auth.principal import Principal
from stentor.core.errors import RoutingDenied
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLogEvent
from stentor.domains.atp import model as atp
from stentor.domains.atp.model import AtpHeader
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.registry.model import Agent
from stentor.domains.routing.model import RoutingDecision, describe_choice
from stentor.domains.tasks.model import Task, TaskDraft
from stentor.domains.tasks.submission.placement import Placement


def submission_events(
    principal: Principal, draft: TaskDraft, placement: Placement, header: AtpHeader | None
) -> list[EventDraft]:
    """Return the first events of a submitted task. `header` is the header of its ATP message, if it came as one."""
    meta: JsonObject = {
        "type": draft.type,
        "required_capabilities": draft.required_capabilities,
        "by": principal.name,
        "priority": draft.metadata.priority or "normal",
    }
    if header is not None:
        # `task_envelope` reads it back: the task's row has no column for the header.
        meta["atp"] = atp.header_to_json(header)
    return [
        EventDraft("prompt_received", "tasks", f"Task of type {draft.type} received.", meta),
        *placement_events(placement, draft.priority, {"by": principal.name} if placement.denial else {}),
    ]


def placement_events(placement: Placement, priority: int, extra: JsonObject) -> list[EventDraft]:
    """Return the events of a routing result; `extra` goes into the metadata of the first one."""
    if placement.denial is not None:
        error = denial_error(placement.denial) | {"outcome_class": "routing_failed", "learning_eligible": False}
        denied = EventDraft("dispatch_denied", "routing", placement.denial.message, error | extra)
        return [denied, learning_skipped_event("routing_failed")]
    decision = placement.decision
    assert decision is not None
    record = msgspec.to_builtins(decision)
    if not decision.online:
        # The notice about an offline agent depends on the runtime, and a repeated submission reads it here.
        record["runtime_kind"] = placement.runtime_kind
    elif placement.is_unseen:
        record["unseen"] = True
    routing = {"routing": record, "agent_name": decision.agent_name} | extra
    message = f"Routed to {describe_choice(decision)}."
    decided = EventDraft("routing_decision", "routing", message, routing, agent_id=decision.agent_id)
    if placement.status == "pending_approval":
        meta = {"agent_id": decision.agent_id, "trust_tier": "human"}
        return [decided, EventDraft("approval_requested", "tasks", "Waiting for approval.", meta)]
    if placement.status == "waiting":
        return [decided, waiting_event()]
    return [decided, queued_event(priority)]


def rerouting_events(decision: RoutingDecision, priority: int, left: Agent, reason: str) -> list[EventDraft]:
    """Return the events of a queued task that moves to another agent, because the one that it waited for is `reason`:
    busy, offline, or the status of one that is not active.
    """
    routing = {
        "routing": msgspec.to_builtins(decision),
        "agent_name": decision.agent_name,
        "rerouted_from": {"agent_id": left.agent_id, "agent_name": left.name, "reason": reason},
    }
    message = f"Routed to {describe_choice(decision)}, because {left.name} is {reason}."
    return [
        EventDraft("routing_decision", "routing", message, routing, agent_id=decision.agent_id),
        queued_event(priority),
    ]


def queued_event(priority: int) -> EventDraft:
    return EventDraft("task_queued", "execution", "Queued.", {"priority": priority})


def started_event(agent_id: str, epoch: int) -> EventDraft:
    """Return the event of a claim with this epoch."""
    return EventDraft("task_started", "execution", "Started.", {"epoch": epoch}, agent_id)


def waiting_event() -> EventDraft:
    """Return the event of a task that waits before its first attempt."""
    return EventDraft("task_waiting", "tasks", "Waits for its start.", {"status": "waiting"})


def denial_error(denial: RoutingDenied, **details: str) -> JsonObject:
    return {"code": denial.code, "message": denial.message, "details": (denial.details or {}) | details}


def build_envelope(provenance_id: str, priority: str | None, header: JsonObject | None = None) -> JsonObject:
    """Return `provenance_id` and `atp {header}`. Without a `header`, build the default one from `priority`."""
    default_header = {
        "mode": "async",
        "context": provenance_id,
        "priority": priority or "normal",
        "actionType": "execute",
        "targetZone": "kernel",
    }
    return {"provenance_id": provenance_id, "atp": {"header": header or default_header}}


def task_envelope(task: Task, root: RunLogEvent | None) -> JsonObject:
    """Return the envelope of a stored task; `root` is its first event, None if the run log no longer has it."""
    header = root.metadata.get("atp") if root is not None else None
    return build_envelope(task.provenance_id, task.metadata.priority, header)
