"""Manages webhook subscriptions: subscribe, change, rotate the secret, ping, delete.

Secrets are sealed at rest and returned only when they are created. `delivery_log` reads and replays deliveries,
`dispatcher` makes them, `operations` is the API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.db import Database, Tx, idempotency
from stentor.core.db.idempotency import IdempotencyKey, StoredResponse
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.core.security.sealing import Sealer
from stentor.domains.webhooks import model, outbox, queries, sender, store
from stentor.domains.webhooks.model import Delivery, DeliveryAttempt, WebhookSubscription
from stentor.domains.webhooks.outbox import SubscriptionIndex

MAX_SUBSCRIPTIONS = 100
"""Maximum per tenant."""


class DeliverFunction(Protocol):
    """Makes one attempt at a leased delivery; returns None if the outcome is unknown."""

    async def __call__(self, subscription: WebhookSubscription, delivery: Delivery, /) -> Any: ...


class WebhookService:
    """The use cases of subscriptions.

    `check_url` raises InvalidRequest for a URL that is forbidden without resolving its name. `delete_deliveries`
    deletes a webhook's deliveries in the background.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        sealer: Sealer,
        check_url: Callable[[str], None],
        index: SubscriptionIndex,
        deliver: DeliverFunction,
        lease_us: int,
        delete_deliveries: Callable[[str], None],
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._sealer = sealer
        self._check_url = check_url
        self._index = index
        self._deliver = deliver
        self._lease_us = lease_us
        self._delete_deliveries = delete_deliveries

    async def subscribe(
        self, principal: Principal, url: str, events: list[str], description: str, key: IdempotencyKey | None = None
    ) -> tuple[WebhookSubscription, str]:
        """Create a subscription and return it with its secret.

        The same idempotency key and body return the same subscription and secret. Raises InvalidRequest, Conflict when
        the tenant has MAX_SUBSCRIPTIONS, and IdempotencyMismatch.
        """
        self._check_url(url)
        event_names, secret = model.validate_events(events), sender.new_secret()

        def work(tx: Tx) -> Any:
            if key is not None and (stored := idempotency.find_response(tx, key)):
                return stored.body
            if len(store.list_subscriptions(tx, principal.tenant)) >= MAX_SUBSCRIPTIONS:
                raise Conflict(f"This tenant has {MAX_SUBSCRIPTIONS} webhooks, which is the most allowed: delete one.")
            created = self._new_subscription(principal, url, event_names, description, secret, tx.now)
            store.insert(tx, created)
            self._record_change(tx, created, "subscribed", principal.name)
            response = msgspec.to_builtins(created)
            if key is not None:
                # The response holds the sealed secret only: a repeated request opens it again below.
                idempotency.store_response(tx, key, StoredResponse(201, response))
            return response

        subscription = msgspec.convert(await self._db.write(work), WebhookSubscription)
        # Not `secret`: a repeated request gets the one that was stored.
        stored_secret = self._sealer.open(subscription.sealed_secret, *subscription.seal_context)
        if stored_secret is None:
            raise ServiceUnavailable("The secret was sealed under another master key. Use another idempotency key.")
        return subscription, stored_secret

    def _new_subscription(
        self, principal: Principal, url: str, events: list[str], description: str, secret: str, now: int
    ) -> WebhookSubscription:
        subscription = WebhookSubscription(
            subscription_id=ids.new_id(),
            tenant=principal.tenant,
            url=url,
            events=events,
            description=description,
            enabled=True,
            disabled_reason=None,
            sealed_secret="",
            old_secret=None,
            old_until=None,
            hold_until=0,
            created_by=principal.name,
            created_at=now,
            updated_at=now,
        )
        sealed_secret = self._sealer.seal(secret, *subscription.seal_context)
        return msgspec.structs.replace(subscription, sealed_secret=sealed_secret)

    async def list_subscriptions(self, tenant: str) -> list[tuple[WebhookSubscription, int, Delivery | None]]:
        """Return a tenant's subscriptions, oldest first, each with the count and the newest of its failures."""

        def read(tx: Tx) -> list[tuple[WebhookSubscription, int, Delivery | None]]:
            subscriptions = store.list_subscriptions(tx, tenant)
            return [(one, *queries.read_failures(tx, tenant, one.subscription_id)) for one in subscriptions]

        return await self._db.read(read)

    async def get(self, tenant: str, subscription_id: str) -> WebhookSubscription:
        """Return a subscription. Raises NotFound, also for one of another tenant."""
        return await self._db.read(lambda tx: require_subscription(tx, tenant, subscription_id))

    async def change(self, principal: Principal, subscription_id: str, changes: dict[str, Any]) -> WebhookSubscription:
        """Change any of url, events, description and enabled.

        Enabling clears `disabled_reason` and `hold_until`. Raises InvalidRequest and NotFound.
        """
        if not changes:
            raise InvalidRequest("The request changes nothing. Set url, events, description or enabled.")
        if "url" in changes:
            self._check_url(changes["url"])
        if "events" in changes:
            changes = {**changes, "events": model.validate_events(changes["events"])}
        if changes.get("enabled"):
            changes = {**changes, "disabled_reason": None, "hold_until": 0}
        elif "enabled" in changes:
            changes = {**changes, "disabled_reason": f"Disabled by {principal.name}."}
        return await self._db.write(lambda tx: self._update(tx, principal, subscription_id, changes, "changed"))

    async def rotate(
        self, principal: Principal, subscription_id: str, overlap_us: int
    ) -> tuple[WebhookSubscription, str]:
        """Create a new secret and return it. The old one also signs for `overlap_us` microseconds.

        Earlier ones continue until the end of their overlap; 0 ends all. Raises NotFound and Conflict.
        """
        secret = sender.new_secret()

        def work(tx: Tx) -> WebhookSubscription:
            current = require_subscription(tx, principal.tenant, subscription_id)
            changes = model.keep_old_secrets(current, overlap_us, tx.now)
            changes["sealed_secret"] = self._sealer.seal(secret, *current.seal_context)
            return self._update(tx, principal, subscription_id, changes, "rotated")

        return await self._db.write(work), secret

    def _update(
        self, tx: Tx, principal: Principal, subscription_id: str, changes: dict[str, Any], change: str
    ) -> WebhookSubscription:
        current = require_subscription(tx, principal.tenant, subscription_id)
        # Strictly increasing, even if the clock steps back.
        updated = msgspec.structs.replace(current, **changes, updated_at=max(tx.now, current.updated_at + 1))
        store.update(tx, updated)
        self._record_change(tx, updated, change, principal.name)
        return updated

    async def delete(self, principal: Principal, subscription_id: str) -> None:
        """Delete a subscription with its delivery log; queued deliveries are not sent. Raises NotFound."""

        def work(tx: Tx) -> None:
            subscription = require_subscription(tx, principal.tenant, subscription_id)
            store.delete(tx, principal.tenant, subscription_id)
            self._record_change(tx, subscription, "deleted", principal.name)
            # After the commit: a rolled-back deletion must leave the log alone.
            tx.after_commit(lambda: self._delete_deliveries(subscription_id))

        await self._db.write(work)

    async def ping(self, principal: Principal, subscription_id: str) -> tuple[Delivery, list[DeliveryAttempt]]:
        """Deliver webhook.ping now, also to a disabled webhook, and return the delivery after its only attempt.

        Raises NotFound.
        """
        # Drawn outside: the transaction may run more than once.
        event_id = ids.new_id()

        def work(tx: Tx) -> tuple[WebhookSubscription, Delivery]:
            subscription = require_subscription(tx, principal.tenant, subscription_id)
            meta = {"webhook_id": subscription_id, "by": principal.name}
            draft = EventDraft("webhook_pinged", "webhooks", "Webhook tested.", meta, event_id=event_id)
            self._runlog.append(tx, subscription.tenant, [draft])
            event = RunLogEvent.from_draft(draft, subscription.tenant, None, None, tx.now)
            waiting = outbox.new_delivery(subscription_id, model.PING, event, tx.now)
            # Inserted as already leased, so that no worker claims it as well.
            leased = msgspec.structs.replace(waiting, status="sending", epoch=1)
            store.insert_delivery(tx, leased, tx.now + self._lease_us)
            return subscription, leased

        subscription, delivery = await self._db.write(work)
        await self._deliver(subscription, delivery)
        return await self._db.read(
            lambda tx: require_delivery(tx, principal.tenant, subscription_id, delivery.delivery_id)
        )

    def _record_change(self, tx: Tx, subscription: WebhookSubscription, change: str, by: str) -> None:
        """Append the run log event, and update the index of subscriptions after the commit."""
        meta = {
            "webhook_id": subscription.subscription_id,
            "change": change,
            # The host only: the rest of a URL may hold tokens.
            "host": urlsplit(subscription.url).hostname,
            "events": subscription.events,
            "enabled": subscription.enabled,
            "by": by,
        }
        message = f"Webhook to {meta['host']} {change}."
        self._runlog.append(tx, subscription.tenant, [EventDraft("webhook_changed", "webhooks", message, meta)])
        self._index.reload_after_commit(tx)


def require_subscription(tx: Tx, tenant: str, subscription_id: str) -> WebhookSubscription:
    """Return a tenant's subscription. Raises NotFound."""
    subscription = store.find(tx, tenant, subscription_id)
    if subscription is None:
        raise NotFound("No webhook has this id.")
    return subscription


def require_delivery(
    tx: Tx, tenant: str, subscription_id: str, delivery_id: str
) -> tuple[Delivery, list[DeliveryAttempt]]:
    """Return a delivery with its attempts. Raises NotFound."""
    delivery = queries.find_delivery(tx, tenant, subscription_id, delivery_id)
    if delivery is None:
        raise NotFound("No delivery of this webhook has this id.")
    return delivery, queries.list_attempts(tx, delivery_id)
