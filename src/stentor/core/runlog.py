"""The run log: the append-only table of events, each written in the same transaction as the change that it records.

Fails closed: if an event cannot be inserted, its transaction is rolled back and the change did not happen. The id of an
event is its provenance id, `parent_id` is the event that caused it, and the root of a task is its `prompt_received`.
Numbering the events and the Merkle tree over them are in `domains/provenance`; here is only the hash of a leaf.
Source: core contract, "Routing rules".
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import chain
from typing import Any, Literal

import msgspec

from stentor.core import ids, jsontext
from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.errors import CorruptRecord
from stentor.core.fanout.live import Hub
from stentor.core.formats.canonical_json import row_encoder
from stentor.core.jsontext import JsonObject

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
"""All columns, in the order of the values in a row."""

encode_event_row = row_encoder(EVENT_COLUMNS)
"""Encode a row (values in the order of EVENT_COLUMNS) as a canonical JSON object (RFC 8785).

`metadata` is in it as the stored text, not as JSON: so every byte of the row counts, and it can hold numbers that
RFC 8785 cannot write.
"""


def leaf_hash(row: tuple[Any, ...]) -> bytes:
    """Return the hash of the row as a leaf of the Merkle tree (RFC 6962), 32 bytes."""
    return sha256(b"\0" + encode_event_row(row)).digest()


EventType = Literal[
    "prompt_received",
    "routing_decision",
    "dispatch_denied",
    "approval_requested",
    "approval_given",
    "approval_refused",
    "task_queued",
    "task_started",
    "task_waiting",
    "task_resumed",
    "signal_received",
    "tool_called",
    "tool_denied",
    "step_started",
    "step_completed",
    "step_failed",
    "agent_logged",
    "memory_read",
    "memory_written",
    "memory_invalidated",
    "memory_restored",
    "version_named",
    "llm_called",
    "content_deleted",
    "model_chosen",
    "answer_graded",
    "task_completed",
    "task_failed",
    "task_aborted",
    "task_cancelled",
    "task_requeued",
    "task_graded",
    "tasks_archived",
    "learning_updated",
    "learning_skipped",
    "report_written",
    "sentinel_alert",
    "signed_in",
    "sign_in_refused",
    "alert_opened",
    "alert_thresholds_changed",
    "alert_resolved",
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
    "key_changed",
    "budget_changed",
    "model_route_changed",
    "person_changed",
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
    "schedule_changed",
    "session_created",
    "session_deleted",
]

_EVENTS = AppendOnlyTable("events", EVENT_COLUMNS)
ENTRY_EVENTS = 16
"""Events in one pending entry: PostgreSQL stores a row above 2 kB in parts."""


def _join_entries(rows: list[Row]) -> list[Row]:
    """Return entries of several events: the id of the first one, and its hash with the ids and hashes of the others."""
    entries = []
    for start in range(0, len(rows), ENTRY_EVENTS):
        event_id, *words = chain.from_iterable(rows[start : start + ENTRY_EVENTS])
        entries.append((event_id, " ".join(words)))
    return entries


_WAITING = AppendOnlyTable("events_waiting", ("event_id", "leaf"), _join_entries)
"""Events that have no number in the Merkle tree yet, with their leaf hashes in hex: one row for many of a commit."""
_TASK_EVENTS = Sql(
    f"select {', '.join(EVENT_COLUMNS)} from events "
    "where tenant = :tenant and task_id = :task_id and event_id > :after order by event_id limit :limit"
)
_LATEST_TASK_EVENTS = Sql(
    f"select {', '.join(EVENT_COLUMNS)} from events "
    "where tenant = :tenant and task_id = :task_id order by event_id desc limit :limit"
)
_COUNT_TASK_EVENTS = Sql(
    "select count(*) from events where tenant = :tenant and task_id = :task_id and event_type = :event_type"
)


class EventDraft(msgspec.Struct, frozen=True):
    """An event to be recorded. Readers of the log see `metadata`: put no secrets in it."""

    event_type: EventType
    component: str
    message: str
    metadata: JsonObject = {}
    agent_id: str | None = None
    duration_ms: int | None = None
    event_id: str = msgspec.field(default_factory=ids.new_id)


class RunLogEvent(msgspec.Struct, frozen=True):
    """A recorded event. `event_id` is its provenance id, `happened_at` is in microseconds."""

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
    metadata: JsonObject

    @classmethod
    def from_draft(
        cls, draft: EventDraft, tenant: str, task_id: str | None, parent: str | None, now: int
    ) -> RunLogEvent:
        """Return the event that a draft becomes."""
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
    """Return up to `limit` events of a task after an event id, oldest first. Raises CorruptRecord."""
    return _decode_rows(tx.rows(_TASK_EVENTS, tenant=tenant, task_id=task_id, limit=limit, after=after), task_id)


def read_latest_events(tx: Tx, tenant: str, task_id: str, limit: int) -> list[RunLogEvent]:
    """Return the last `limit` events of a task, oldest first. Raises CorruptRecord."""
    return _decode_rows(tx.rows(_LATEST_TASK_EVENTS, tenant=tenant, task_id=task_id, limit=limit)[::-1], task_id)


def count_task_events(tx: Tx, tenant: str, task_id: str, event_type: EventType) -> int:
    """Count the events of a type of a task."""
    return int(tx.rows(_COUNT_TASK_EVENTS, tenant=tenant, task_id=task_id, event_type=event_type)[0][0])


def _decode_rows(rows: list[Row], task_id: str) -> list[RunLogEvent]:
    try:
        return [decode_event(row) for row in rows]
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"The run log of task {task_id!r} has a malformed event.") from error


def decode_event(row: Row) -> RunLogEvent:
    """Return the event of a row with the columns of `RunLogEvent`, in this order. Raises msgspec.DecodeError."""
    *fields, metadata = row
    return RunLogEvent(*fields, metadata=jsontext.load(metadata))


class RunLog:
    """Appends events. An object and not a function, so that tests can replace it with one that fails."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.append_hooks: list[Callable[[Tx, str, list[RunLogEvent]], None]] = []
        """Called with the tenant and the events, to write outbox rows (webhook deliveries) in the same transaction."""

    def append(
        self,
        tx: Tx,
        tenant: str,
        drafts: list[EventDraft],
        *,
        task_id: str | None = None,
        parent: str | None = None,
    ) -> str:
        """Record the drafts as a chain under `parent`; returns the id of the last event."""
        events, rows = [], []
        for draft in drafts:
            event = RunLogEvent.from_draft(draft, tenant, task_id, parent, tx.now)
            events.append(event)
            rows.append(_encode_row(event))
            parent = draft.event_id
        tx.append(_EVENTS, *rows)
        # The leaf hash is stored at once, so that a later change of the row is detected even before it gets a number.
        tx.append(_WAITING, *[(row[0], leaf_hash(row).hex()) for row in rows])
        # In the transaction, so that an event and the deliveries of it are stored together or not at all.
        for hook in self.append_hooks:
            hook(tx, tenant, events)
        if task_id is not None:
            # After the commit: a rolled back event must not reach a watcher.
            tx.after_commit(lambda: self._hub.publish_events(tenant, task_id, events))
        assert parent is not None
        return parent


def _encode_row(event: RunLogEvent) -> Row:
    *fields, metadata = msgspec.structs.astuple(event)
    return (*fields, jsontext.dump(metadata))
