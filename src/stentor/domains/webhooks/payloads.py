"""Maps run log events to webhook events, and builds their payloads. Pure.

A new event needs one line in `EVENT_NAMES` and one in `model.EVENTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.domains.webhooks.model import PING

MAX_FIELD_BYTES = 256 * 1024
"""Limit for the JSON of one field of `data`; a larger field becomes null and is listed in `truncated`."""

EventNamer = Callable[[RunLogEvent], str | None]


def _name_status_change(event: RunLogEvent) -> str | None:
    if "override_tier" in event.metadata:
        return "agent.cleared"
    return {"suspended": "agent.suspended", "quarantined": "agent.quarantined"}.get(event.metadata.get("to", ""))


def _name_failure(event: RunLogEvent) -> str | None:
    # A task without an eligible agent also has the event of its denial, which has the reason.
    return None if event.metadata.get("outcome_class") == "routing_failed" else "task.failed"


def _name_memory_write(event: RunLogEvent) -> str:
    return "memory.conflict" if event.metadata.get("status") == "conflict" else "memory.written"


def _name_trust_change(event: RunLogEvent) -> str | None:
    is_changed = event.metadata.get("level") != event.metadata.get("previous_level")
    return "trust.level_changed" if is_changed else None


EVENT_NAMES: Mapping[str, str | EventNamer] = {
    "prompt_received": "task.submitted",
    "task_started": "task.started",
    "task_completed": "task.completed",
    "task_failed": _name_failure,
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
    "agent_status_changed": _name_status_change,
    "memory_written": _name_memory_write,
    "sentinel_alert": "sentinel.alert",
    "alert_opened": "alert.opened",
    "alert_resolved": "alert.resolved",
    "trust_changed": _name_trust_change,
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
    """Return the name of the webhook event for a run log event; None for most."""
    name = EVENT_NAMES.get(event.event_type)
    return name if name is None or isinstance(name, str) else name(event)


def event_subject(event: RunLogEvent) -> str:
    """Return the subject: events with the same subject are delivered in order. An empty subject has no order."""
    if event.task_id is not None:
        return f"task:{event.task_id}"
    return f"agent:{event.agent_id}" if event.agent_id is not None else ""


def build_payload(name: str, event: RunLogEvent, result: str | None) -> bytes:
    """Return the body of a delivery; `result` is the JSON text of a completed task's result."""
    data = _truncate(_data(name, event, result))
    return jsontext.encode({"event": name, "type": name, "timestamp": format_iso(event.happened_at), "data": data})


def _data(name: str, event: RunLogEvent, result: str | None) -> JsonObject:
    ids: JsonObject = {"task_id": event.task_id, "agent_id": event.agent_id, "duration_ms": event.duration_ms}
    data = {field: value for field, value in ids.items() if value is not None} | _details(event)
    if name in _TASK_STATUSES:
        data["status"] = _TASK_STATUSES[name]
    if name == "task.completed":
        # Raw: the stored JSON is passed on without being decoded.
        data["result"] = None if result is None else msgspec.Raw(result.encode())
    if name != PING:
        data["provenance_id"] = event.event_id
    return data


def _details(event: RunLogEvent) -> JsonObject:
    """Return the event's metadata; that of a denial in the form of other failures, with `error`."""
    if event.event_type != "dispatch_denied":
        return event.metadata
    error = ("code", "message", "details")
    other = {field: value for field, value in event.metadata.items() if field not in error}
    return other | {"error": {field: event.metadata.get(field) for field in error}}


def _truncate(data: JsonObject) -> JsonObject:
    if len(jsontext.encode(data)) <= MAX_FIELD_BYTES:
        return data
    truncated = [field for field, value in data.items() if len(jsontext.encode(value)) > MAX_FIELD_BYTES]
    return data | dict.fromkeys(truncated) | {"truncated": truncated}
