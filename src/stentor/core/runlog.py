"""What the Merkle tree of the run log is made of: an event's canonical bytes and their hash.

The bytes are RFC 8785 over an object of all columns of the row. `metadata` stands in it as the text that is stored,
so that every byte of the row counts and no number can be outside of what RFC 8785 writes.

The run log: who did what, in the same transaction as the change itself.

Fails closed: when an event cannot be inserted, its transaction is undone and nothing happened.
Every event is a node of a tree: its id is its provenance id, `parent_id` names the event that led to
it, and the root of a task is its `prompt_received`. Source: core contract, "Routing rules".
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal

import msgspec

from stentor.core import ids, jsontext
from stentor.core.canonical_json import row_encoder
from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.db.driver import Row
from stentor.core.errors import CorruptRecord
from stentor.core.live import Hub

EVENT_COLUMNS = (
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
"""The order in which rows are given here."""

encode_event_row = row_encoder(EVENT_COLUMNS)
"""RFC 8785 of one row of the run log, its values in the order of COLUMNS."""


def leaf_hash(row: tuple[Any, ...]) -> bytes:
    """The hash of the row as a leaf (RFC 6962): 32 bytes."""
    return sha256(b"\0" + encode_event_row(row)).digest()


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
    "agent_logged",
    "memory_read",
    "memory_written",
    "llm_called",
    "model_chosen",
    "answer_graded",
    "task_completed",
    "task_failed",
    "task_aborted",
    "task_cancelled",
    "task_requeued",
    "task_graded",
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
    "message_received",
    "message_started",
    "message_requeued",
    "message_completed",
    "message_failed",
    "provider_changed",
    "authority_granted",
    "authority_revoked",
    "webhook_changed",
    "webhook_disabled",
    "webhook_pinged",
    "webhook_replayed",
    "update_submitted",
    "update_approved",
    "update_rejected",
    "update_deploying",
    "update_deployed",
    "update_rolled_back",
    "checkpoint_taken",
    "checkpoints_expired",
    "rollback_started",
    "rollback_in_progress",
    "rollback_completed",
    "rollback_failed",
    "history_accepted",
]

_EVENTS = AppendOnlyTable("events", EVENT_COLUMNS)
_WAITING = AppendOnlyTable("events_waiting", ("event_id", "leaf"))
"""Events without a number in the Merkle tree yet, with the hash of each as a leaf in hex."""
_OF_TASK = Sql(
    f"select {', '.join(EVENT_COLUMNS)} from events "
    "where tenant = :tenant and task_id = :task_id and event_id > :after order by event_id limit :limit"
)
_NEWEST_OF_TASK = Sql(
    f"select {', '.join(EVENT_COLUMNS)} from events "
    "where tenant = :tenant and task_id = :task_id order by event_id desc limit :limit"
)


class EventDraft(msgspec.Struct, frozen=True):
    """An event about to be recorded. `metadata` is shown to readers of the log: no secrets."""

    event_type: EventType
    component: str
    message: str
    metadata: dict[str, Any] = {}
    agent_id: str | None = None
    duration_ms: int | None = None
    event_id: str = msgspec.field(default_factory=ids.new_id)


class RunLogEvent(msgspec.Struct, frozen=True):
    """A recorded event. `event_id` is its provenance id; the time is in microseconds."""

    event_id: str
    tenant: str
    task_id: str | None
    agent_id: str | None
    parent_id: str | None
    happened_at: int
    event_type: str
    component: str
    message: str
    duration_ms: int | None
    metadata: dict[str, Any]

    @classmethod
    def from_draft(
        cls, draft: EventDraft, tenant: str, task_id: str | None, parent: str | None, now: int
    ) -> RunLogEvent:
        return cls(
            draft.event_id,
            tenant,
            task_id,
            draft.agent_id,
            parent,
            now,
            draft.event_type,
            draft.component,
            draft.message,
            draft.duration_ms,
            draft.metadata,
        )


def read_task_events(tx: Tx, tenant: str, task_id: str, limit: int, after: str = "") -> list[RunLogEvent]:
    """A task's events after an event id, oldest first. Raises CorruptRecord."""
    return _events(tx.rows(_OF_TASK, tenant=tenant, task_id=task_id, limit=limit, after=after), task_id)


def read_latest_events(tx: Tx, tenant: str, task_id: str, limit: int) -> list[RunLogEvent]:
    """The last events of a task, oldest of them first. Raises CorruptRecord."""
    return _events(tx.rows(_NEWEST_OF_TASK, tenant=tenant, task_id=task_id, limit=limit)[::-1], task_id)


def _events(rows: list[Row], task_id: str) -> list[RunLogEvent]:
    try:
        return [_event(row) for row in rows]
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"The run log of task {task_id!r} has a malformed event.") from error


def _event(row: Row) -> RunLogEvent:
    *fields, metadata = row
    return RunLogEvent(*fields, metadata=jsontext.load(metadata))  # type: ignore[misc]


class RunLog:
    """Appends events. A collaborator, so that tests can make it fail."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.append_hooks: list[Callable[[Tx, str, list[RunLogEvent]], None]] = []
        """Called with a tenant and what is appended, to write in the same transaction what is to be told outside."""

    def append(
        self,
        tx: Tx,
        tenant: str,
        drafts: list[EventDraft],
        *,
        task_id: str | None = None,
        parent: str | None = None,
    ) -> str:
        """Record the drafts as a chain under `parent`; answers the id of the last one."""
        written = []
        for draft in drafts:
            written.append(RunLogEvent.from_draft(draft, tenant, task_id, parent, tx.now))
            parent = draft.event_id
        for event in written:
            row = _event_row(event)
            tx.append(_EVENTS, row)
            tx.append(_WAITING, (event.event_id, leaf_hash(row).hex()))
        for outbox in self.append_hooks:
            outbox(tx, tenant, written)
        if task_id is not None:
            tx.after_commit(lambda: self._hub.publish_events(tenant, task_id, written))
        assert parent is not None
        return parent


def _event_row(event: RunLogEvent) -> Row:
    *fields, metadata = msgspec.structs.astuple(event)
    return (*fields, jsontext.dump(metadata))
