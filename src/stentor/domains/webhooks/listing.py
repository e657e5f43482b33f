"""SQL of the delivery log: pages, attempts, the events of a delivery, what is purged, figures."""

from __future__ import annotations

from typing import Any

from stentor.core import ids, jsontext
from stentor.core.clock import HOUR
from stentor.core.db import Sql, Tx
from stentor.core.runlog import RunLogEvent
from stentor.domains.webhooks.model import Attempt, Delivery
from stentor.domains.webhooks.naming import NAMES
from stentor.domains.webhooks.store import DELIVERY_COLUMNS, delivery_of

SKEW = HOUR
"""How far the clocks that ids and times come from may lie apart."""
_OF = "tenant = :tenant and subscription_id = :subscription_id"
_ONE = Sql(f"select {DELIVERY_COLUMNS} from webhook_deliveries where {_OF} and delivery_id = :delivery_id")
_FRAGMENTS = {
    "status": "status = :status",
    "event": "event = :event",
    "created_after": "created_at > :created_after",
    "before": "delivery_id < :before",
}
_ATTEMPTS = Sql(
    """select attempt, started_at, duration_ms, status_code, error, response from webhook_attempts
    where delivery_id = :delivery_id order by attempt"""
)
_EVENT_COLUMNS = ", ".join(RunLogEvent.__struct_fields__)
_EVENT = Sql(f"select {_EVENT_COLUMNS} from events where event_id = :event_id")
_TYPES = ", ".join(f"'{name}'" for name in NAMES)
_EVENTS = Sql(
    f"""select {_EVENT_COLUMNS} from events where event_id > :after and event_id < :before and tenant = :tenant
        and happened_at >= :since and happened_at < :until and event_type in ({_TYPES})
    order by event_id limit :limit"""
)
_HANDLED = Sql(
    """select 1 from webhook_deliveries where subscription_id = :subscription_id and event_id = :event_id
        and status in ('waiting', 'sending', 'delivered') limit 1"""
)
_ENDED = """d.delivery_id in (select o.delivery_id from webhook_deliveries o where o.delivery_id < :before
    and o.status <> 'sending' and (o.status <> 'waiting' or not exists (
        select 1 from webhook_subscriptions s where s.subscription_id = o.subscription_id and s.enabled = 1))
    order by o.delivery_id limit :limit)"""
_PURGE_ATTEMPTS = Sql(f"delete from webhook_attempts as d where {_ENDED}")
_PURGE = Sql(f"delete from webhook_deliveries as d where {_ENDED}")
_ORPHANS = """d.delivery_id in (select o.delivery_id from webhook_deliveries o
    where o.subscription_id = :subscription_id limit :limit)"""
_ORPHAN_ATTEMPTS = Sql(f"delete from webhook_attempts as d where {_ORPHANS}")
_ORPHAN_DELIVERIES = Sql(f"delete from webhook_deliveries as d where {_ORPHANS}")
_BACKLOG = Sql(
    """select count(*), min(d.created_at) from webhook_deliveries d
    join webhook_subscriptions s on s.subscription_id = d.subscription_id
    where d.status = 'waiting' and s.enabled = 1"""
)
_SENDING = Sql("select count(*) from webhook_deliveries where status = 'sending'")
_SUBSCRIPTIONS = Sql("select enabled, count(*) from webhook_subscriptions group by enabled")
_pages: dict[tuple[str, ...], Sql] = {}


def find(tx: Tx, tenant: str, subscription_id: str, delivery_id: str) -> Delivery | None:
    row = tx.row(_ONE, tenant=tenant, subscription_id=subscription_id, delivery_id=delivery_id)
    return delivery_of(row) if row else None


def page(tx: Tx, tenant: str, subscription_id: str, limit: int, wanted: dict[str, Any]) -> list[Delivery]:
    """Newest first. `wanted` may have status, event, created_after, and `before` which it goes on."""
    names = tuple(name for name in _FRAGMENTS if wanted.get(name) is not None)
    sql = _pages.get(names) or _pages.setdefault(names, _page(names))
    params = {name: wanted[name] for name in names}
    rows = tx.rows(sql, tenant=tenant, subscription_id=subscription_id, limit=limit, **params)
    return [delivery_of(row) for row in rows]


def _page(names: tuple[str, ...]) -> Sql:
    where = " and ".join([_OF, *(_FRAGMENTS[name] for name in names)])
    return Sql(
        f"select {DELIVERY_COLUMNS} from webhook_deliveries where {where} order by delivery_id desc limit :limit"
    )


def attempts(tx: Tx, delivery_id: str) -> list[Attempt]:
    """Oldest first."""
    return [Attempt(*row) for row in tx.rows(_ATTEMPTS, delivery_id=delivery_id)]


def event(tx: Tx, event_id: str) -> RunLogEvent | None:
    row = tx.row(_EVENT, event_id=event_id)
    return _event(row) if row else None


def events(tx: Tx, tenant: str, since: int, until: int, after: str, limit: int) -> list[RunLogEvent]:
    """A tenant's events of a span of time that may be events of webhooks, in the order of their ids, after an id."""
    low, high = ids.min_id_at(since - SKEW), ids.min_id_at(until + SKEW)
    span = {"since": since, "until": until, "after": max(after, low), "before": high}
    return [_event(row) for row in tx.rows(_EVENTS, tenant=tenant, limit=limit, **span)]


def handled(tx: Tx, subscription_id: str, event_id: str) -> bool:
    """Whether an event was delivered to a subscription, or will be."""
    return tx.row(_HANDLED, subscription_id=subscription_id, event_id=event_id) is not None


def purge(tx: Tx, before: str, limit: int) -> int:
    """Forget what ended, and what waits for nobody, with ids below `before`; answers how many deliveries."""
    tx.run(_PURGE_ATTEMPTS, before=before, limit=limit)
    return tx.run(_PURGE, before=before, limit=limit)


def purge_of(tx: Tx, subscription_id: str, limit: int) -> int:
    """Forget deliveries of a subscription that is gone; answers how many."""
    tx.run(_ORPHAN_ATTEMPTS, subscription_id=subscription_id, limit=limit)
    return tx.run(_ORPHAN_DELIVERIES, subscription_id=subscription_id, limit=limit)


def figures(tx: Tx) -> dict[str, int]:
    """Subscriptions `enabled` and `disabled`, deliveries `waiting` of enabled ones and `sending`, and the `oldest` that
    waits (microseconds; 0 for none)."""
    subscriptions = {row[0]: int(row[1]) for row in tx.rows(_SUBSCRIPTIONS)}
    waiting, oldest = tx.rows(_BACKLOG)[0]
    sending = tx.rows(_SENDING)[0][0]
    counts = {"enabled": subscriptions.get(1, 0), "disabled": subscriptions.get(0, 0)}
    return counts | {"waiting": int(waiting), "sending": int(sending), "oldest": int(oldest or 0)}


def _event(row: tuple[Any, ...]) -> RunLogEvent:
    *fields, metadata = row
    return RunLogEvent(*fields, metadata=jsontext.load(metadata))  # type: ignore[misc]
