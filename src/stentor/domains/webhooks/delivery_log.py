"""Reads the delivery log and replays deliveries: one of them, or all events since a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.db.sql import Params
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.domains.webhooks import model, outbox, payloads, queries, service, store
from stentor.domains.webhooks.model import Delivery, DeliveryAttempt, DeliveryFilter, WebhookSubscription

REPLAY_BATCH, MAX_REPLAYED = 500, 10_000
ReplayScope = Literal["undelivered", "all"]


class ReplayResult(msgspec.Struct, frozen=True):
    """The number of queued deliveries, and the time to continue from if there are more (microseconds)."""

    queued: int
    next_since: int | None


class DeliveryLog:
    """The use cases of deliveries. `notify` gets the ids of subscriptions with new deliveries, after the commit."""

    def __init__(self, db: Database, runlog: RunLog, notify: Callable[[Iterable[str]], None]) -> None:
        self._db = db
        self._runlog = runlog
        self._notify = notify

    async def list_page(
        self, tenant: str, subscription_id: str, limit: int, filters: DeliveryFilter
    ) -> tuple[list[Delivery], bool]:
        """Return a page, newest first, and whether there are more. Raises NotFound."""

        def read(tx: Tx) -> list[Delivery]:
            service.require_subscription(tx, tenant, subscription_id)
            return queries.read_page(tx, tenant, subscription_id, limit + 1, filters)

        rows = await self._db.read(read)
        return rows[:limit], len(rows) > limit

    async def get(self, tenant: str, subscription_id: str, delivery_id: str) -> tuple[Delivery, list[DeliveryAttempt]]:
        """Return a delivery with its attempts. Raises NotFound."""
        return await self._db.read(lambda tx: service.require_delivery(tx, tenant, subscription_id, delivery_id))

    async def replay(self, principal: Principal, subscription_id: str, delivery_id: str) -> Delivery:
        """Queue the event of an ended delivery again, under the same message id.

        Raises NotFound, and Conflict if the webhook is disabled, the delivery is open or its event was purged.
        """

        def work(tx: Tx) -> Delivery:
            _require_enabled(service.require_subscription(tx, principal.tenant, subscription_id))
            delivery, _ = service.require_delivery(tx, principal.tenant, subscription_id, delivery_id)
            if delivery.ended_at is None:
                raise Conflict(f"The delivery is {delivery.status}. Replay it when it is delivered or failed.")
            event = queries.find_event(tx, delivery.event_id)
            if event is None:
                raise Conflict("The event is no longer in the run log.")
            replay = outbox.new_delivery(subscription_id, delivery.event, event, tx.now, delivery.delivery_id)
            self._queue(tx, principal, subscription_id, [replay], {"delivery_id": delivery_id})
            return replay

        return await self._db.write(work)

    async def replay_since(
        self, principal: Principal, subscription_id: str, since: int, until: int, scope: ReplayScope
    ) -> ReplayResult:
        """Queue the events from `since` up to `until` (microseconds) that the webhook subscribes to now.

        `scope` selects the events that were never delivered, or all. Reads the run log, so it includes events from
        while the webhook was disabled. Stops after about MAX_REPLAYED deliveries. Raises NotFound and Conflict.
        """
        queued, after, reached = 0, "", 0
        subscription = await self._db.read(
            lambda tx: service.require_subscription(tx, principal.tenant, subscription_id)
        )
        _require_enabled(subscription)
        while queued < MAX_REPLAYED:
            list_batch = partial(queries.list_events, tenant=subscription.tenant, since=since, until=until, after=after)
            events = await self._db.read(partial(list_batch, limit=REPLAY_BATCH))
            # One transaction per batch: a replay of thousands must not block other writers.
            queued += await self._db.write(self._queue_events(principal, subscription, events, scope, since))
            if len(events) < REPLAY_BATCH:
                return ReplayResult(queued, None)
            after, reached = events[-1].event_id, events[-1].happened_at
        # Pages are ordered by id, which is chosen before the time: the remaining events may be older than the last one.
        rest = await self._db.read(
            lambda tx: queries.find_earliest_after(tx, subscription.tenant, since, until, after, reached)
        )
        return ReplayResult(queued, min(reached, rest or reached))

    def _queue_events(
        self,
        principal: Principal,
        subscription: WebhookSubscription,
        events: list[RunLogEvent],
        scope: ReplayScope,
        since: int,
    ) -> Callable[[Tx], int]:
        names = frozenset(model.expand_events(subscription.events))

        def work(tx: Tx) -> int:
            rows = []
            for event in events:
                name = payloads.event_name(event)
                if name in names and (
                    scope == "all" or not queries.is_handled(tx, subscription.subscription_id, event.event_id)
                ):
                    assert name is not None
                    rows.append(outbox.new_delivery(subscription.subscription_id, name, event, tx.now))
            if rows:
                self._queue(tx, principal, subscription.subscription_id, rows, {"since": since, "scope": scope})
            return len(rows)

        return work

    def _queue(self, tx: Tx, principal: Principal, subscription_id: str, rows: list[Delivery], context: Params) -> None:
        meta = {"webhook_id": subscription_id, "queued": len(rows), "by": principal.name, **context}
        draft = EventDraft("webhook_replayed", "webhooks", f"{len(rows)} deliveries queued again.", meta)
        self._runlog.append(tx, principal.tenant, [draft])
        for row in rows:
            store.insert_delivery(tx, row)
        # After the commit: the worker would not find the rows before.
        tx.after_commit(lambda: self._notify([subscription_id]))


def _require_enabled(subscription: WebhookSubscription) -> None:
    if not subscription.enabled:
        raise Conflict("The webhook is disabled. Enable it first.")
