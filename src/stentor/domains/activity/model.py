"""The activity trail, projected from a task's row and its events: pure. Source: core contract, "Kernel"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core.clock import format_iso
from stentor.core.runlog import RunLogEvent
from stentor.domains.reports import model as reports
from stentor.domains.reports.model import VaultReport
from stentor.domains.tasks.model import Task

TERMINAL_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))


MAX_EVENTS = 500
"""Events of one page, and how many of each end a summary looks at."""


class TaskEvents(msgspec.Struct, frozen=True):
    """The first and the last events of a task, which are the same unless there are very many, and one page of them.
    All are oldest first; `more` says that events follow the page.
    """

    first: list[RunLogEvent] = []
    last: list[RunLogEvent] = []
    page: list[RunLogEvent] = []
    has_more: bool = False

    @property
    def outline(self) -> list[RunLogEvent]:
        return [*self.first, *self.last]

    @property
    def next_after(self) -> str | None:
        """The event that the next page begins after."""
        return self.page[-1].event_id if self.has_more else None


def event_out(event: RunLogEvent) -> dict[str, Any]:
    """An event as readers see it; the exact task id stands in its metadata."""
    return {
        "event_id": event.event_id,
        "timestamp": format_iso(event.happened_at),
        "event_type": event.event_type,
        "component": event.component,
        "message": event.message,
        "metadata": {"task_id": event.task_id, **event.metadata},
        "duration_ms": event.duration_ms,
        "provenance_id": event.event_id,
        "parent_provenance_id": event.parent_id,
    }


def build_trail(
    task_id: str, task: dict[str, Any] | None, events: TaskEvents, linked: Sequence[VaultReport]
) -> dict[str, Any]:
    """The projection of a task's events; what no event has said yet is null. `linked` are the task's reports."""
    known = events.outline
    root = next((e for e in known if e.event_type == "prompt_received"), None)
    status = task["status"] if task else _last(known, "status")
    return {
        "task_id": task_id,
        "task": task,
        "status": status or "unknown",
        "provenance_id": root.event_id if root else None,
        "agent_name": _last(known, "agent_name"),
        "capability": _capability(root),
        "routing": _last(known, "routing"),
        "provider": _last(known, "provider"),
        "outcome_class": _last(known, "outcome_class"),
        "learning_eligible": _last(known, "learning_eligible"),
        "reports": [reports.report_out(report) for report in linked],
        "events": [event_out(event) for event in events.page],
    }


def _capability(root: RunLogEvent | None) -> str | None:
    wanted = root.metadata.get("required_capabilities") if root else None
    return ", ".join(wanted) if wanted else None


def _last(events: Sequence[RunLogEvent], name: str) -> Any:
    """The latest word of the events on something."""
    return next((e.metadata[name] for e in reversed(events) if name in e.metadata), None)


def completion_data(task: Task, agent_name: str | None, learning_error: str | None) -> dict[str, Any]:
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
