"""SQL of the delivery log (pages, attempts, events, deletion) and the webhooks' metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import msgspec
from prometheus_client.core import Metric

from stentor.core import ids
from stentor.core.clock import HOUR, SECOND, format_iso
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.core.metrics import counter_family, gauge_family, labeled_counter_family, labeled_gauge_family
from stentor.core.runlog import RunLogEvent, decode_event
from stentor.domains.webhooks.model import Delivery, DeliveryAttempt, DeliveryFilter
from stentor.domains.webhooks.payloads import EVENT_NAMES
from stentor.domains.webhooks.store import DELIVERY_COLUMNS, to_delivery

ATTEMPT_RESULTS = ("delivered", "retried", "failed")
MAX_CLOCK_SKEW_US = HOUR
"""Largest assumed difference between the clocks behind ids and timestamps."""
_WHERE = "tenant = :tenant and subscription_id = :subscription_id"
_FIND_DELIVERY = Sql(f"select {DELIVERY_COLUMNS} from webhook_deliveries where {_WHERE} and delivery_id = :delivery_id")
_FILTERS = {
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
_TYPES = ", ".join(f"'{name}'" for name in EVENT_NAMES)
_EVENTS = Sql(
    f"""select {_EVENT_COLUMNS} from events where event_id > :after and event_id < :before and tenant = :tenant
        and happened_at >= :since and happened_at < :until and event_type in ({_TYPES})
    order by event_id limit :limit"""
)
_EARLIEST = Sql(
    f"""select min(happened_at) from events where event_id > :after and event_id < :before and tenant = :tenant
        and happened_at >= :since and happened_at < :until and event_type in ({_TYPES})"""
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
    where o.subscription_id = :subscription_id order by o.delivery_id limit :limit)"""
_ORPHAN_ATTEMPTS = Sql(f"delete from webhook_attempts as d where {_ORPHANS}")
_ORPHAN_DELIVERIES = Sql(f"delete from webhook_deliveries as d where {_ORPHANS}")
_BACKLOG = Sql(
    """select count(*), min(d.created_at) from webhook_deliveries d
    join webhook_subscriptions s on s.subscription_id = d.subscription_id
    where d.status = 'waiting' and s.enabled = 1"""
)
_SENDING = Sql("select count(*) from webhook_deliveries where status = 'sending'")
_SUBSCRIPTIONS = Sql("select enabled, count(*) from webhook_subscriptions group by enabled")
MAX_COUNTED_DELIVERIES = 1_000
"""Counts of a backlog stop at one more than this."""
_COUNT_WAITING = Sql(
    f"""select count(*) from (select 1 from webhook_deliveries where subscription_id = :subscription_id
        and tenant = :tenant and status = 'waiting' limit {MAX_COUNTED_DELIVERIES + 1}) as counted"""
)
_FIND_NEXT_DUE = Sql(
    """select created_at from webhook_deliveries where subscription_id = :subscription_id and tenant = :tenant
    and status = 'waiting' order by due_at, delivery_id limit 1"""
)
# Counts only the newest ones, or the cost would grow with the log; a delivery that waits for a retry has failed before.
_FIND_FAILURES = Sql(
    f"""select count(*), max(delivery_id) from (select delivery_id, status, attempts from webhook_deliveries
        where {_WHERE} order by delivery_id desc limit {MAX_COUNTED_DELIVERIES}) as newest
    where status = 'failed' or (status <> 'delivered' and attempts > 0)"""
)
_COUNT_DISABLED = Sql(
    "select count(*) from webhook_subscriptions where tenant = :tenant and disabled_reason is not null"
)


class WebhookBacklog(msgspec.Struct, frozen=True):
    """Waiting deliveries. `since` is the time of the next one's event, in ISO 8601."""

    count: int
    since: str | None


def find_delivery(tx: Tx, tenant: str, subscription_id: str, delivery_id: str) -> Delivery | None:
    row = tx.row(_FIND_DELIVERY, tenant=tenant, subscription_id=subscription_id, delivery_id=delivery_id)
    return to_delivery(row) if row else None


def read_page(tx: Tx, tenant: str, subscription_id: str, limit: int, filters: DeliveryFilter) -> list[Delivery]:
    """Return a page, newest first."""
    names = tuple(name for name in _FILTERS if getattr(filters, name) is not None)
    params = {name: getattr(filters, name) for name in names}
    rows = tx.rows(_page_sql(names), tenant=tenant, subscription_id=subscription_id, limit=limit, **params)
    return [to_delivery(row) for row in rows]


@cache
def _page_sql(names: tuple[str, ...]) -> Sql:
    where = " and ".join([_WHERE, *(_FILTERS[name] for name in names)])
    return Sql(
        f"select {DELIVERY_COLUMNS} from webhook_deliveries where {where} order by delivery_id desc limit :limit"
    )


def list_attempts(tx: Tx, delivery_id: str) -> list[DeliveryAttempt]:
    """Return the attempts of a delivery, oldest first."""
    return [DeliveryAttempt(*row) for row in tx.rows(_ATTEMPTS, delivery_id=delivery_id)]


def read_backlogs(tx: Tx, tenant: str, subscription_ids: Iterable[str]) -> dict[str, WebhookBacklog]:
    """Return the backlog of each subscription."""
    backlogs = {}
    for subscription_id in subscription_ids:
        params = {"tenant": tenant, "subscription_id": subscription_id}
        count = int(tx.rows(_COUNT_WAITING, **params)[0][0])
        row = tx.row(_FIND_NEXT_DUE, **params) if count else None
        backlogs[subscription_id] = WebhookBacklog(count, format_iso(row[0]) if row else None)
    return backlogs


def read_failures(tx: Tx, tenant: str, subscription_id: str) -> tuple[int, Delivery | None]:
    """Count the deliveries of a subscription whose last attempt failed, and return the newest of them."""
    count, delivery_id = tx.rows(_FIND_FAILURES, tenant=tenant, subscription_id=subscription_id)[0]
    return int(count), find_delivery(tx, tenant, subscription_id, delivery_id) if count else None


def count_disabled(tx: Tx, tenant: str) -> int:
    """Count the disabled webhooks, whether by failures or by an admin."""
    return int(tx.rows(_COUNT_DISABLED, tenant=tenant)[0][0])


def find_event(tx: Tx, event_id: str) -> RunLogEvent | None:
    """Raises CorruptRecord."""
    row = tx.row(_EVENT, event_id=event_id)
    try:
        return decode_event(row) if row else None
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The event {event_id!r} of the run log is malformed: {error}.") from error


def list_events(tx: Tx, tenant: str, since: int, until: int, after: str, limit: int) -> list[RunLogEvent]:
    """Return run log events of a tenant in a time range that webhooks may have, by id, after the id `after`."""
    # Ids carry the clock of the process, `happened_at` that of the database: hence the margin.
    low, high = ids.min_id_at(since - MAX_CLOCK_SKEW_US), ids.min_id_at(until + MAX_CLOCK_SKEW_US)
    window = {"since": since, "until": until, "after": max(after, low), "before": high}
    return [decode_event(row) for row in tx.rows(_EVENTS, tenant=tenant, limit=limit, **window)]


def find_earliest_after(tx: Tx, tenant: str, since: int, until: int, after: str, reached: int) -> int | None:
    """Return when the earliest event of `list_events` after the id `after` happened, or None without one.

    `reached` is when the event `after` happened; only those that may have happened before it are looked at.
    """
    window = {"since": since, "until": until, "after": after, "before": ids.min_id_at(reached + MAX_CLOCK_SKEW_US)}
    row = tx.row(_EARLIEST, tenant=tenant, **window)
    return row[0] if row else None


def is_handled(tx: Tx, subscription_id: str, event_id: str) -> bool:
    """Return whether an event was delivered to a subscription or still will be."""
    return tx.row(_HANDLED, subscription_id=subscription_id, event_id=event_id) is not None


def purge_ended(tx: Tx, before: str, limit: int) -> int:
    """Delete ended deliveries, and waiting ones of disabled webhooks, with ids below `before`; return how many."""
    # Attempts first: both statements select by the deliveries, which the second one deletes.
    tx.run(_PURGE_ATTEMPTS, before=before, limit=limit)
    return tx.run(_PURGE, before=before, limit=limit)


def purge_subscription(tx: Tx, subscription_id: str, limit: int) -> int:
    """Delete deliveries of a deleted subscription; return how many."""
    tx.run(_ORPHAN_ATTEMPTS, subscription_id=subscription_id, limit=limit)
    return tx.run(_ORPHAN_DELIVERIES, subscription_id=subscription_id, limit=limit)


def count_deliveries(tx: Tx) -> dict[str, int]:
    """Return counts: subscriptions `enabled` and `disabled`, deliveries `waiting` (of enabled ones) and `sending`.

    `oldest` is the creation time of the oldest waiting delivery in microseconds, 0 if there is none.
    """
    subscriptions = {row[0]: int(row[1]) for row in tx.rows(_SUBSCRIPTIONS)}
    waiting, oldest = tx.rows(_BACKLOG)[0]
    sending = tx.rows(_SENDING)[0][0]
    counts = {"enabled": subscriptions.get(1, 0), "disabled": subscriptions.get(0, 0)}
    return counts | {"waiting": int(waiting), "sending": int(sending), "oldest": int(oldest or 0)}


def collect_metrics(tx: Tx, counts: Mapping[str, int]) -> list[Metric]:
    """Return the metrics; `counts` are those of the dispatcher, by attempt result and `disabled`."""
    stored = count_deliveries(tx)
    attempts = {(result,): counts.get(result, 0) for result in ATTEMPT_RESULTS}
    states = {state: stored[state] for state in ("enabled", "disabled")}
    disabled = counts.get("disabled", 0)
    oldest = (tx.now - stored["oldest"]) / SECOND if stored["oldest"] else 0.0
    return [
        gauge_family("stentor_webhook_backlog", "Waiting deliveries of enabled webhooks.", stored["waiting"]),
        gauge_family("stentor_webhook_oldest_seconds", "Age of the oldest waiting delivery.", oldest),
        gauge_family("stentor_webhook_sending", "Deliveries being sent.", stored["sending"]),
        labeled_counter_family("stentor_webhook_attempts", "Attempts since the start.", ("result",), attempts),
        counter_family("stentor_webhooks_disabled", "Webhooks disabled by the service.", disabled),
        labeled_gauge_family("stentor_webhooks", "Webhooks by whether they are enabled.", "state", states),
    ]
