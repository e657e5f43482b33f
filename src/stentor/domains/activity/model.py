"""The activity trail, projected from a task's row and its events: pure. Source: core contract, "Kernel"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stentor.core.clock import iso
from stentor.core.runlog import Event
from stentor.domains.tasks.model import Task

TERMINAL_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))


def event_out(event: Event) -> dict[str, Any]:
    """An event as readers see it; the exact task id stands in its metadata."""
    return {
        "event_id": event.event_id,
        "timestamp": iso(event.happened_at),
        "event_type": event.event_type,
        "component": event.component,
        "message": event.message,
        "metadata": {"task_id": event.task_id, **event.metadata},
        "duration_ms": event.duration_ms,
        "provenance_id": event.event_id,
        "parent_provenance_id": event.parent_id,
    }


def trail(
    task_id: str, task: dict[str, Any] | None, status: str, events: Sequence[Event], limit: int
) -> dict[str, Any]:
    """The projection; what no event has said yet is null, `events` are capped, oldest first."""
    root = next((e for e in events if e.event_type == "prompt_received"), None)
    decided = _last(events, "routing")
    agent_name = _last(events, "agent_name")
    return {
        "task_id": task_id,
        "task": task,
        "status": status,
        "provenance_id": root.event_id if root else None,
        "agent_name": agent_name,
        "capability": _capability(root),
        "routing": decided,
        "provider": _last(events, "provider"),
        "outcome_class": _last(events, "outcome_class"),
        "learning_eligible": _last(events, "learning_eligible"),
        "reports": [],
        "events": [event_out(event) for event in events[:limit]],
    }


def _capability(root: Event | None) -> str | None:
    wanted = root.metadata.get("required_capabilities") if root else None
    return ", ".join(wanted) if wanted else None


def _last(events: Sequence[Event], name: str) -> Any:
    """The latest word of the events on something."""
    return next((e.metadata[name] for e in reversed(events) if name in e.metadata), None)


def complete_data(task: Task, agent_name: str | None, learning_error: str | None) -> dict[str, Any]:
    """The terminal frame of a stream: `error` is set when learning from the outcome failed."""
    return {
        "task_id": task.task_id,
        "agent_name": agent_name,
        "status": task.status,
        "result": task.result,
        "task_error": task.error,
        "error": learning_error,
        "provenance_id": task.provenance_id,
        "outcome_class": task.outcome_class,
        "learning_eligible": task.learning_eligible,
        "duration_ms": task.duration_ms,
    }
