"""The delivery log, and sending again: one delivery, or all that happened since a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.domains.webhooks import listing, model, naming, outbox, service, store
from stentor.domains.webhooks.model import Attempt, Delivery, Subscription

BATCH, MOST_REPLAYED = 500, 10_000
Scope = Literal["undelivered", "all"]


class Replayed(msgspec.Struct, frozen=True):
    """How many deliveries were queued, and the time to go on from when there are more (microseconds)."""

    queued: int
    next_since: int | None


class History:
    """`arrived` hears which subscriptions have something to get."""

    def __init__(self, db: Database, runlog: RunLog, arrived: Callable[[Iterable[str]], None]) -> None:
        self._db = db
        self._runlog = runlog
        self._arrived = arrived

    async def page(
        self, tenant: str, subscription_id: str, limit: int, wanted: dict[str, Any]
    ) -> tuple[list[Delivery], bool]:
        """Newest first, and whether there are more. Raises NotFound."""

        def read(tx: Tx) -> list[Delivery]:
            service.require(tx, tenant, subscription_id)
            return listing.page(tx, tenant, subscription_id, limit + 1, wanted)

        rows = await self._db.read(read)
        return rows[:limit], len(rows) > limit

    async def get(self, tenant: str, subscription_id: str, delivery_id: str) -> tuple[Delivery, list[Attempt]]:
        """Raises NotFound."""
        return await self._db.read(lambda tx: service.delivery(tx, tenant, subscription_id, delivery_id))

    async def replay(self, principal: Principal, subscription_id: str, delivery_id: str) -> Delivery:
        """Deliver an event again that came to its end, under the same message id. Raises NotFound and Conflict."""

        def work(tx: Tx) -> Delivery:
            _ready(service.require(tx, principal.tenant, subscription_id))
            known, _ = service.delivery(tx, principal.tenant, subscription_id, delivery_id)
            if known.ended_at is None:
                raise Conflict(f"The delivery is {known.status}; it has not come to its end.")
            event = listing.event(tx, known.event_id)
            if event is None:
                raise Conflict("The event is not in the run log any more.")
            again = outbox.fresh(subscription_id, known.event, event, tx.now, known.delivery_id)
            self._queue(tx, principal, subscription_id, [again], {"delivery_id": delivery_id})
            return again

        return await self._db.write(work)

    async def replay_since(
        self, principal: Principal, subscription_id: str, since: int, until: int, scope: Scope
    ) -> Replayed:
        """Queue what the webhook subscribes to now and happened in a span of time: what was never delivered, or
        everything. It reads the run log, so what came while the webhook was disabled is found too.
        """
        queued, after = 0, ""
        known = await self._db.read(lambda tx: service.require(tx, principal.tenant, subscription_id))
        _ready(known)
        while queued < MOST_REPLAYED:
            seen = after
            events = await self._db.read(lambda tx: listing.events(tx, known.tenant, since, until, seen, BATCH))  # noqa: B023
            queued += await self._db.write(self._queuing(principal, known, events, scope, since))
            if len(events) < BATCH:
                return Replayed(queued, None)
            after = events[-1].event_id
        return Replayed(queued, events[-1].happened_at)

    def _queuing(
        self, principal: Principal, known: Subscription, events: list[RunLogEvent], scope: Scope, since: int
    ) -> Callable[[Tx], int]:
        names = frozenset(model.meant(known.events))

        def work(tx: Tx) -> int:
            rows = []
            for event in events:
                name = naming.name_of(event)
                if name in names and (scope == "all" or not listing.handled(tx, known.subscription_id, event.event_id)):
                    assert name is not None
                    rows.append(outbox.fresh(known.subscription_id, name, event, tx.now))
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
            store.put(tx, row)
        tx.after_commit(lambda: self._arrived([subscription_id]))


def _ready(subscription: Subscription) -> None:
    if not subscription.enabled:
        raise Conflict("The webhook is disabled: enable it first.")
