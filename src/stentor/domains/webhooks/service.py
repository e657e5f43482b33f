"""Use cases of subscriptions: made, changed, rotated, tested, deleted. Secrets are sealed at rest and shown once."""

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
"""Subscriptions of one tenant."""


class DeliverFunction(Protocol):
    """Makes an attempt at a delivery that is in hand; None when its outcome is not known."""

    async def __call__(self, subscription: WebhookSubscription, delivery: Delivery, /) -> Any: ...


class WebhookService:
    """`check` refuses an address that can be judged without resolving it; `forget` deletes a webhook's deliveries."""

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
        self._check = check_url
        self._view = index
        self._carry = deliver
        self._lease = lease_us
        self._forget = delete_deliveries

    async def subscribe(
        self, principal: Principal, url: str, events: list[str], description: str, key: IdempotencyKey | None = None
    ) -> tuple[WebhookSubscription, str]:
        """The subscription and its secret. Raises InvalidRequest, Conflict past the most of a tenant, and
        IdempotencyMismatch; the same key and body answer the same, secret included.
        """
        self._check(url)
        asked, secret = model.validate_events(events), sender.new_secret()

        def work(tx: Tx) -> Any:
            if key is not None and (known := idempotency.find_response(tx, key)):
                return known.body
            if len(store.list_subscriptions(tx, principal.tenant)) >= MAX_SUBSCRIPTIONS:
                raise Conflict(f"This tenant has {MAX_SUBSCRIPTIONS} webhooks, which is the most allowed: delete one.")
            made = self._made(principal, url, asked, description, secret, tx.now)
            store.insert(tx, made)
            self._changed(tx, made, "subscribed", principal.name)
            answer = msgspec.to_builtins(made)
            if key is not None:
                idempotency.store_response(tx, key, StoredResponse(201, answer))
            return answer

        kept = msgspec.convert(await self._db.write(work), WebhookSubscription)
        return kept, self._opened(kept)

    def _made(
        self, principal: Principal, url: str, events: list[str], description: str, secret: str, now: int
    ) -> WebhookSubscription:
        made = WebhookSubscription(
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
        return msgspec.structs.replace(made, sealed_secret=self._sealer.seal(secret, *made.seal_context))

    def _opened(self, subscription: WebhookSubscription) -> str:
        secret = self._sealer.open(subscription.sealed_secret, *subscription.seal_context)
        if secret is None:
            raise ServiceUnavailable("The secret was sealed under another master key. Subscribe with another key.")
        return secret

    async def list_subscriptions(self, tenant: str) -> list[WebhookSubscription]:
        """Oldest first."""
        return await self._db.read(lambda tx: store.list_subscriptions(tx, tenant))

    async def get(self, tenant: str, subscription_id: str) -> WebhookSubscription:
        """Raises NotFound, the same for a foreign one as for none."""
        return await self._db.read(lambda tx: require_subscription(tx, tenant, subscription_id))

    async def change(self, principal: Principal, subscription_id: str, changes: dict[str, Any]) -> WebhookSubscription:
        """Any of url, events, description, enabled. Enabling forgets why it was disabled and any wait it asked for."""
        if not changes:
            raise InvalidRequest("Nothing is to be changed: name url, events, description or enabled.")
        if "url" in changes:
            self._check(changes["url"])
        if "events" in changes:
            changes = {**changes, "events": model.validate_events(changes["events"])}
        if changes.get("enabled"):
            changes = {**changes, "disabled_reason": None, "hold_until": 0}
        elif "enabled" in changes:
            changes = {**changes, "disabled_reason": f"Disabled by {principal.name}."}
        return await self._db.write(lambda tx: self._put(tx, principal, subscription_id, changes, "changed"))

    async def rotate(
        self, principal: Principal, subscription_id: str, overlap_us: int
    ) -> tuple[WebhookSubscription, str]:
        """A new secret; the old one signs too for `overlap` microseconds."""
        secret = sender.new_secret()

        def work(tx: Tx) -> WebhookSubscription:
            known = require_subscription(tx, principal.tenant, subscription_id)
            changes: dict[str, Any] = {"sealed_secret": self._sealer.seal(secret, *known.seal_context)}
            changes |= {"old_secret": known.sealed_secret if overlap_us else None}
            changes |= {"old_until": tx.now + overlap_us if overlap_us else None}
            return self._put(tx, principal, subscription_id, changes, "rotated")

        return await self._db.write(work), secret

    def _put(
        self, tx: Tx, principal: Principal, subscription_id: str, changes: dict[str, Any], what: str
    ) -> WebhookSubscription:
        known = require_subscription(tx, principal.tenant, subscription_id)
        changed = msgspec.structs.replace(known, **changes, updated_at=max(tx.now, known.updated_at + 1))
        store.update(tx, changed)
        self._changed(tx, changed, what, principal.name)
        return changed

    async def delete(self, principal: Principal, subscription_id: str) -> None:
        """What waits for it is not sent; its log is gone."""

        def work(tx: Tx) -> None:
            known = require_subscription(tx, principal.tenant, subscription_id)
            store.delete(tx, principal.tenant, subscription_id)
            self._changed(tx, known, "deleted", principal.name)
            tx.after_commit(lambda: self._forget(subscription_id))

        await self._db.write(work)

    async def ping(self, principal: Principal, subscription_id: str) -> tuple[Delivery, list[DeliveryAttempt]]:
        """Deliver webhook.ping now, also to a disabled one; the delivery after its only attempt."""
        drawn = ids.new_id()

        def work(tx: Tx) -> tuple[WebhookSubscription, Delivery]:
            known = require_subscription(tx, principal.tenant, subscription_id)
            meta = {"webhook_id": subscription_id, "by": principal.name}
            draft = EventDraft("webhook_pinged", "webhooks", "Webhook tested.", meta, event_id=drawn)
            self._runlog.append(tx, known.tenant, [draft])
            event = RunLogEvent.from_draft(draft, known.tenant, None, None, tx.now)
            waiting = outbox.new_delivery(subscription_id, model.PING, event, tx.now)
            held = msgspec.structs.replace(waiting, status="sending", epoch=1)
            store.insert_delivery(tx, held, tx.now + self._lease)
            return known, held

        subscription, held = await self._db.write(work)
        await self._carry(subscription, held)
        return await self._db.read(lambda tx: require_delivery(tx, principal.tenant, subscription_id, held.delivery_id))

    def _changed(self, tx: Tx, subscription: WebhookSubscription, what: str, by: str) -> None:
        """Its event, and the view of all subscriptions after the commit. Addresses may hold tokens: the event names
        the host alone."""
        meta = {
            "webhook_id": subscription.subscription_id,
            "change": what,
            "host": urlsplit(subscription.url).hostname,
            "events": subscription.events,
            "enabled": subscription.enabled,
            "by": by,
        }
        self._runlog.append(
            tx, subscription.tenant, [EventDraft("webhook_changed", "webhooks", f"Webhook {what}.", meta)]
        )
        subscriptions = store.list_all_subscriptions(tx)
        tx.after_commit(lambda: self._view.replace_all(subscriptions))


def require_subscription(tx: Tx, tenant: str, subscription_id: str) -> WebhookSubscription:
    """Raises NotFound."""
    found = store.find(tx, tenant, subscription_id)
    if found is None:
        raise NotFound("No webhook has this id.")
    return found


def require_delivery(
    tx: Tx, tenant: str, subscription_id: str, delivery_id: str
) -> tuple[Delivery, list[DeliveryAttempt]]:
    """A delivery with its attempts. Raises NotFound."""
    found = queries.find_delivery(tx, tenant, subscription_id, delivery_id)
    if found is None:
        raise NotFound("No delivery of this webhook has this id.")
    return found, queries.list_attempts(tx, delivery_id)
