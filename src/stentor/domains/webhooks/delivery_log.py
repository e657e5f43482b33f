"""The delivery log, and sending again: one delivery, or all that happened since a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.domains.webhooks import model, outbox, payloads, queries, service, store
from stentor.domains.webhooks.model import Delivery, DeliveryAttempt, WebhookSubscription

REPLAY_BATCH, MAX_REPLAYED = 500, 10_000
ReplayScope = Literal["undelivered", "all"]


class ReplayResult(msgspec.Struct, frozen=True):
    """How many deliveries were queued, and the time to go on from when there are more (microseconds)."""

    queued: int
    next_since: int | None


class DeliveryLog:
    """`arrived` hears which subscriptions have something to get."""

    def __init__(self, db: Database, runlog: RunLog, notify: Callable[[Iterable[str]], None]) -> None:
        self._db = db
        self._runlog = runlog
        self._arrived = notify

    async def list_page(
        self, tenant: str, subscription_id: str, limit: int, filters: dict[str, Any]
    ) -> tuple[list[Delivery], bool]:
        """Newest first, and whether there are more. Raises NotFound."""

        def read(tx: Tx) -> list[Delivery]:
            service.require_subscription(tx, tenant, subscription_id)
            return queries.read_page(tx, tenant, subscription_id, limit + 1, filters)

        rows = await self._db.read(read)
        return rows[:limit], len(rows) > limit

    async def get(self, tenant: str, subscription_id: str, delivery_id: str) -> tuple[Delivery, list[DeliveryAttempt]]:
        """Raises NotFound."""
        return await self._db.read(lambda tx: service.require_delivery(tx, tenant, subscription_id, delivery_id))

    async def replay(self, principal: Principal, subscription_id: str, delivery_id: str) -> Delivery:
        """Deliver an event again that came to its end, under the same message id. Raises NotFound and Conflict."""

        def work(tx: Tx) -> Delivery:
            _require_enabled(service.require_subscription(tx, principal.tenant, subscription_id))
            known, _ = service.require_delivery(tx, principal.tenant, subscription_id, delivery_id)
            if known.ended_at is None:
                raise Conflict(f"The delivery is {known.status}; it has not come to its end.")
            event = queries.find_event(tx, known.event_id)
            if event is None:
                raise Conflict("The event is not in the run log any more.")
            again = outbox.new_delivery(subscription_id, known.event, event, tx.now, known.delivery_id)
            self._queue(tx, principal, subscription_id, [again], {"delivery_id": delivery_id})
            return again

        return await self._db.write(work)

    async def replay_since(
        self, principal: Principal, subscription_id: str, since: int, until: int, scope: ReplayScope
    ) -> ReplayResult:
        """Queue what the webhook subscribes to now and happened in a span of time: what was never delivered, or
        everything. It reads the run log, so what came while the webhook was disabled is found too.
        """
        queued, after = 0, ""
        known = await self._db.read(lambda tx: service.require_subscription(tx, principal.tenant, subscription_id))
        _require_enabled(known)
        while queued < MAX_REPLAYED:
            list_batch = partial(queries.list_events, tenant=known.tenant, since=since, until=until, after=after)
            events = await self._db.read(partial(list_batch, limit=REPLAY_BATCH))
            queued += await self._db.write(self._queuing(principal, known, events, scope, since))
            if len(events) < REPLAY_BATCH:
                return ReplayResult(queued, None)
            after = events[-1].event_id
        return ReplayResult(queued, events[-1].happened_at)

    def _queuing(
        self,
        principal: Principal,
        known: WebhookSubscription,
        events: list[RunLogEvent],
        scope: ReplayScope,
        since: int,
    ) -> Callable[[Tx], int]:
        names = frozenset(model.expand_events(known.events))

        def work(tx: Tx) -> int:
            rows = []
            for event in events:
                name = payloads.event_name(event)
                if name in names and (
                    scope == "all" or not queries.is_handled(tx, known.subscription_id, event.event_id)
                ):
                    assert name is not None
                    rows.append(outbox.new_delivery(known.subscription_id, name, event, tx.now))
            if rows:
                self._queue(tx, principal, known.subscription_id, rows, {"since": since, "scope": scope})
            return len(rows)

        return work

    def _queue(
        self, tx: Tx, principal: Principal, subscription_id: str, rows: list[Delivery], about: dict[str, Any]
    ) -> None:
        meta = {"webhook_id": subscription_id, "queued": len(rows), "by": principal.name, **about}
        draft = EventDraft("webhook_replayed", "webhooks", f"{len(rows)} deliveries queued again.", meta)
        self._runlog.append(tx, principal.tenant, [draft])
        for row in rows:
            store.insert_delivery(tx, row)
        tx.after_commit(lambda: self._arrived([subscription_id]))


def _require_enabled(subscription: WebhookSubscription) -> None:
    if not subscription.enabled:
        raise Conflict("The webhook is disabled: enable it first.")
