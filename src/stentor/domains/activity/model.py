"""Builds the activity log of a task from its row and its events. Pure. Source: core contract, "Kernel"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core.clock import format_iso
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.domains.reports import service as reports
from stentor.domains.reports.service import VaultReport
from stentor.domains.tasks.model import Task

MAX_EVENTS = 500
"""Maximum number of events of a page; also how many of the first and of the last events a summary reads."""


class TaskEvents(msgspec.Struct, frozen=True):
    """The first and the last events of a task, and one page of them, each oldest first.

    `first` and `last` are the same up to `MAX_EVENTS` events. `has_more` if events follow the page.
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
        """The id of the event after which the next page begins; None on the last page."""
        return self.page[-1].event_id if self.has_more else None


def event_to_json(event: RunLogEvent) -> JsonObject:
    """Return an event in its JSON form; the exact task id is in its metadata."""
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


def build_trail(task_id: str, task: JsonObject | None, events: TaskEvents, linked: Sequence[VaultReport]) -> JsonObject:
    """Return the activity log; a field that no event has is null. `linked` are the task's reports."""
    outline = events.outline
    root = next((event for event in outline if event.event_type == "prompt_received"), None)
    # Events can exist without a row of the task; then their latest values count. With a row they may belong to an
    # attempt before a retry.
    status, outcome_class, learning_eligible = (
        task[name] if task else _last(outline, name) for name in ("status", "outcome_class", "learning_eligible")
    )
    return {
        "task_id": task_id,
        "task": task,
        "status": status or "unknown",
        "provenance_id": root.event_id if root else None,
        "agent_name": _last(outline, "agent_name"),
        "capability": _capability(root),
        "routing": _last(outline, "routing"),
        "provider": _last(outline, "provider"),
        "outcome_class": outcome_class,
        "learning_eligible": learning_eligible,
        "reports": [reports.report_out(report) for report in linked],
        "events": [event_to_json(event) for event in events.page],
    }


def _capability(root: RunLogEvent | None) -> str | None:
    capabilities = root.metadata.get("required_capabilities") if root else None
    return ", ".join(capabilities) if capabilities else None


def _last(events: Sequence[RunLogEvent], name: str) -> Any:
    """Return the latest value of a metadata field."""
    return next((event.metadata[name] for event in reversed(events) if name in event.metadata), None)


def completion_data(task: Task, agent_name: str | None, learning_error: str | None) -> JsonObject:
    """Return the data of the terminal event `complete`; `error` is set if learning from the outcome failed."""
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
