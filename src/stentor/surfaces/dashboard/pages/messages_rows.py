"""Lists of messages, and what the route of one message leaves out. Ids of messages sort by their time."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Sql, Tx
from stentor.domains.atp.model import PRIORITIES

LOOKED_AT = 2_000
"""Messages that a filtered list looks at before it asks to go on."""
LATEST = 1_000
"""Messages that are counted by their state."""
_COLUMNS = "message_id, status, priority, header, sender_id, sender_agent, task_id, created_at, updated_at"
_BEFORE = "tenant = :tenant and message_id < :before"
_FIRST = "z"
"""Above every id."""
_PAGE = Sql(f"select {_COLUMNS} from atp_messages where {_BEFORE} order by message_id desc limit :limit")
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
_STATES = Sql(
    f"""select status, count(*) from (
        select status from atp_messages where tenant = :tenant order by message_id desc limit {LATEST}
    ) as newest group by status"""
)
_MORE = Sql(
    """select sender_id, sender_agent, task_id, due_at, deadline_at from atp_messages
    where tenant = :tenant and message_id = :message_id"""
)


class Row(msgspec.Struct, frozen=True):
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


class More(msgspec.Struct, frozen=True):
    sender_id: str
    sender_agent: str | None
    task_id: str | None
    due_at: str
    deadline_at: str | None


def page(
    tx: Tx, tenant: str, status: str, priority: str, before: str, limit: int
) -> tuple[list[Row], str | None]:  # fmt: skip
    """Newest first, and the id to go on before; None at the end."""
    before = before or _FIRST
    given: dict[str, Any] = {"tenant": tenant, "before": before, "limit": limit + 1}
    if not status and not priority:
        rows = [_row(row) for row in tx.rows(_PAGE, **given)]
        return rows[:limit], rows[limit - 1].message_id if len(rows) > limit else None
    number = PRIORITIES.index(priority) if priority else -1
    rows = [_row(row) for row in tx.rows(_FILTERED, **given, status=status, priority=number)]
    if len(rows) > limit:
        return rows[:limit], rows[limit - 1].message_id
    looked_at, last = tx.rows(_LAST_LOOKED_AT, tenant=tenant, before=before)[0]
    return rows, str(last) if looked_at == LOOKED_AT else None


def states(tx: Tx, tenant: str) -> dict[str, int]:
    """Of the latest messages, how many are in each state."""
    return {str(status): int(n) for status, n in tx.rows(_STATES, tenant=tenant)}


def more(tx: Tx, tenant: str, message_id: str) -> More | None:
    row = tx.row(_MORE, tenant=tenant, message_id=message_id)
    return None if row is None else More(row[0], row[1], row[2], format_iso(row[3]), format_iso_or_none(row[4]))


def _row(row: tuple[Any, ...]) -> Row:
    message_id, status, priority, header, sender, agent, task, created, updated = row
    return Row(
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
