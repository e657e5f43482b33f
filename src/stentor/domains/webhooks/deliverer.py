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
from stentor.domains.webhooks import listing, model, naming, store
from stentor.domains.webhooks.courier import Courier, Outcome, Pool
from stentor.domains.webhooks.model import Delivery, Reply, Subscription, Verdict
from stentor.domains.webhooks.outbox import View
from stentor.domains.webhooks.sender import Sender

WELL, AILING = 256, 64
"""Attempts under way at a time: to endpoints that answer well, and to the others."""
LOOK_SECONDS, OUTAGE_SECONDS, LEAVE_SECONDS = 1.0, 1.0, 5.0
PURGE_EVERY = 3_600
"""Looks."""
BATCH = 500
EVER = 2**62
log = logging.getLogger(__name__)

COUNTED = {"waiting": "retried"}
ResultOf = Callable[[Tx, str, str], str | None]


class Deliverer:
    """`result_of` reads a completed task's result as JSON text; `shared`: other processes deliver from this database,
    and take up a delivery that was in hand when its lease ends. `lease` and `retention` are in microseconds. `counts`:
    attempts by what became of them, and webhooks `disabled`, since the start.
    """

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        sealer: Sealer,
        view: View,
        sender: Sender,
        result_of: ResultOf,
        lease: int,
        *,
        shared: bool,
        retention: int = 30 * DAY,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._sealer = sealer
        self._view = view
        self._sender = sender
        self._result_of = result_of
        self.lease = lease
        self._shared = shared
        self._retention = retention
        self._well, self._ailing = Pool(WELL), Pool(AILING)
        self._couriers: dict[str, Courier] = {}
        self._watch: asyncio.Task[None] | None = None
        self._forgetting: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def start(self) -> int:
        """Take up what an earlier process left; answers how many deliveries it had in hand."""
        found = 0
        while not self._shared and (batch := await self._db.read(lambda tx: store.lost(tx, EVER, BATCH))):
            found += await self._db.write(_giving_back(batch))
        self._watch = asyncio.create_task(self._run())
        self.arrived(self._view.enabled)
        return found

    async def stop(self) -> None:
        """Take no more, let what is under way come to its end if that is soon, and give the rest back."""
        self._closing.set()
        background = [*self._forgetting, *([self._watch] if self._watch else [])]
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        couriers = list(self._couriers.values())
        await asyncio.gather(*(courier.close() for courier in couriers), return_exceptions=True)
        sending = {task: delivery for courier in couriers for task, delivery in courier.sending.items()}
        if not sending:
            return
        await asyncio.wait(sending, timeout=LEAVE_SECONDS)
        left = [delivery for task, delivery in sending.items() if task.cancel()]
        await asyncio.gather(*sending, return_exceptions=True)
        if left:
            try:
                await self._db.write(_giving_back(left))
            except StoreUnavailable:
                log.warning("%d deliveries come back when their leases end", len(left))

    def arrived(self, subscription_ids: Iterable[str]) -> None:
        """They have something to get."""
        if self._watch is None or self._closing.is_set():
            return
        for subscription_id in subscription_ids:
            courier = self._couriers.get(subscription_id)
            if courier is None:
                pools = self._well, self._ailing
                courier = Courier(subscription_id, self._db, self.bodies, self.carry, self.lease, *pools)
                self._couriers[subscription_id] = courier
            courier.wake()

    def forget(self, subscription_id: str) -> None:
        """Delete its deliveries, in the background: there may be many. What a kill leaves is purged by its age."""
        task = asyncio.create_task(self._forget(subscription_id))
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _forget(self, subscription_id: str) -> None:
        deleted = BATCH
        with suppress(StoreUnavailable):
            while deleted:
                deleted = await self._db.write(lambda tx: listing.purge_of(tx, subscription_id, BATCH))

    def news(self) -> PollQuery:
        """For the subscriptions of all tenants: before anything happens, and when others may have changed them."""
        generation = self._view.generation

        def read(tx: Tx) -> Callable[[], None]:
            found = store.every(tx)
            return lambda: self._take(found, generation)

        return read

    def _take(self, found: list[Subscription], generation: int) -> None:
        if generation == self._view.generation:  # else a change was made meanwhile, and this is older
            self._view.put(found)

    async def look(self) -> None:
        """Find what came due, what other processes wrote, and what they left."""
        held = {one.delivery_id for courier in self._couriers.values() for one in courier.sending.values()}
        enabled = self._view.enabled

        def read(tx: Tx) -> tuple[list[Delivery], list[str]]:
            return store.lost(tx, tx.now, BATCH), [one for one in enabled if store.some_due(tx, one)]

        lost, due = await self._db.poll(read)
        if left := [one for one in lost if one.delivery_id not in held]:
            await self._db.write(_giving_back(left))
        self.arrived({*due, *(one.subscription_id for one in left)} & enabled)
        for gone in self._couriers.keys() - enabled:
            if not self._couriers[gone].sending:
                self._couriers.pop(gone).close()

    async def carry(self, subscription: Subscription, delivery: Delivery, body: bytes | None = None) -> Outcome | None:
        """One attempt at a delivery that is in hand; None when its outcome cannot be known, or is not ours to tell."""
        try:
            secrets = self._secrets(subscription)
            body = body or (await self.bodies([delivery]))[0]
        except ServiceUnavailable as error:
            log.warning("a delivery to webhook %s waits: %s", subscription.subscription_id, error.message)
            return None  # its lease ends
        reply = await self._sender.send(subscription.url, delivery.event_id, body, secrets)
        outcome = await self._settled(delivery, reply)
        if outcome is not None:
            self.counts[COUNTED.get(outcome.verdict.status, outcome.verdict.status)] += 1
        return outcome

    async def _settled(self, delivery: Delivery, reply: Reply) -> Outcome | None:
        """Write what came of it, however long the store is out; None when the service leaves before."""
        held = (locks.webhook_lock(delivery.subscription_id),)
        while True:
            try:
                return await self._db.write(lambda tx: self._settle(tx, delivery, reply), held)
            except StoreUnavailable:
                if self._closing.is_set():
                    return None
                await asyncio.sleep(OUTAGE_SECONDS)

    def _settle(self, tx: Tx, delivery: Delivery, reply: Reply) -> Outcome | None:
        verdict = model.judge(delivery, reply, tx.now, random.random())  # noqa: S311 - a jitter is no secret
        if not store.move(tx, delivery, reply, verdict):
            return None
        if verdict.hold_until is not None:
            store.hold(tx, delivery.subscription_id, verdict.hold_until)
        if verdict.disable is not None:
            self._disable(tx, delivery, verdict)
        released = verdict.status != "waiting" and store.release(tx, delivery)
        return Outcome(reply, verdict, released)

    def _disable(self, tx: Tx, delivery: Delivery, verdict: Verdict) -> None:
        assert verdict.disable is not None
        if not store.disable(tx, delivery.subscription_id, verdict.disable):
            return
        meta = {"webhook_id": delivery.subscription_id, "delivery_id": delivery.delivery_id, "reason": verdict.disable}
        draft = EventDraft("webhook_disabled", "webhooks", f"Webhook disabled. {verdict.disable}", meta)
        self._runlog.append(tx, delivery.tenant, [draft])
        subscriptions = store.every(tx)
        tx.after_commit(lambda: self._view.put(subscriptions))
        tx.after_commit(lambda: self.counts.update(disabled=1))

    async def bodies(self, deliveries: list[Delivery]) -> list[bytes]:
        """What is posted for each. Raises ServiceUnavailable."""
        return await self._db.read(lambda tx: [self._body(tx, one) for one in deliveries])

    def _body(self, tx: Tx, delivery: Delivery) -> bytes:
        event = listing.event(tx, delivery.event_id)
        if event is None:
            raise ServiceUnavailable(f"the event {delivery.event_id} is not in the run log")
        wants_result = delivery.event == "task.completed" and event.task_id is not None
        result = self._result_of(tx, event.tenant, event.task_id or "") if wants_result else None
        return naming.payload(delivery.event, event, result)

    def _secrets(self, subscription: Subscription) -> list[str]:
        """The new one first. Raises ServiceUnavailable."""
        sealed = [subscription.sealed_secret]
        if subscription.old_secret is not None and (subscription.old_until or 0) > self._sender.now():
            sealed.append(subscription.old_secret)
        opened = [self._sealer.open(one, *subscription.bound) for one in sealed]
        if None in opened:
            raise ServiceUnavailable("its secret was sealed under another master key: rotate it")
        return [one for one in opened if one is not None]

    async def _run(self) -> None:
        looks = 0
        while True:
            await sleep_until_tick(LOOK_SECONDS)
            looks += 1
            try:
                await self.look()
                if looks % PURGE_EVERY == 1:
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
        while number := await self._db.write(lambda tx: listing.purge(tx, before, BATCH)):
            found += number
        return found


def _giving_back(deliveries: list[Delivery]) -> Callable[[Tx], int]:
    return lambda tx: store.give_back(tx, deliveries)
