"""Dispatches queued webhook deliveries: at least once, in order within a subject, across crashes.

The queue is the table of deliveries. A delivery that was leased when its process died returns to the queue when the
lease expires, or at startup if no other process shares the database. `endpoint_worker` serves one endpoint, `sender`
makes the HTTP request, `outbox` fills the queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from stentor.core import ids
from stentor.core.clock import ClockWatch
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks import locks
from stentor.core.db.polling import PollQuery
from stentor.core.errors import CorruptRecord, CorruptRow, ServiceUnavailable, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.security.sealing import Sealer
from stentor.core.timers import sleep_until_tick
from stentor.domains.webhooks import model, payloads, queries, store
from stentor.domains.webhooks.endpoint_worker import AttemptSlots, DeliveryOutcome, EndpointWorker
from stentor.domains.webhooks.model import AttemptResult, Delivery, DeliveryDecision, WebhookSubscription
from stentor.domains.webhooks.outbox import SubscriptionIndex
from stentor.domains.webhooks.sender import WebhookSender

HEALTHY_SLOTS, DEGRADED_SLOTS = 256, 64
"""Limits of concurrent attempts: to healthy endpoints, and to slow or failing ones."""
POLL_SECONDS, OUTAGE_RETRY_SECONDS, SHUTDOWN_SECONDS = 1.0, 1.0, 5.0
PURGE_EVERY_POLLS = 3_600
BATCH = 500
MAX_TIME = 2**62
COUNT_NAMES = {"waiting": "retried"}
UNREADABLE = "Its event in the run log is malformed or gone."
log = logging.getLogger(__name__)

ReadTaskResult = Callable[[Tx, str, str], str | None]


class DeliveryDispatcher:
    """Owner of the endpoint workers, the poll for due deliveries and the purge of old ones.

    `read_task_result` returns a completed task's result as JSON text. `shared` means that other processes deliver from
    the same database, so leases must run out before a delivery is requeued. `counts` holds the attempts by outcome and
    the webhooks `disabled` since startup.
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
        retention_us: int,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._sealer = sealer
        self._index = index
        self._sender = sender
        self._read_task_result = read_task_result
        self.lease_us = lease_us
        self._shared = shared
        self._clock_watch = ClockWatch()
        self._retention_us = retention_us
        self._healthy_slots, self._degraded_slots = AttemptSlots(HEALTHY_SLOTS), AttemptSlots(DEGRADED_SLOTS)
        self._workers: dict[str, EndpointWorker] = {}
        self._watch: asyncio.Task[None] | None = None
        self._deletions: set[asyncio.Task[None]] = set()
        self._malformed: list[CorruptRow] = []
        self._closing = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def start(self) -> int:
        """Requeue the deliveries that an earlier process left leased and return their number."""
        requeued = 0
        # Only the sole process may ignore leases: in a shared database they may belong to a live one.
        while not self._shared and (
            batch := await self._db.read(lambda tx: store.list_lease_expired(tx, MAX_TIME, BATCH))
        ):
            requeued += await self._db.write(_requeue_all(batch))
        self._watch = asyncio.create_task(self._run())
        self.wake_workers(self._index.enabled_ids)
        return requeued

    async def stop(self) -> None:
        """Claim nothing more, wait up to SHUTDOWN_SECONDS for the attempts in progress, and requeue the rest."""
        self._closing.set()
        background = [*self._deletions, *([self._watch] if self._watch else [])]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        workers = list(self._workers.values())
        # Claims must end first: one that commits after `sending` was read would keep its lease until it expires.
        await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
        sending = {task: delivery for worker in workers for task, delivery in worker.sending.items()}
        if not sending:
            return
        await asyncio.wait(sending, timeout=SHUTDOWN_SECONDS)
        unfinished = [delivery for task, delivery in sending.items() if task.cancel()]
        await asyncio.gather(*sending, return_exceptions=True)
        if unfinished:
            try:
                await self._db.write(_requeue_all(unfinished))
            except StoreUnavailable:
                log.warning("webhooks: leases left to expire deliveries=%d", len(unfinished))

    def wake_workers(self, subscription_ids: Iterable[str]) -> None:
        """Notify the workers of these subscriptions that deliveries may be due. No-op before start and after stop."""
        if self._watch is None or self._closing.is_set():
            return
        for subscription_id in subscription_ids:
            worker = self._workers.get(subscription_id)
            if worker is None:
                slots = self._healthy_slots, self._degraded_slots
                worker = EndpointWorker(
                    subscription_id, self._db, self.read_bodies, self.deliver, self.lease_us, *slots
                )
                self._workers[subscription_id] = worker
            worker.wake()

    async def set_aside(self, error: CorruptRow) -> None:
        """Disable a webhook whose row is malformed."""

        def work(tx: Tx) -> None:
            if not store.disable(tx, error.key[1], f"{error.message} Set its events."):
                return
            log.error("webhooks: malformed record, webhook disabled error=%s", error.message)
            self._index.reload_after_commit(tx)

        await self._db.write(work)

    def start_deletion(self, subscription_id: str) -> None:
        """Delete a subscription's deliveries in the background, as there may be many.

        Rows left by a crash are purged when they exceed the retention.
        """
        task = asyncio.create_task(self._delete_deliveries(subscription_id))
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _delete_deliveries(self, subscription_id: str) -> None:
        deleted = BATCH
        with suppress(StoreUnavailable):
            while deleted:
                deleted = await self._db.write(lambda tx: queries.purge_subscription(tx, subscription_id, BATCH))

    def poll_query(self) -> PollQuery:
        """Return a query that reloads the subscription index, for startup and for changes by other processes."""
        generation = self._index.generation

        def read(tx: Tx) -> Callable[[], None]:
            subscriptions, malformed = store.read_all_subscriptions(tx)
            return lambda: self._replace_index(subscriptions, malformed, generation)

        return read

    def _replace_index(
        self, subscriptions: list[WebhookSubscription], malformed: list[CorruptRow], generation: int
    ) -> None:
        # Set aside by the next poll: otherwise they would stay unnoticed while no delivery is due.
        self._malformed = malformed
        # Another generation means that a local write replaced the index after this read began: the read is stale.
        if generation == self._index.generation:
            self._index.replace_all(subscriptions)

    async def poll(self) -> None:
        """Wake the workers with due deliveries, requeue expired leases, and close the workers of disabled webhooks."""
        while self._malformed:
            await self.set_aside(self._malformed.pop())
        sending = {delivery.delivery_id for worker in self._workers.values() for delivery in worker.sending.values()}
        enabled = self._index.enabled_ids

        def read(tx: Tx) -> tuple[int, list[Delivery], list[str]]:
            expired = store.list_lease_expired(tx, tx.now, BATCH)
            due_ids = [subscription_id for subscription_id in enabled if store.has_due(tx, subscription_id)]
            return tx.now, expired, due_ids

        now, expired, due_ids = await self._db.poll(read)
        # Otherwise deliveries, including those of a dead process, would wait as long as the clock was set back.
        await self._clock_watch.look(
            now, lambda: self._db.write(lambda tx: store.bring_back(tx, self.lease_us), NO_LOCKS)
        )
        # An attempt of this process may outlast its lease during an outage; its outcome is still to be written.
        if abandoned := [delivery for delivery in expired if delivery.delivery_id not in sending]:
            await self._db.write(_requeue_all(abandoned))
        self.wake_workers({*due_ids, *(delivery.subscription_id for delivery in abandoned)} & enabled)
        # As it is now: a webhook of which the reads above knew nothing may have begun its first delivery meanwhile.
        for subscription_id in self._workers.keys() - self._index.enabled_ids:
            if self._workers[subscription_id].is_idle:
                self._workers.pop(subscription_id).close()

    async def deliver_now(self, subscription: WebhookSubscription, delivery: Delivery) -> DeliveryOutcome | None:
        """Read the body of a leased delivery, then do the same as `deliver`."""
        return await self.deliver(subscription, delivery, (await self.read_bodies([delivery]))[0])

    async def deliver(
        self, subscription: WebhookSubscription, delivery: Delivery, body: bytes | None
    ) -> DeliveryOutcome | None:
        """Make one attempt at a leased delivery and record it; without a body record that it failed.

        Returns None if no attempt could be made, if its outcome could not be written before shutdown, or if another
        process holds the lease by now.
        """
        try:
            secrets = self._open_secrets(subscription)
        except ServiceUnavailable as error:
            log.warning(
                "webhooks: delivery postponed webhook=%s reason=%s", subscription.subscription_id, error.message
            )
            return None  # the delivery is requeued when its lease expires
        if body is None:
            result = AttemptResult(self._sender.now(), 0, error=UNREADABLE, is_final=True)
        else:
            result = await self._sender.send(subscription.url, delivery.event_id, body, secrets)
        outcome = await self._record_outcome(delivery, result)
        if outcome is not None:
            self.counts[COUNT_NAMES.get(outcome.decision.status, outcome.decision.status)] += 1
        return outcome

    async def _record_outcome(self, delivery: Delivery, result: AttemptResult) -> DeliveryOutcome | None:
        """Write the outcome, retrying for as long as the store is unavailable; None on shutdown.

        The request was made: dropping its outcome would send the event a second time.
        """
        write_locks = (locks.webhook_lock(delivery.subscription_id),)
        while True:
            try:
                return await self._db.write(lambda tx: self._write_outcome(tx, delivery, result), write_locks)
            except StoreUnavailable:
                if self._closing.is_set():
                    return None
                await asyncio.sleep(OUTAGE_RETRY_SECONDS)

    def _write_outcome(self, tx: Tx, delivery: Delivery, result: AttemptResult) -> DeliveryOutcome | None:
        decision = model.decide_delivery(delivery, result, tx.now, random.random())  # noqa: S311 - jitter is not a secret
        # A stale epoch: the lease expired and the delivery was claimed again, so this attempt decides nothing.
        if not store.record_attempt(tx, delivery, result, decision):
            return None
        if decision.hold_until is not None:
            store.hold_deliveries(tx, delivery.subscription_id, decision.hold_until)
        if decision.disable_reason is not None:
            self._disable(tx, delivery, decision)
        has_released_next = decision.status != "waiting" and store.release_next(tx, delivery)
        return DeliveryOutcome(result, decision, has_released_next)

    def _disable(self, tx: Tx, delivery: Delivery, decision: DeliveryDecision) -> None:
        assert decision.disable_reason is not None
        if not store.disable(tx, delivery.subscription_id, decision.disable_reason):
            return
        meta = {
            "webhook_id": delivery.subscription_id,
            "delivery_id": delivery.delivery_id,
            "reason": decision.disable_reason,
        }
        draft = EventDraft("webhook_disabled", "webhooks", f"Webhook disabled. {decision.disable_reason}", meta)
        self._runlog.append(tx, delivery.tenant, [draft])
        self._index.reload_after_commit(tx)
        tx.after_commit(lambda: self.counts.update(disabled=1))

    async def read_bodies(self, deliveries: list[Delivery]) -> list[bytes | None]:
        """Return the request body of each delivery, None for one whose event is malformed or gone."""
        return await self._db.read(lambda tx: [self._build_body(tx, delivery) for delivery in deliveries])

    def _build_body(self, tx: Tx, delivery: Delivery) -> bytes | None:
        try:
            event = queries.find_event(tx, delivery.event_id)
        except CorruptRecord as error:
            log.error("webhooks: event not readable delivery=%s error=%s", delivery.delivery_id, error.message)
            event = None
        if event is None:
            return None
        wants_result = delivery.event == "task.completed" and event.task_id is not None
        result = self._read_task_result(tx, event.tenant, event.task_id or "") if wants_result else None
        return payloads.build_payload(delivery.event, event, result)

    def _open_secrets(self, subscription: WebhookSubscription) -> list[str]:
        """Return the signing secrets, the newest first. Raises ServiceUnavailable if that cannot be opened."""
        sealed = [subscription.sealed_secret, *subscription.old_secrets(self._sender.now())]
        secrets = [self._sealer.open(secret, *subscription.seal_context) for secret in sealed]
        if secrets[0] is None:
            raise ServiceUnavailable("its secret was encrypted with another master key: rotate it")
        # Old ones under another master key are left out: the rotation after that key's change must help.
        return [secret for secret in secrets if secret is not None]

    async def _run(self) -> None:
        polls = 0
        while True:
            await sleep_until_tick(POLL_SECONDS)
            polls += 1
            try:
                await self.poll()
                # At the first poll too: a service that is restarted often would never purge otherwise.
                if polls % PURGE_EVERY_POLLS == 1:
                    await self.purge()
            except StoreUnavailable:
                continue  # the database logs its own outage
            except Exception:
                # Fails open: one failed poll must not end polling.
                log.exception("webhooks: poll failed")

    async def purge(self) -> int:
        """Delete deliveries older than the retention and return their number."""
        deleted = 0
        before = ids.min_id_at(self._sender.now() - self._retention_us)
        while batch_size := await self._db.write(lambda tx: queries.purge_ended(tx, before, BATCH)):
            deleted += batch_size
        return deleted


def _requeue_all(deliveries: list[Delivery]) -> Callable[[Tx], int]:
    return lambda tx: store.requeue(tx, deliveries)
