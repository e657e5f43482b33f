"""SQL of lists of messages. Ids of messages sort by time."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Sql, Tx
from stentor.domains.atp.model import PRIORITIES

MAX_SCANNED_MESSAGES = 2_000
"""Messages that one page of a filtered list reads; the next page continues after them."""
MAX_COUNTED_MESSAGES = 1_000
"""Newest messages that are counted by status."""
_COLUMNS = "message_id, status, priority, header, sender_id, sender_agent, task_id, created_at, updated_at"
_BEFORE = "tenant = :tenant and message_id < :before"
# Ids are hexadecimal, so this sorts after each of them.
_AFTER_ALL_IDS = "z"
_LIST = Sql(f"select {_COLUMNS} from atp_messages where {_BEFORE} order by message_id desc limit :limit")
_LIST_FILTERED = Sql(
    f"""select {_COLUMNS} from (
        select {_COLUMNS} from atp_messages where {_BEFORE} order by message_id desc limit {MAX_SCANNED_MESSAGES}
    ) as newest where (:status = '' or status = :status) and (:priority < 0 or priority = :priority)
    order by message_id desc limit :limit"""
)
_LAST_SCANNED = Sql(
    f"""select count(*), min(message_id) from (
        select message_id from atp_messages where {_BEFORE} order by message_id desc limit {MAX_SCANNED_MESSAGES}
    ) as newest"""
)
_COUNT_BY_STATUS = Sql(
    f"""select status, count(*) from (
        select status from atp_messages where tenant = :tenant order by message_id desc limit {MAX_COUNTED_MESSAGES}
    ) as newest group by status"""
)
_FIND_DETAILS = Sql(
    """select sender_id, sender_agent, task_id, due_at, deadline_at from atp_messages
    where tenant = :tenant and message_id = :message_id"""
)


class MessageRow(msgspec.Struct, frozen=True):
    """A message in a list. Times in ISO 8601."""

    message_id: str
    status: str
    priority: str
    header: dict[str, str]
    sender_id: str
    sender_agent: str | None
    task_id: str | None
    created_at: str
    updated_at: str


class MessageDetails(msgspec.Struct, frozen=True):
    """What the operation that reads a message leaves out. Times in ISO 8601."""

    sender_id: str
    sender_agent: str | None
    task_id: str | None
    due_at: str
    deadline_at: str | None


def list_messages(
    tx: Tx, tenant: str, status: str, priority: str, before: str, limit: int
) -> tuple[list[MessageRow], str | None]:  # fmt: skip
    """List messages, newest first, with the id that the next page continues before; None on the last page."""
    before = before or _AFTER_ALL_IDS
    params: dict[str, str | int] = {"tenant": tenant, "before": before, "limit": limit + 1}
    if not status and not priority:
        rows = [_to_row(row) for row in tx.rows(_LIST, **params)]
        return rows[:limit], rows[limit - 1].message_id if len(rows) > limit else None
    number = PRIORITIES.index(priority) if priority else -1
    rows = [_to_row(row) for row in tx.rows(_LIST_FILTERED, **params, status=status, priority=number)]
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].message_id
    scanned, last = tx.rows(_LAST_SCANNED, tenant=tenant, before=before)[0]
    return rows, str(last) if scanned == MAX_SCANNED_MESSAGES else None


def count_messages_by_status(tx: Tx, tenant: str) -> dict[str, int]:
    """Count the newest messages by status."""
    return {str(status): int(count) for status, count in tx.rows(_COUNT_BY_STATUS, tenant=tenant)}


def read_message_details(tx: Tx, tenant: str, message_id: str) -> MessageDetails | None:
    row = tx.row(_FIND_DETAILS, tenant=tenant, message_id=message_id)
    if row is None:
        return None
    return MessageDetails(row[0], row[1], row[2], format_iso(row[3]), format_iso_or_none(row[4]))


def _to_row(row: tuple[Any, ...]) -> MessageRow:
    message_id, status, priority, header, sender, agent, task, created, updated = row
    return MessageRow(
        message_id,
        status,
        PRIORITIES[priority],
        jsontext.load(header),
        sender,
        agent,
        task,
        format_iso(created),
        format_iso(updated),
    )
