"""Reads of the run log across tasks; the events of one task are read in `runlog`."""

from __future__ import annotations

import msgspec

from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.errors import CorruptRecord
from stentor.core.runlog import EVENT_COLUMNS, RunLogEvent, decode_event

MAX_NEW_EVENTS = 5_000
MAX_LED_TO = 100
"""How many events that one led to are listed."""
_COLUMNS = ", ".join(EVENT_COLUMNS)
_FIND = Sql(f"select {_COLUMNS} from events where tenant = :tenant and event_id = :event_id")
_LIST_AFTER = Sql(
    "select tenant, event_type, event_id from events where event_id > :after order by event_id limit :limit"
)
# Tenant and type are filtered outside: the inner query walks the primary key and stops after `scanned` rows.
_FIND_LATEST = Sql(
    f"""select {_COLUMNS} from (select {_COLUMNS} from events order by event_id desc limit :scanned) as newest
    where tenant = :tenant and event_type = :event_type order by event_id desc limit 1"""
)
_LIST_BETWEEN = Sql(
    f"""select {_COLUMNS} from (
        select {_COLUMNS} from events where event_id > :low and event_id < :high
        order by event_id desc limit :scanned
    ) as near where tenant = :tenant and event_type = :event_type order by event_id desc"""
)
_LIST_LED_TO = Sql(
    f"""select {_COLUMNS} from events
    where tenant = :tenant and task_id = :task_id and parent_id = :parent_id
    order by event_id desc limit {MAX_LED_TO}"""
)


class NewEvent(msgspec.Struct, frozen=True):
    """What readers of all events need of one to know whether it concerns them."""

    tenant: str
    event_type: str
    event_id: str


def find_event(tx: Tx, tenant: str, event_id: str) -> RunLogEvent | None:
    """Raises CorruptRecord."""
    row = tx.row(_FIND, tenant=tenant, event_id=event_id)
    return None if row is None else to_event(row)


def list_events_after(tx: Tx, after: str) -> list[NewEvent]:
    """Return the first MAX_NEW_EVENTS events of all tenants after an event id, in the order of their ids."""
    return [NewEvent(*row) for row in tx.rows(_LIST_AFTER, after=after, limit=MAX_NEW_EVENTS)]


def find_latest_event(tx: Tx, tenant: str, event_type: str, scanned: int) -> RunLogEvent | None:
    """Return the latest event of a type among the last `scanned` events of the log. Raises CorruptRecord."""
    row = tx.row(_FIND_LATEST, tenant=tenant, event_type=event_type, scanned=scanned)
    return None if row is None else to_event(row)


def list_events_between(
    tx: Tx, tenant: str, event_type: str, low: str, high: str, scanned: int
) -> list[RunLogEvent]:  # fmt: skip
    """List the events of a type among the last `scanned` events between two ids, newest first. Raises CorruptRecord."""
    ids = {"low": low, "high": high}
    rows = tx.rows(_LIST_BETWEEN, tenant=tenant, event_type=event_type, scanned=scanned, **ids)
    return [to_event(row) for row in rows]


def list_led_to(tx: Tx, tenant: str, task_id: str, event_id: str) -> list[RunLogEvent]:
    """Return the events of a task that one led to directly, newest first, 100 at most. Raises CorruptRecord."""
    rows = tx.rows(_LIST_LED_TO, tenant=tenant, task_id=task_id, parent_id=event_id)
    return [to_event(row) for row in rows]


def to_event(row: Row) -> RunLogEvent:
    try:
        return decode_event(row)
    except msgspec.DecodeError as error:
        raise CorruptRecord(f"The event {row[0]!r} of the run log is malformed.") from error
