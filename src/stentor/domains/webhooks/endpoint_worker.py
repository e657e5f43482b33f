"""Takes the deliveries of one endpoint from the queue and has them sent, a few at a time.

An endpoint whose last answer was a failure, or slow, gets one delivery at a time out of a pool that only such
endpoints share. So it delays nobody else, however many of its kind there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from stentor.core.db import Database, Tx, locks
from stentor.core.errors import StoreUnavailable
from stentor.domains.webhooks import store
from stentor.domains.webhooks.model import AttemptResult, Delivery, DeliveryDecision, WebhookSubscription

MAX_CONCURRENT_DELIVERIES = 16
"""Deliveries that are on their way to one endpoint at a time."""
SLOW_MS = 2_000
"""Milliseconds above which an endpoint counts as slow."""
log = logging.getLogger(__name__)


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """An attempt's: what came back, what becomes of the delivery, and whether that let another one go."""

    result: AttemptResult
    decision: DeliveryDecision
    has_released_next: bool


ReadBodies = Callable[[list[Delivery]], Awaitable[list[bytes]]]
Deliver = Callable[[WebhookSubscription, Delivery, bytes], Awaitable[DeliveryOutcome | None]]


class AttemptSlots:
    """Sends that may be under way at a time; whoever found none free is woken when one is."""

    def __init__(self, size: int) -> None:
        self.free = size
        self._waiting: set[asyncio.Event] = set()

    def acquire(self, most: int, wake: asyncio.Event) -> int:
        taken = min(most, self.free)
        self.free -= taken
        if not taken and most:
            self._waiting.add(wake)
        return taken

    def release(self, number: int) -> None:
        self.free += number
        if number:
            waiting, self._waiting = self._waiting, set()
            for wake in waiting:
                wake.set()


class EndpointWorker:
    """`bodies` reads what is posted; `send` makes one attempt and writes what came of it, None when not known. `lease`,
    in microseconds, is longer than an attempt can take.
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
        self._send = deliver
        self._lease = lease_us
        self._well, self._ailing = healthy_slots, degraded_slots
        self._wake = asyncio.Event()
        self._more = False
        self._is_degraded = False
        self._closing = False
        self.sending: dict[asyncio.Task[None], Delivery] = {}
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """There is something to take, or there may be."""
        self._more = True
        self._wake.set()

    def close(self) -> asyncio.Task[None]:
        """Take no more; answers the task that ends when nothing is being taken."""
        self._closing = True
        self._wake.set()
        return self._task

    async def _run(self) -> None:
        while not self._closing:
            await self._wake.wait()
            self._wake.clear()
            pool = self._ailing if self._is_degraded else self._well
            lanes = 1 if self._is_degraded else MAX_CONCURRENT_DELIVERIES
            room = (
                pool.acquire(max(0, lanes - len(self.sending)), self._wake) if self._more and not self._closing else 0
            )
            if room:
                await self._take(room, pool)

    async def _take(self, room: int, pool: AttemptSlots) -> None:
        self._more = False
        taken: tuple[WebhookSubscription, list[Delivery]] | None = None
        bodies: list[bytes] = []
        try:
            taken = await self._db.write(lambda tx: self._claim(tx, room), (locks.webhook_lock(self._id),))
            bodies = await self._bodies(taken[1]) if taken and taken[1] else []
        except StoreUnavailable:
            pass  # the next look wakes this courier again; what was taken comes back when its lease ends
        except Exception:
            log.exception("deliveries of webhook %s could not be taken", self._id)
        pool.release(room - len(bodies))
        self._more = self._more or len(bodies) == room
        if taken is not None:
            subscription, deliveries = taken
            for delivery, body in zip(deliveries, bodies, strict=False):
                task = asyncio.create_task(self._deliver_one(subscription, delivery, body, pool))
                self.sending[task] = delivery
                task.add_done_callback(self._after)
        if self._more:
            self._wake.set()

    def _claim(self, tx: Tx, most: int) -> tuple[WebhookSubscription, list[Delivery]] | None:
        subscription = store.find_in_any_tenant(tx, self._id)
        if subscription is None or not subscription.enabled or subscription.hold_until > tx.now:
            return None
        return subscription, store.claim_due(tx, self._id, self._lease, most)

    async def _deliver_one(
        self, subscription: WebhookSubscription, delivery: Delivery, body: bytes, pool: AttemptSlots
    ) -> None:
        try:
            outcome = await self._send(subscription, delivery, body)
        finally:
            pool.release(1)
        if outcome is not None:
            self._is_degraded = not outcome.result.is_success or outcome.result.duration_ms > SLOW_MS
            self._more = self._more or outcome.has_released_next

    def _after(self, task: asyncio.Task[None]) -> None:
        del self.sending[task]
        if self._more:
            self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a delivery to webhook %s broke", self._id, exc_info=error)
