"""Claims the due deliveries of one endpoint and sends them, up to 16 concurrently.

An endpoint whose last attempt failed or was slow is degraded: it gets one delivery at a time, from slots that only
degraded endpoints share. So no number of them delays the healthy ones. `dispatcher` owns the workers and the slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from stentor.core.db import Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import StoreUnavailable
from stentor.domains.webhooks import store
from stentor.domains.webhooks.model import AttemptResult, Delivery, DeliveryDecision, WebhookSubscription

MAX_CONCURRENT_DELIVERIES = 16
"""Concurrent attempts to one healthy endpoint."""
SLOW_MS = 2_000
"""Milliseconds above which an attempt makes its endpoint degraded."""
log = logging.getLogger(__name__)


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """An attempt's result, the decision on its delivery, and whether the next one of its subject became due."""

    result: AttemptResult
    decision: DeliveryDecision
    has_released_next: bool


ReadBodies = Callable[[list[Delivery]], Awaitable[list[bytes | None]]]
Deliver = Callable[[WebhookSubscription, Delivery, bytes | None], Awaitable[DeliveryOutcome | None]]


class AttemptSlots:
    """A limit of concurrent attempts. A worker that gets no slot is woken when one is released."""

    def __init__(self, size: int) -> None:
        self.free = size
        self._waiting: set[asyncio.Event] = set()

    def acquire(self, limit: int, wake: asyncio.Event) -> int:
        """Take up to `limit` slots and return how many. If there are none, set `wake` at the next release."""
        acquired = min(limit, self.free)
        self.free -= acquired
        if not acquired and limit:
            self._waiting.add(wake)
        return acquired

    def release(self, count: int) -> None:
        self.free += count
        if count:
            waiting, self._waiting = self._waiting, set()
            for wake in waiting:
                wake.set()


class EndpointWorker:
    """The queue consumer of one endpoint.

    `bodies` reads the request bodies. `deliver` makes one attempt and records its outcome; it returns None if the
    outcome is unknown. `lease_us` must be longer than an attempt can take.
    """

    def __init__(
        self,
        subscription_id: str,
        db: Database,
        bodies: ReadBodies,
        deliver: Deliver,
        lease_us: int,
        healthy_slots: AttemptSlots,
        degraded_slots: AttemptSlots,
    ) -> None:
        self._id = subscription_id
        self._db = db
        self._bodies = bodies
        self._deliver = deliver
        self._lease_us = lease_us
        self._healthy_slots, self._degraded_slots = healthy_slots, degraded_slots
        self._wake = asyncio.Event()
        self._has_more = False
        self._is_degraded = False
        self._is_claiming = False
        self._closing = False
        self.sending: dict[asyncio.Task[None], Delivery] = {}
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Look for due deliveries."""
        self._has_more = True
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether it has no attempt in progress and is about to begin none."""
        return not self._is_claiming and not self.sending

    def close(self) -> asyncio.Task[None]:
        """Claim nothing more and return the task that ends when the last claim has ended."""
        self._closing = True
        self._wake.set()
        return self._task

    async def _run(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            if not self._has_more or self._closing:
                continue
            slots = self._degraded_slots if self._is_degraded else self._healthy_slots
            concurrency = 1 if self._is_degraded else MAX_CONCURRENT_DELIVERIES
            acquired = slots.acquire(max(0, concurrency - len(self.sending)), self._wake)
            if acquired:
                self._is_claiming = True
                await self._claim_and_send(acquired, slots)
                self._is_claiming = False

    async def _claim_and_send(self, acquired: int, slots: AttemptSlots) -> None:
        # Reset before the claim: a wake-up during it may be for a delivery that the claim did not see.
        self._has_more = False
        claimed: tuple[WebhookSubscription, list[Delivery]] | None = None
        bodies: list[bytes | None] = []
        try:
            claimed = await self._db.write(lambda tx: self._claim(tx, acquired), (locks.webhook_lock(self._id),))
            bodies = await self._bodies(claimed[1]) if claimed and claimed[1] else []
        except StoreUnavailable:
            pass  # the next poll wakes this worker again; claimed deliveries are requeued when their leases expire
        except Exception:
            log.exception("webhooks: claim failed webhook=%s", self._id)
        # What the claim did not fill; each delivery that is sent releases its own.
        slots.release(acquired - len(bodies))
        self._has_more = self._has_more or len(bodies) == acquired
        if claimed is not None:
            subscription, deliveries = claimed
            # Not strict: without bodies, because the read failed, nothing is sent.
            for delivery, body in zip(deliveries, bodies, strict=False):
                task = asyncio.create_task(self._deliver_one(subscription, delivery, body, slots))
                self.sending[task] = delivery
                task.add_done_callback(self._on_sent)
        if self._has_more:
            self._wake.set()

    def _claim(self, tx: Tx, limit: int) -> tuple[WebhookSubscription, list[Delivery]] | None:
        subscription = store.find_in_any_tenant(tx, self._id)
        if subscription is None or not subscription.enabled or subscription.hold_until > tx.now:
            return None
        return subscription, store.claim_due(tx, self._id, self._lease_us, limit)

    async def _deliver_one(
        self, subscription: WebhookSubscription, delivery: Delivery, body: bytes | None, slots: AttemptSlots
    ) -> None:
        try:
            outcome = await self._deliver(subscription, delivery, body)
        finally:
            slots.release(1)
        if outcome is not None:
            self._is_degraded = not outcome.result.is_success or outcome.result.duration_ms > SLOW_MS
            self._has_more = self._has_more or outcome.has_released_next

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        del self.sending[task]
        if self._has_more:
            self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("webhooks: delivery failed unexpectedly webhook=%s", self._id, exc_info=error)
