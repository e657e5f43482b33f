"""What governance did, from the run log: the moves of an update or a rollback, and how many updates there are."""

from __future__ import annotations

import json
from typing import Any

from stentor.core.clock import format_iso
from stentor.core.db import Sql, Tx

MOVES = 20
"""Events that a record's history goes back; no record has as many moves."""

_COUNTS = Sql(
    """select status, tier, count(*),
        coalesce(sum(case when status = 'submitted' and approval_deadline < :now then 1 else 0 end), 0)
    from governance_updates where tenant = :tenant and (:agent_id = '' or agent_id = :agent_id)
    group by status, tier"""
)
_HEADS = {
    "update": Sql("select head_id from governance_updates where tenant = :tenant and update_id = :record_id"),
    "rollback": Sql("select head_id from rollbacks where tenant = :tenant and rollback_id = :record_id"),
}
_EVENT = Sql(
    """select event_id, parent_id, happened_at, event_type, message, metadata from events
    where tenant = :tenant and event_id = :event_id"""
)


def counts(tx: Tx, tenant: str, agent_id: str, tier: int, now: int) -> tuple[dict[str, int], int]:
    """Updates by status, and those that wait past their deadline; an empty id means of all agents, 0 all tiers."""
    found: dict[str, int] = {}
    overdue = 0
    for status, of_tier, n, late in tx.rows(_COUNTS, tenant=tenant, agent_id=agent_id, now=now):
        if tier in (0, of_tier):
            found[status] = found.get(status, 0) + int(n)
            overdue += int(late)
    return found, overdue


def moves(tx: Tx, tenant: str, kind: str, record_id: str, first: str) -> list[dict[str, Any]]:
    """From the event `first` to the newest one; what the run log does not have any more is left out."""
    row = tx.row(_HEADS[kind], tenant=tenant, record_id=record_id)
    wanted = str(row[0]) if row else None
    found: list[dict[str, Any]] = []
    while wanted is not None and len(found) < MOVES:
        event = tx.row(_EVENT, tenant=tenant, event_id=wanted)
        if event is None:
            break
        found.append(_move(event))
        wanted = None if wanted == first else event[1]
    return found[::-1]


def _move(row: tuple[Any, ...]) -> dict[str, Any]:
    event_id, _, happened_at, event_type, message, metadata = row
    try:
        meta = json.loads(metadata)
    except ValueError:
        meta = {}
    time = format_iso(happened_at)
    return {"event_id": event_id, "timestamp": time, "event_type": event_type, "message": message, "metadata": meta}
