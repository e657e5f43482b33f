"""What governance did, from the run log: the moves of an update or a rollback, and how many updates there are.

Who wrote the versions of a note: no route tells it, the run log does.

How far the tree of the run log is, and what it recorded of an event: no route tells these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core import ids, jsontext
from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Sql, Tx
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.provenance import store

MAX_HISTORY_EVENTS = 20
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


def count_updates(tx: Tx, tenant: str, agent_id: str, tier: int, now: int) -> tuple[dict[str, int], int]:
    """Updates by status, and those that wait past their deadline; an empty id means of all agents, 0 all tiers."""
    found: dict[str, int] = {}
    overdue = 0
    for status, of_tier, n, late in tx.rows(_COUNTS, tenant=tenant, agent_id=agent_id, now=now):
        if tier in (0, of_tier):
            found[status] = found.get(status, 0) + int(n)
            overdue += int(late)
    return found, overdue


def read_history(tx: Tx, tenant: str, kind: str, record_id: str, first: str) -> list[dict[str, Any]]:
    """From the event `first` to the newest one; what the run log does not have any more is left out."""
    row = tx.row(_HEADS[kind], tenant=tenant, record_id=record_id)
    wanted = str(row[0]) if row else None
    found: list[dict[str, Any]] = []
    while wanted is not None and len(found) < MAX_HISTORY_EVENTS:
        event = tx.row(_EVENT, tenant=tenant, event_id=wanted)
        if event is None:
            break
        found.append(_history_event(event))
        wanted = None if wanted == first else event[1]
    return found[::-1]


def _history_event(row: tuple[Any, ...]) -> dict[str, Any]:
    event_id, _, happened_at, event_type, message, metadata = row
    try:
        meta = json.loads(metadata)
    except ValueError:
        meta = {}
    time = format_iso(happened_at)
    return {"event_id": event_id, "timestamp": time, "event_type": event_type, "message": message, "metadata": meta}


NEAR = SECOND
"""How far an event's id may lie from the time of its transaction."""
MAX_SCANNED_EVENTS = 2_000
"""Events beside each version."""
_WRITTEN = Sql(
    f"""select metadata, agent_id from (
        select tenant, event_type, metadata, agent_id from events where event_id > :low and event_id < :high
        order by event_id limit {MAX_SCANNED_EVENTS}
    ) as near where tenant = :tenant and event_type = 'memory_written'"""
)


def read_version_writers(
    tx: Tx, tenant: str, path: str, vault: str, versions: Iterable[tuple[str, int]]
) -> dict[str, tuple[str, str | None]]:
    """Key and agent by the hash of the version, as far as the run log has them; times in microseconds."""
    found: dict[str, tuple[str, str | None]] = {}
    for content_hash, at in versions:
        span = {"low": ids.min_id_at(at - NEAR), "high": ids.min_id_at(at + NEAR)}
        for metadata, agent_id in tx.rows(_WRITTEN, tenant=tenant, **span):
            event = jsontext.load(metadata)
            here = event.get("path") == path and event.get("vault", DEFAULT_VAULT) == vault
            if here and event.get("after_hash") == content_hash:
                found[content_hash] = (str(event.get("by") or ""), agent_id)
    return found


_RECORDED = Sql(
    """select l.hash from provenance_leaves l join events e on e.event_id = l.event_id
    where e.tenant = :tenant and l.event_id = :event_id"""
)


class RunLogTreeState(msgspec.Struct, frozen=True):
    """Of the one tree that all tenants share: checkpoints tell its size to every key that may read.

    `since` is the time of the oldest event that waits, in microseconds.
    """

    size: int
    waiting: int
    since: int | None


def read_tree_state(tx: Tx) -> RunLogTreeState:
    lag = store.numbering_lag(tx)
    return RunLogTreeState(store.tree_size(tx), lag.events, lag.oldest_at)


def read_recorded_hash(tx: Tx, tenant: str, event_id: str) -> str | None:
    """The hash, in hex, that the event had when it got its number; None before that."""
    row = tx.row(_RECORDED, tenant=tenant, event_id=event_id)
    return None if row is None else str(row[0])
