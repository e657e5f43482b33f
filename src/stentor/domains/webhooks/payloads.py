"""Which events of the run log are events of webhooks, and what their payloads hold: pure.

A new kind of event takes one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.runlog import RunLogEvent
from stentor.domains.webhooks.model import PING

MAX_FIELD_BYTES = 256 * 1024
"""Bytes of JSON that one field of `data` may have; a larger one is null and named in `truncated`."""

EventNamer = Callable[[RunLogEvent], str | None]


def _status(event: RunLogEvent) -> str | None:
    if "override_tier" in event.metadata:
        return "agent.cleared"
    return {"suspended": "agent.suspended", "quarantined": "agent.quarantined"}.get(event.metadata.get("to", ""))


def _failed(event: RunLogEvent) -> str | None:
    """A task that nobody may take is told by its denial, which knows why."""
    return None if event.metadata.get("outcome_class") == "routing_failed" else "task.failed"


def _memory(event: RunLogEvent) -> str:
    return "memory.conflict" if event.metadata.get("status") == "conflict" else "memory.written"


def _trust(event: RunLogEvent) -> str | None:
    moved = event.metadata.get("level") != event.metadata.get("previous_level")
    return "trust.level_changed" if moved else None


EVENT_NAMES: Mapping[str, str | EventNamer] = {
    "prompt_received": "task.submitted",
    "task_started": "task.started",
    "task_completed": "task.completed",
    "task_failed": _failed,
    "dispatch_denied": "task.failed",
    "task_aborted": "task.aborted",
    "task_cancelled": "task.cancelled",
    "approval_requested": "task.pending_approval",
    "update_submitted": "update.submitted",
    "update_approved": "update.approved",
    "update_rejected": "update.rejected",
    "update_deployed": "update.deployed",
    "update_rolled_back": "update.rolled_back",
    "rollback_completed": "rollback.completed",
    "rollback_failed": "rollback.failed",
    "agent_registered": "agent.registered",
    "agent_status_changed": _status,
    "memory_written": _memory,
    "sentinel_alert": "sentinel.alert",
    "trust_changed": _trust,
}
_TASK_STATUSES = {
    "task.started": "executing",
    "task.completed": "completed",
    "task.failed": "failed",
    "task.aborted": "aborted",
    "task.cancelled": "cancelled",
    "task.pending_approval": "pending_approval",
}


def event_name(event: RunLogEvent) -> str | None:
    """The webhook event that an event of the run log is; None for most."""
    name = EVENT_NAMES.get(event.event_type)
    return name if name is None or isinstance(name, str) else name(event)


def event_subject(event: RunLogEvent) -> str:
    """Events with one subject are delivered in their order; an empty subject has none."""
    if event.task_id is not None:
        return f"task:{event.task_id}"
    return f"agent:{event.agent_id}" if event.agent_id is not None else ""


def build_payload(name: str, event: RunLogEvent, result: str | None) -> bytes:
    """The body of a delivery; `result` is a completed task's, as JSON text."""
    data = _bounded(_data(name, event, result))
    return jsontext.encode({"event": name, "type": name, "timestamp": format_iso(event.happened_at), "data": data})


def _data(name: str, event: RunLogEvent, result: str | None) -> dict[str, Any]:
    own: dict[str, Any] = {"task_id": event.task_id, "agent_id": event.agent_id, "duration_ms": event.duration_ms}
    data = {field: value for field, value in own.items() if value is not None} | _details(event)
    if name in _TASK_STATUSES:
        data["status"] = _TASK_STATUSES[name]
    if name == "task.completed":
        data["result"] = None if result is None else msgspec.Raw(result.encode())
    if name != PING:
        data["provenance_id"] = event.event_id
    return data


def _details(event: RunLogEvent) -> dict[str, Any]:
    """The event's metadata; of a denial its error, as other failures have it."""
    if event.event_type != "dispatch_denied":
        return event.metadata
    error = ("code", "message", "details")
    rest = {field: value for field, value in event.metadata.items() if field not in error}
    return rest | {"error": {field: event.metadata.get(field) for field in error}}


def _bounded(data: dict[str, Any]) -> dict[str, Any]:
    if len(jsontext.encode(data)) <= MAX_FIELD_BYTES:
        return data
    cut = [field for field, value in data.items() if len(jsontext.encode(value)) > MAX_FIELD_BYTES]
    return data | dict.fromkeys(cut) | {"truncated": cut}
