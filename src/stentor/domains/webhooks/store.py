"""SQL of subscriptions and of the delivery queue: claims in order, updates fenced by the epoch."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.db.sql import Params
from stentor.core.errors import CorruptRow
from stentor.domains.webhooks.model import (
    JITTER_RATIO,
    MAX_HOLD_US,
    RETRY_DELAYS_US,
    AttemptResult,
    Delivery,
    DeliveryDecision,
    WebhookSubscription,
)

TABLE = "webhook_subscriptions"
_FIELDS = WebhookSubscription.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ONE = Sql(
    f"select {_COLUMNS} from webhook_subscriptions where tenant = :tenant and subscription_id = :subscription_id"
)
_BY_ID = Sql(f"select {_COLUMNS} from webhook_subscriptions where subscription_id = :subscription_id")
_OF_TENANT = Sql(f"select {_COLUMNS} from webhook_subscriptions where tenant = :tenant order by subscription_id")
_ALL = Sql(f"select {_COLUMNS} from webhook_subscriptions order by subscription_id")
_INSERT = Sql.insert("webhook_subscriptions", _FIELDS)
_UPDATE = Sql(
    f"""update webhook_subscriptions set {", ".join(f"{name} = :{name}" for name in _FIELDS[2:])}
    where subscription_id = :subscription_id and tenant = :tenant"""
)
_DELETE = Sql("delete from webhook_subscriptions where tenant = :tenant and subscription_id = :subscription_id")
_DISABLE = Sql(
    """update webhook_subscriptions set enabled = 0, disabled_reason = :reason, updated_at = :now
    where subscription_id = :subscription_id and enabled = 1"""
)
# Never earlier: attempts run concurrently, and a short Retry-After must not end the pause of a longer one.
_HOLD = Sql(
    """update webhook_subscriptions set hold_until = :until
    where subscription_id = :subscription_id and hold_until < :until"""
)

CLAIM_ROUNDS, CLAIM_LOOKAHEAD = 10, 32
"""How often a claim reads due rows, and how many more than it needs: some may wait behind others of their subject."""
DELIVERY_FIELDS = Delivery.__struct_fields__
DELIVERY_COLUMNS = ", ".join(DELIVERY_FIELDS)
_OPEN = "status in ('waiting', 'sending')"
# The fence: each claim raises the epoch, so an attempt whose lease expired no longer matches.
_HELD = "delivery_id = :delivery_id and status = 'sending' and epoch = :epoch"
DELIVERIES = AppendOnlyTable("webhook_deliveries", (*DELIVERY_FIELDS, "lease_until"))
ATTEMPTS = AppendOnlyTable(
    "webhook_attempts",
    ("delivery_id", "attempt", "started_at", "duration_ms", "status_code", "error", "response"),
)
# The third column is the oldest open delivery of the subject; one without a subject is its own.
_DUE = Sql(
    f"""select d.delivery_id, d.epoch, case when d.subject = '' then d.delivery_id else (
            select min(e.delivery_id) from webhook_deliveries e where e.subscription_id = d.subscription_id
                and e.subject = d.subject and e.{_OPEN}) end
    from webhook_deliveries d
    where d.subscription_id = :subscription_id and d.status = 'waiting' and d.due_at <= :now
    order by d.due_at, d.delivery_id limit :limit"""
)
_SOME_DUE = Sql(
    """select 1 from webhook_deliveries
    where subscription_id = :subscription_id and status = 'waiting' and due_at <= :now limit 1"""
)
_CLAIM = Sql(
    f"""update webhook_deliveries set status = 'sending', epoch = epoch + 1, lease_until = :lease_until
    where delivery_id = :delivery_id and status = 'waiting' and epoch = :epoch returning {DELIVERY_COLUMNS}"""
)
_POSTPONE = Sql(
    """update webhook_deliveries set due_at = (
        select coalesce(h.lease_until, h.due_at) from webhook_deliveries h where h.delivery_id = :head)
    where delivery_id = :delivery_id and status = 'waiting'"""
)
_RELEASE = Sql(
    f"""update webhook_deliveries set due_at = :now where status = 'waiting' and due_at > :now and delivery_id = (
        select min(n.delivery_id) from webhook_deliveries n
        where n.subscription_id = :subscription_id and n.subject = :subject and n.{_OPEN})"""
)
_END_ATTEMPT = Sql(
    f"""update webhook_deliveries set status = :status, attempts = attempts + 1, due_at = :due_at,
        lease_until = null, ended_at = :ended_at, last_status = :last_status, last_error = :last_error
    where {_HELD}"""
)
_REQUEUE = Sql(f"update webhook_deliveries set status = 'waiting', lease_until = null where {_HELD}")
# A lease that ends later than a new one was written while the clock was ahead.
_SHORTEN = Sql("update webhook_deliveries set lease_until = :until where status = 'sending' and lease_until > :until")
_LONGEST_DELAYS = " ".join(
    f"when {attempts} then {int(delay * (1 + JITTER_RATIO))}" for attempts, delay in enumerate((0, *RETRY_DELAYS_US))
)
_LATEST = f"cast(:now as bigint) + case attempts {_LONGEST_DELAYS} else 0 end"
_DUE_SOON = Sql(f"update webhook_deliveries set due_at = {_LATEST} where status = 'waiting' and due_at > {_LATEST}")
_SHORTEN_HOLD = Sql("update webhook_subscriptions set hold_until = :until where hold_until > :until")
_LEASE_EXPIRED = Sql(
    f"""select {DELIVERY_COLUMNS} from webhook_deliveries
    where status = 'sending' and lease_until < :before limit :limit"""
)


def insert(tx: Tx, subscription: WebhookSubscription) -> None:
    tx.run(_INSERT, **_row(subscription))


def update(tx: Tx, subscription: WebhookSubscription) -> None:
    tx.run(_UPDATE, **_row(subscription))


def delete(tx: Tx, tenant: str, subscription_id: str) -> bool:
    """Delete a subscription; its deliveries, which may be many, are deleted later in batches."""
    return tx.run(_DELETE, tenant=tenant, subscription_id=subscription_id) == 1


def disable(tx: Tx, subscription_id: str, reason: str) -> bool:
    """Disable a subscription; return whether it was enabled."""
    return tx.run(_DISABLE, subscription_id=subscription_id, reason=reason, now=tx.now) == 1


def hold_deliveries(tx: Tx, subscription_id: str, until: int) -> None:
    tx.run(_HOLD, subscription_id=subscription_id, until=until)


def find(tx: Tx, tenant: str, subscription_id: str) -> WebhookSubscription | None:
    row = tx.row(_ONE, tenant=tenant, subscription_id=subscription_id)
    return _subscription(row) if row else None


def find_in_any_tenant(tx: Tx, subscription_id: str) -> WebhookSubscription | None:
    """Find a subscription of any tenant. For the service itself, never for a caller."""
    row = tx.row(_BY_ID, subscription_id=subscription_id)
    return _subscription(row) if row else None


def list_subscriptions(tx: Tx, tenant: str) -> list[WebhookSubscription]:
    """Return the subscriptions of a tenant, oldest first."""
    return [_subscription(row) for row in tx.rows(_OF_TENANT, tenant=tenant)]


def read_all_subscriptions(tx: Tx) -> tuple[list[WebhookSubscription], list[CorruptRow]]:
    """Return the subscriptions of all tenants, and the errors of those that are malformed."""
    subscriptions: list[WebhookSubscription] = []
    malformed: list[CorruptRow] = []
    for row in tx.rows(_ALL):
        try:
            subscriptions.append(_subscription(row))
        except CorruptRow as error:
            malformed.append(error)
    return subscriptions, malformed


def insert_delivery(tx: Tx, delivery: Delivery, lease_until: int | None = None) -> None:
    """Insert a delivery, together with all others of the commit."""
    tx.append(DELIVERIES, (*msgspec.structs.astuple(delivery), lease_until))


def has_due(tx: Tx, subscription_id: str) -> bool:
    return tx.row(_SOME_DUE, subscription_id=subscription_id, now=tx.now) is not None


def claim_due(tx: Tx, subscription_id: str, lease_us: int, limit: int) -> list[Delivery]:
    """Claim due deliveries, oldest first.

    One that waits behind another of its subject is postponed to that one's lease or due time, so that not every claim
    reads it again.
    """
    claimed: list[Delivery] = []
    for _ in range(CLAIM_ROUNDS):
        due = tx.rows(_DUE, subscription_id=subscription_id, now=tx.now, limit=limit + CLAIM_LOOKAHEAD)
        for delivery_id, epoch, head in due:
            if head != delivery_id:
                tx.run(_POSTPONE, delivery_id=delivery_id, head=head)
            elif len(claimed) < limit:
                key = {"delivery_id": delivery_id, "epoch": epoch}
                claimed += [to_delivery(row) for row in tx.rows(_CLAIM, **key, lease_until=tx.now + lease_us)]
        if len(claimed) == limit or len(due) < limit + CLAIM_LOOKAHEAD:
            break
    return claimed


def record_attempt(tx: Tx, delivery: Delivery, result: AttemptResult, decision: DeliveryDecision) -> bool:
    """Record an attempt and its decision; return False if another process has claimed the delivery since."""
    updated = tx.run(
        _END_ATTEMPT,
        delivery_id=delivery.delivery_id,
        epoch=delivery.epoch,
        status=decision.status,
        due_at=decision.due_at or delivery.due_at,
        ended_at=None if decision.status == "waiting" else tx.now,
        last_status=result.status_code,
        last_error=result.error,
    )
    if not updated:
        return False
    row = (delivery.delivery_id, delivery.attempts + 1, result.started_at, result.duration_ms)
    tx.append(ATTEMPTS, (*row, result.status_code, result.error, result.response))
    return True


def release_next(tx: Tx, delivery: Delivery) -> bool:
    """Make the next delivery of the subject due; return whether one was waiting."""
    if not delivery.subject:
        return False
    return tx.run(_RELEASE, subscription_id=delivery.subscription_id, subject=delivery.subject, now=tx.now) == 1


def requeue(tx: Tx, deliveries: list[Delivery]) -> int:
    """Requeue deliveries that were not sent, or whose result is unknown, without counting an attempt."""
    return sum(tx.run(_REQUEUE, delivery_id=d.delivery_id, epoch=d.epoch) for d in deliveries)


def bring_back(tx: Tx, lease_us: int) -> None:
    """After the clock was set back: let no lease end later than `lease_us` from now, and no attempt wait too long.

    A Retry-After still counts where it holds all deliveries of the webhook, for a day at most.
    """
    tx.run(_SHORTEN_HOLD, until=tx.now + MAX_HOLD_US)
    tx.run(_SHORTEN, until=tx.now + lease_us)
    tx.run(_DUE_SOON, now=tx.now)


def list_lease_expired(tx: Tx, before: int, limit: int) -> list[Delivery]:
    """Return deliveries whose lease ended before a time."""
    return [to_delivery(row) for row in tx.rows(_LEASE_EXPIRED, before=before, limit=limit)]


def to_delivery(row: tuple[Any, ...]) -> Delivery:
    return Delivery(*row)


def _row(subscription: WebhookSubscription) -> Params:
    values = msgspec.structs.asdict(subscription)
    return values | {"events": jsontext.dump(subscription.events), "enabled": int(subscription.enabled)}


def _subscription(row: tuple[Any, ...]) -> WebhookSubscription:
    """Raises CorruptRow; a disabled one whose events cannot be read has none."""
    values = dict(zip(_FIELDS, row, strict=True))
    values["enabled"] = bool(values["enabled"])
    try:
        events = jsontext.load(values["events"])
        return msgspec.convert(values | {"events": events}, WebhookSubscription)
    except msgspec.MsgspecError as error:
        if not values["enabled"]:
            return msgspec.convert(values | {"events": []}, WebhookSubscription)
        text = f"The stored webhook {values['subscription_id']!r} is malformed: {error}."
        raise CorruptRow(text, TABLE, (values["tenant"], values["subscription_id"])) from error
