"""How far the tree of the run log is, and what it recorded of an event: no route tells these."""

from __future__ import annotations

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.provenance import store

_RECORDED = Sql(
    """select l.hash from provenance_leaves l join events e on e.event_id = l.event_id
    where e.tenant = :tenant and l.event_id = :event_id"""
)


class State(msgspec.Struct, frozen=True):
    """Of the one tree that all tenants share: checkpoints tell its size to every key that may read.

    `since` is the time of the oldest event that waits, in microseconds.
    """

    size: int
    waiting: int
    since: int | None


def state(tx: Tx) -> State:
    lag = store.lag(tx)
    return State(store.size_of(tx), lag.events, lag.since)


def recorded(tx: Tx, tenant: str, event_id: str) -> str | None:
    """The hash, in hex, that the event had when it got its number; None before that."""
    row = tx.row(_RECORDED, tenant=tenant, event_id=event_id)
    return None if row is None else str(row[0])
