"""Queues a delivery for each subscriber of an event, in the transaction that appends the event (outbox pattern).

For a tenant without subscriptions it costs one dictionary lookup and writes nothing. `dispatcher` sends the deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stentor.core import ids
from stentor.core.db import Tx
from stentor.core.runlog import RunLogEvent
from stentor.domains.webhooks import model, payloads, store
from stentor.domains.webhooks.model import Delivery, WebhookSubscription

SubscribersByEvent = dict[str, tuple[str, ...]]


class SubscriptionIndex:
    """In-memory index of the enabled subscriptions: tenant -> event name -> subscription ids.

    `generation` grows with each replacement, so that a reload can tell that it is out of date.
    """

    def __init__(self) -> None:
        self._by_tenant: dict[str, SubscribersByEvent] = {}
        self.generation = 0
        self.enabled_ids: frozenset[str] = frozenset()

    def subscribers(self, tenant: str) -> SubscribersByEvent | None:
        return self._by_tenant.get(tenant)

    def replace_all(self, subscriptions: Iterable[WebhookSubscription]) -> None:
        """Rebuild the index from the subscriptions of all tenants."""
        enabled = [subscription for subscription in subscriptions if subscription.enabled]
        by_tenant: dict[str, SubscribersByEvent] = {}
        for subscription in enabled:
            subscribers = by_tenant.setdefault(subscription.tenant, {})
            for name in model.expand_events(subscription.events):
                subscribers[name] = (*subscribers.get(name, ()), subscription.subscription_id)
        self._by_tenant = by_tenant
        self.enabled_ids = frozenset(subscription.subscription_id for subscription in enabled)
        self.generation += 1

    def reload_after_commit(self, tx: Tx) -> None:
        """Rebuild the index after the commit, from the subscriptions as the transaction leaves them.

        Not before: it decides for other transactions, too, which events get a delivery.
        """
        subscriptions, _ = store.read_all_subscriptions(tx)
        tx.after_commit(lambda: self.replace_all(subscriptions))


class WebhookOutbox:
    """The run log's listener. `notify` gets the ids of subscriptions with new deliveries, after the commit."""

    def __init__(self, index: SubscriptionIndex, notify: Callable[[Iterable[str]], None]) -> None:
        self._index = index
        self._notify = notify

    def record(self, tx: Tx, tenant: str, events: list[RunLogEvent]) -> None:
        """Queue deliveries for events that the run log is appending in this transaction."""
        subscribers = self._index.subscribers(tenant)
        if subscribers is None:
            return
        notified: set[str] = set()
        for event in events:
            name = payloads.event_name(event)
            if name is None:
                continue
            for subscription_id in subscribers.get(name, ()):
                store.insert_delivery(tx, new_delivery(subscription_id, name, event, tx.now))
                notified.add(subscription_id)
        if notified:
            # A worker that is woken before the commit would not see the rows.
            tx.after_commit(lambda: self._notify(notified))


def new_delivery(
    subscription_id: str, name: str, event: RunLogEvent, now: int, replay_of: str | None = None
) -> Delivery:
    """Return a delivery that is due immediately."""
    return Delivery(
        delivery_id=ids.new_id(),
        tenant=event.tenant,
        subscription_id=subscription_id,
        event_id=event.event_id,
        event=name,
        # A ping waits for no other delivery.
        subject="" if name == model.PING else payloads.event_subject(event),
        status="waiting",
        attempts=0,
        epoch=0,
        created_at=now,
        due_at=now,
        ended_at=None,
        last_status=None,
        last_error=None,
        replay_of=replay_of,
    )
