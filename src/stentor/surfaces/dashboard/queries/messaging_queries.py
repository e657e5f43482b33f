"""Lists of messages, and what the route of one message leaves out. Ids of messages sort by their time.

What waits for each webhook, and what a delivery carries: no route tells either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Sql, Tx
from stentor.domains.atp.model import PRIORITIES
from stentor.domains.tasks.store import read_result
from stentor.domains.webhooks import payloads, queries

LOOKED_AT = 2_000
"""Messages that a filtered list looks at before it asks to go on."""
MAX_COUNTED_MESSAGES = 1_000
"""Messages that are counted by their state."""
_COLUMNS = "message_id, status, priority, header, sender_id, sender_agent, task_id, created_at, updated_at"
_BEFORE = "tenant = :tenant and message_id < :before"
_ABOVE_ALL_IDS = "z"
"""Above every id."""
_MESSAGES = Sql(f"select {_COLUMNS} from atp_messages where {_BEFORE} order by message_id desc limit :limit")
_FILTERED = Sql(
    f"""select {_COLUMNS} from (
        select {_COLUMNS} from atp_messages where {_BEFORE} order by message_id desc limit {LOOKED_AT}
    ) as newest where (:status = '' or status = :status) and (:priority < 0 or priority = :priority)
    order by message_id desc limit :limit"""
)
_LAST_LOOKED_AT = Sql(
    f"""select count(*), min(message_id) from (
        select message_id from atp_messages where {_BEFORE} order by message_id desc limit {LOOKED_AT}
    ) as newest"""
)
_STATUS_COUNTS = Sql(
    f"""select status, count(*) from (
        select status from atp_messages where tenant = :tenant order by message_id desc limit {MAX_COUNTED_MESSAGES}
    ) as newest group by status"""
)
_MESSAGE_DETAILS = Sql(
    """select sender_id, sender_agent, task_id, due_at, deadline_at from atp_messages
    where tenant = :tenant and message_id = :message_id"""
)


class MessageRow(msgspec.Struct, frozen=True):
    """A message of a list; times as ISO texts."""

    message_id: str
    status: str
    priority: str
    header: dict[str, Any]
    sender_id: str
    sender_agent: str | None
    task_id: str | None
    created_at: str
    updated_at: str


class MessageDetails(msgspec.Struct, frozen=True):
    sender_id: str
    sender_agent: str | None
    task_id: str | None
    due_at: str
    deadline_at: str | None


def list_messages(
    tx: Tx, tenant: str, status: str, priority: str, before: str, limit: int
) -> tuple[list[MessageRow], str | None]:  # fmt: skip
    """Newest first, and the id to go on before; None at the end."""
    before = before or _ABOVE_ALL_IDS
    given: dict[str, Any] = {"tenant": tenant, "before": before, "limit": limit + 1}
    if not status and not priority:
        rows = [_message_row(row) for row in tx.rows(_MESSAGES, **given)]
        return rows[:limit], rows[limit - 1].message_id if len(rows) > limit else None
    number = PRIORITIES.index(priority) if priority else -1
    rows = [_message_row(row) for row in tx.rows(_FILTERED, **given, status=status, priority=number)]
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].message_id
    looked_at, last = tx.rows(_LAST_LOOKED_AT, tenant=tenant, before=before)[0]
    return rows, str(last) if looked_at == LOOKED_AT else None


def count_messages_by_status(tx: Tx, tenant: str) -> dict[str, int]:
    """Of the latest messages, how many are in each state."""
    return {str(status): int(n) for status, n in tx.rows(_STATUS_COUNTS, tenant=tenant)}


def read_message_details(tx: Tx, tenant: str, message_id: str) -> MessageDetails | None:
    row = tx.row(_MESSAGE_DETAILS, tenant=tenant, message_id=message_id)
    return (
        None if row is None else MessageDetails(row[0], row[1], row[2], format_iso(row[3]), format_iso_or_none(row[4]))
    )


def _message_row(row: tuple[Any, ...]) -> MessageRow:
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


MAX_COUNTED_DELIVERIES = 1_000
"""Deliveries of one webhook that are counted."""
_WAITING_COUNT = Sql(
    f"""select count(*) from (select 1 from webhook_deliveries where subscription_id = :subscription_id
        and tenant = :tenant and status = 'waiting' limit {MAX_COUNTED_DELIVERIES + 1}) as counted"""
)
_OLDEST_WAITING = Sql(
    """select created_at from webhook_deliveries where subscription_id = :subscription_id and tenant = :tenant
    and status = 'waiting' order by due_at, delivery_id limit 1"""
)


class WebhookBacklog(msgspec.Struct, frozen=True):
    """`count` ends at MOST + 1; `since` is when the event of the delivery that is due first happened."""

    count: int
    since: str | None


def read_backlogs(tx: Tx, tenant: str, subscription_ids: Iterable[str]) -> dict[str, WebhookBacklog]:
    found = {}
    for subscription_id in subscription_ids:
        given = {"tenant": tenant, "subscription_id": subscription_id}
        count = int(tx.rows(_WAITING_COUNT, **given)[0][0])
        row = tx.row(_OLDEST_WAITING, **given) if count else None
        found[subscription_id] = WebhookBacklog(count, format_iso(row[0]) if row else None)
    return found


def read_delivery_body(tx: Tx, tenant: str, name: str, event_id: str) -> Any:
    """The JSON that is posted for an event; None when the run log does not have it any more."""
    event = queries.find_event(tx, event_id)
    if event is None or event.tenant != tenant:
        return None
    result = read_result(tx, tenant, event.task_id or "") if name == "task.completed" else None
    return jsontext.decode(payloads.build_payload(name, event, result))
