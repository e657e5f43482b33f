"""Carries deliveries out: at least once, in the order of their subject, whatever is killed in between.

The rows are the truth. A delivery that was in somebody's hands when a process died goes back into the queue when its
lease ends, or at the start when no other process can have it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from stentor.core import ids
from stentor.core.clock import DAY
from stentor.core.db import Database, Tx, locks
from stentor.core.db.polling import PollQuery
from stentor.core.errors import ServiceUnavailable, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.security.sealing import Sealer
from stentor.core.timers import sleep_until_tick
from stentor.domains.webhooks import model, payloads, queries, store
from stentor.domains.webhooks.endpoint_worker import AttemptSlots, DeliveryOutcome, EndpointWorker
from stentor.domains.webhooks.model import AttemptResult, Delivery, DeliveryDecision, WebhookSubscription
from stentor.domains.webhooks.outbox import SubscriptionIndex
from stentor.domains.webhooks.sender import WebhookSender

HEALTHY_SLOTS, DEGRADED_SLOTS = 256, 64
"""Attempts under way at a time: to endpoints that answer well, and to the others."""
POLL_SECONDS, OUTAGE_RETRY_SECONDS, SHUTDOWN_SECONDS = 1.0, 1.0, 5.0
PURGE_EVERY_POLLS = 3_600
"""Looks."""
BATCH = 500
MAX_TIME = 2**62
log = logging.getLogger(__name__)

COUNT_NAMES = {"waiting": "retried"}
ReadTaskResult = Callable[[Tx, str, str], str | None]


class DeliveryDispatcher:
    """`result_of` reads a completed task's result as JSON text; `shared`: other processes deliver from this database,
    and take up a delivery that was in hand when its lease ends. `lease` and `retention` are in microseconds. `counts`:
    attempts by what became of them, and webhooks `disabled`, since the start.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        sealer: Sealer,
        index: SubscriptionIndex,
        sender: WebhookSender,
        read_task_result: ReadTaskResult,
        lease_us: int,
        *,
        shared: bool,
        retention_us: int = 30 * DAY,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._sealer = sealer
        self._view = index
        self._sender = sender
        self._result_of = read_task_result
        self.lease_us = lease_us
        self._shared = shared
        self._retention = retention_us
        self._well, self._ailing = AttemptSlots(HEALTHY_SLOTS), AttemptSlots(DEGRADED_SLOTS)
        self._workers: dict[str, EndpointWorker] = {}
        self._watch: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def start(self) -> int:
        """Take up what an earlier process left; answers how many deliveries it had in hand."""
        found = 0
        while not self._shared and (
            batch := await self._db.read(lambda tx: store.list_lease_expired(tx, MAX_TIME, BATCH))
        ):
            found += await self._db.write(_requeue_all(batch))
        self._watch = asyncio.create_task(self._run())
        self.wake_workers(self._view.enabled_ids)
        return found

    async def stop(self) -> None:
        """Take no more, let what is under way come to its end if that is soon, and give the rest back."""
        self._closing.set()
        background = [*self._forgetting, *([self._watch] if self._watch else [])]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        couriers = list(self._workers.values())
        await asyncio.gather(*(courier.close() for courier in couriers), return_exceptions=True)
        sending = {task: delivery for courier in couriers for task, delivery in courier.sending.items()}
        if not sending:
            return
        await asyncio.wait(sending, timeout=SHUTDOWN_SECONDS)
        left = [delivery for task, delivery in sending.items() if task.cancel()]
        await asyncio.gather(*sending, return_exceptions=True)
        if left:
            try:
                await self._db.write(_requeue_all(left))
            except StoreUnavailable:
                log.warning("%d deliveries come back when their leases end", len(left))

    def wake_workers(self, subscription_ids: Iterable[str]) -> None:
        """They have something to get."""
        if self._watch is None or self._closing.is_set():
            return
        for subscription_id in subscription_ids:
            courier = self._workers.get(subscription_id)
            if courier is None:
                pools = self._well, self._ailing
                courier = EndpointWorker(
                    subscription_id, self._db, self.read_bodies, self.deliver, self.lease_us, *pools
                )
                self._workers[subscription_id] = courier
            courier.wake()

    def start_deletion(self, subscription_id: str) -> None:
        """Delete its deliveries, in the background: there may be many. What a kill leaves is purged by its age."""
        task = asyncio.create_task(self._forget(subscription_id))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, subscription_id: str) -> None:
        deleted = BATCH
        with suppress(StoreUnavailable):
            while deleted:
                deleted = await self._db.write(lambda tx: queries.purge_subscription(tx, subscription_id, BATCH))

    def poll_query(self) -> PollQuery:
        """For the subscriptions of all tenants: before anything happens, and when others may have changed them."""
        generation = self._view.generation

        def read(tx: Tx) -> Callable[[], None]:
            found = store.list_all_subscriptions(tx)
            return lambda: self._take(found, generation)

        return read

    def _take(self, found: list[WebhookSubscription], generation: int) -> None:
        if generation == self._view.generation:  # else a change was made meanwhile, and this is older
            self._view.replace_all(found)

    async def poll(self) -> None:
        """Find what came due, what other processes wrote, and what they left."""
        held = {one.delivery_id for courier in self._workers.values() for one in courier.sending.values()}
        enabled = self._view.enabled_ids

        def read(tx: Tx) -> tuple[list[Delivery], list[str]]:
            return store.list_lease_expired(tx, tx.now, BATCH), [one for one in enabled if store.has_due(tx, one)]

        lost, due = await self._db.poll(read)
        if left := [one for one in lost if one.delivery_id not in held]:
            await self._db.write(_requeue_all(left))
        self.wake_workers({*due, *(one.subscription_id for one in left)} & enabled)
        for gone in self._workers.keys() - enabled:
            if not self._workers[gone].sending:
                self._workers.pop(gone).close()

    async def deliver(
        self, subscription: WebhookSubscription, delivery: Delivery, body: bytes | None = None
    ) -> DeliveryOutcome | None:
        """One attempt at a delivery that is in hand; None when its outcome cannot be known, or is not ours to tell."""
        try:
            secrets = self._secrets(subscription)
            body = body or (await self.read_bodies([delivery]))[0]
        except ServiceUnavailable as error:
            log.warning("a delivery to webhook %s waits: %s", subscription.subscription_id, error.message)
            return None  # its lease ends
        reply = await self._sender.send(subscription.url, delivery.event_id, body, secrets)
        outcome = await self._settled(delivery, reply)
        if outcome is not None:
            self.counts[COUNT_NAMES.get(outcome.decision.status, outcome.decision.status)] += 1
        return outcome

    async def _settled(self, delivery: Delivery, reply: AttemptResult) -> DeliveryOutcome | None:
        """Write what came of it, however long the store is out; None when the service leaves before."""
        held = (locks.webhook_lock(delivery.subscription_id),)
        while True:
            try:
                return await self._db.write(lambda tx: self._settle(tx, delivery, reply), held)
            except StoreUnavailable:
                if self._closing.is_set():
                    return None
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)

    def _settle(self, tx: Tx, delivery: Delivery, reply: AttemptResult) -> DeliveryOutcome | None:
        verdict = model.decide_delivery(delivery, reply, tx.now, random.random())  # noqa: S311 - a jitter is no secret
        if not store.record_attempt(tx, delivery, reply, verdict):
            return None
        if verdict.hold_until is not None:
            store.hold_deliveries(tx, delivery.subscription_id, verdict.hold_until)
        if verdict.disable_reason is not None:
            self._disable(tx, delivery, verdict)
        released = verdict.status != "waiting" and store.release_next(tx, delivery)
        return DeliveryOutcome(reply, verdict, released)

    def _disable(self, tx: Tx, delivery: Delivery, verdict: DeliveryDecision) -> None:
        assert verdict.disable_reason is not None
        if not store.disable(tx, delivery.subscription_id, verdict.disable_reason):
            return
        meta = {
            "webhook_id": delivery.subscription_id,
            "delivery_id": delivery.delivery_id,
            "reason": verdict.disable_reason,
        }
        draft = EventDraft("webhook_disabled", "webhooks", f"Webhook disabled. {verdict.disable_reason}", meta)
        self._runlog.append(tx, delivery.tenant, [draft])
        subscriptions = store.list_all_subscriptions(tx)
        tx.after_commit(lambda: self._view.replace_all(subscriptions))
        tx.after_commit(lambda: self.counts.update(disabled=1))

    async def read_bodies(self, deliveries: list[Delivery]) -> list[bytes]:
        """What is posted for each. Raises ServiceUnavailable."""
        return await self._db.read(lambda tx: [self._body(tx, one) for one in deliveries])

    def _body(self, tx: Tx, delivery: Delivery) -> bytes:
        event = queries.find_event(tx, delivery.event_id)
        if event is None:
            raise ServiceUnavailable(f"the event {delivery.event_id} is not in the run log")
        wants_result = delivery.event == "task.completed" and event.task_id is not None
        result = self._result_of(tx, event.tenant, event.task_id or "") if wants_result else None
        return payloads.build_payload(delivery.event, event, result)

    def _secrets(self, subscription: WebhookSubscription) -> list[str]:
        """The new one first. Raises ServiceUnavailable."""
        sealed = [subscription.sealed_secret]
        if subscription.old_secret is not None and (subscription.old_until or 0) > self._sender.now():
            sealed.append(subscription.old_secret)
        opened = [self._sealer.open(one, *subscription.seal_context) for one in sealed]
        if None in opened:
            raise ServiceUnavailable("its secret was sealed under another master key: rotate it")
        return [one for one in opened if one is not None]

    async def _run(self) -> None:
        looks = 0
        while True:
            await sleep_until_tick(POLL_SECONDS)
            looks += 1
            try:
                await self.poll()
                if looks % PURGE_EVERY_POLLS == 1:
                    await self.purge()
            except StoreUnavailable:
                continue  # the database says in the log that it is out
            except Exception:
                # Fails open: a look that breaks must not end all later ones.
                log.exception("the look after webhooks stumbled")

    async def purge(self) -> int:
        """Forget deliveries that are older than the retention; answers how many."""
        found = 0
        before = ids.min_id_at(self._sender.now() - self._retention)
        while number := await self._db.write(lambda tx: queries.purge_ended(tx, before, BATCH)):
            found += number
        return found


def _requeue_all(deliveries: list[Delivery]) -> Callable[[Tx], int]:
    return lambda tx: store.requeue(tx, deliveries)
