"""Writes a delivery for each subscription to an event, in the event's own transaction.

Without a subscription to any event of a tenant it costs one look into a dictionary and writes nothing.
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
    """Who subscribes to what, in memory: event names to ids of enabled subscriptions, by tenant."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, SubscribersByEvent] = {}
        self.generation = 0
        self.enabled_ids: frozenset[str] = frozenset()

    def subscribers(self, tenant: str) -> SubscribersByEvent | None:
        return self._by_tenant.get(tenant)

    def replace_all(self, subscriptions: Iterable[WebhookSubscription]) -> None:
        """Take all subscriptions of all tenants as they are now."""
        enabled = [one for one in subscriptions if one.enabled]
        found: dict[str, SubscribersByEvent] = {}
        for one in enabled:
            wanted = found.setdefault(one.tenant, {})
            for name in model.expand_events(one.events):
                wanted[name] = (*wanted.get(name, ()), one.subscription_id)
        self._by_tenant = found
        self.enabled_ids = frozenset(one.subscription_id for one in enabled)
        self.generation += 1


class WebhookOutbox:
    """`arrived` hears after the commit which subscriptions have something to get."""

    def __init__(self, index: SubscriptionIndex, notify: Callable[[Iterable[str]], None]) -> None:
        self._view = index
        self._arrived = notify

    def record(self, tx: Tx, tenant: str, events: list[RunLogEvent]) -> None:
        """Called by the run log for all that it appends."""
        wanted = self._view.subscribers(tenant)
        if wanted is None:
            return
        found: set[str] = set()
        for event in events:
            name = payloads.event_name(event)
            if name is None:
                continue
            for subscription_id in wanted.get(name, ()):
                store.insert_delivery(tx, new_delivery(subscription_id, name, event, tx.now))
                found.add(subscription_id)
        if found:
            tx.after_commit(lambda: self._arrived(found))


def new_delivery(
    subscription_id: str, name: str, event: RunLogEvent, now: int, replay_of: str | None = None
) -> Delivery:
    """A delivery that is due at once."""
    return Delivery(
        delivery_id=ids.new_id(),
        tenant=event.tenant,
        subscription_id=subscription_id,
        event_id=event.event_id,
        event=name,
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
