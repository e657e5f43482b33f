"""The run log: who did what, in the same transaction as the change itself.

Fails closed: when an event cannot be inserted, its transaction is undone and nothing happened.
Every event is a node of a tree: its id is its provenance id, `parent_id` names the event that led to
it, and the root of a task is its `prompt_received`. Source: core contract, "Routing rules".
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stentor.core import ids, jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import values_rows

EventType = Literal[
    "prompt_received",
    "routing_decision",
    "dispatch_denied",
    "approval_requested",
    "approval_given",
    "task_queued",
    "task_started",
    "tool_called",
    "tool_denied",
    "memory_read",
    "memory_written",
    "llm_called",
    "task_completed",
    "task_failed",
    "task_aborted",
    "task_cancelled",
    "task_requeued",
    "learning_updated",
    "learning_skipped",
    "report_written",
    "sentinel_alert",
    "agent_registered",
    "agent_updated",
    "agent_status_changed",
    "violation_recorded",
    "trust_changed",
    "connection_changed",
]

_COLUMNS = (
    "event_id",
    "tenant",
    "task_id",
    "agent_id",
    "parent_id",
    "happened_at",
    "event_type",
    "component",
    "message",
    "duration_ms",
    "metadata",
)


def _insert(count: int) -> Sql:
    return Sql(f"insert into events ({', '.join(_COLUMNS)}) values {values_rows(_COLUMNS, count)}")  # noqa: S608


_INSERTS = {n: _insert(n) for n in (1, 2, 3, 4)}


class Draft(msgspec.Struct, frozen=True):
    """An event about to be recorded. `metadata` is shown to readers of the log: no secrets."""

    event_type: EventType
    component: str
    message: str
    metadata: dict[str, Any] = {}
    agent_id: str | None = None
    duration_ms: int | None = None
    event_id: str = msgspec.field(default_factory=ids.new_id)


class RunLog:
    """Appends events. A collaborator, so that tests can make it fail."""

    def append(
        self, tx: Tx, tenant: str, drafts: list[Draft], *, task_id: str | None = None, parent: str | None = None
    ) -> str:
        """Insert the drafts as a chain under `parent`; answers the id of the last one."""
        for start in range(0, len(drafts), 4):
            part = drafts[start : start + 4]
            params: dict[str, Any] = {}
            for i, draft in enumerate(part):
                _bind(params, i, draft, tenant, task_id, parent, tx.now)
                parent = draft.event_id
            tx.run(_INSERTS[len(part)], **params)
        assert parent is not None
        return parent


def _bind(
    params: dict[str, Any], i: int, draft: Draft, tenant: str, task_id: str | None, parent: str | None, now: int
) -> None:
    params[f"event_id_{i}"] = draft.event_id
    params[f"tenant_{i}"] = tenant
    params[f"task_id_{i}"] = task_id
    params[f"agent_id_{i}"] = draft.agent_id
    params[f"parent_id_{i}"] = parent
    params[f"happened_at_{i}"] = now
    params[f"event_type_{i}"] = draft.event_type
    params[f"component_{i}"] = draft.component
    params[f"message_{i}"] = draft.message
    params[f"duration_ms_{i}"] = draft.duration_ms
    params[f"metadata_{i}"] = jsontext.dump(draft.metadata)
