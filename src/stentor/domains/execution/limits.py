"""Limits by key: claims keep them, and parked tasks go back into the queue when a slot is free.

Both hold the lock of the key, so that neither a claim above the limit nor a forgotten task is possible, whatever the
number of processes. What counts are the rows that execute: a task that ends, waits, loses its lease or is cancelled
has freed its slot by that.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from stentor.core.clock import SECOND, ClockWatch
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks import locks
from stentor.core.fanout.live import Hub
from stentor.core.timers import tick_forever, wait_until_tick
from stentor.domains.execution.dispatch.dispatcher import Dispatcher
from stentor.domains.tasks.model import MAX_LIMIT_SECONDS, QueuedTask, TaskClaim, TaskLimit
from stentor.domains.tasks.queues import limit_store as store
from stentor.domains.tasks.store import TaskRef

BATCH_SIZE = 200
"""Keys that one check takes, and tasks of a key and period that it puts back into the queue."""
MAX_REMEMBERED = 100_000
SLOT_FREEING_EVENTS = frozenset(
    ("task_completed", "task_failed", "task_aborted", "task_cancelled", "task_waiting", "task_requeued")
)
LimitKey = tuple[str, str]
"""Tenant and key of a limit."""
log = logging.getLogger(__name__)


class LimitGate:
    """Decides at a claim whether a task's limit has a free slot. Fails closed."""

    def __init__(self) -> None:
        self.running: dict[TaskRef, LimitKey] = {}
        """Limits of tasks that were claimed in this process, to look for parked tasks at once when they end."""

    def admit(self, tx: Tx, queued: QueuedTask, limit: TaskLimit) -> bool:
        """Return whether the task may start now; parks it otherwise. Each task's own limit decides for it."""
        # Before the count: two claims that counted at the same time would both take the last slot.
        tx.lock(locks.limit_lock(queued.tenant, limit.key))
        used = store.count_used(tx, queued.tenant, limit)
        if used < limit.max and not store.has_older_parked(tx, queued, limit.key):
            return True
        store.park(tx, queued, limit, store.find_check_time(tx, queued.tenant, limit))
        return False

    def record_start(self, tx: Tx, claim: TaskClaim, limit: TaskLimit) -> None:
        """Count a claimed task, in the transaction of `admit`."""
        store.record_start(tx, claim.tenant, claim.task_id, claim.epoch, limit)
        # After the commit: a claim that is rolled back takes no slot, and its end would never come.
        tx.after_commit(partial(self._remember, (claim.tenant, claim.task_id), (claim.tenant, limit.key)))

    def _remember(self, task: TaskRef, key: LimitKey) -> None:
        # This process gets no notice of a task that ends in another process.
        if len(self.running) >= MAX_REMEMBERED:
            self.running.clear()
        self.running[task] = key


class ParkedTaskScheduler:
    """Background job that puts parked tasks back into the queue: when a task of their key ends here, and by time."""

    def __init__(self, db: Database, gate: LimitGate, dispatcher: Dispatcher, hub: Hub) -> None:
        self._db, self._gate, self._dispatcher = db, gate, dispatcher
        self._freed: set[LimitKey] = set()
        self._put_back: dict[tuple[str, TaskLimit], tuple[int, QueuedTask | None]] = {}
        """By tenant and limit: how many tasks were put back and not taken since, and the last of them."""
        self._event = asyncio.Event()
        self._clock_watch = ClockWatch()
        hub.listen(self._note_end, SLOT_FREEING_EVENTS)

    async def run(self) -> None:
        """Run forever. After a check that failed the tasks stay parked until the next one."""

        async def wait() -> None:
            await wait_until_tick(self._event)
            self._event.clear()

        await tick_forever("limits", wait, self.tick)

    async def tick(self) -> None:
        """Look for free slots in the limits of which a task has ended, and in those that are due."""
        # A key is not put back after a failure: each one with parked tasks is also due by the time in its row.
        freed, self._freed = self._freed, set()
        now, due = await self._db.poll(lambda tx: (tx.now, store.list_due(tx, BATCH_SIZE)))
        # Otherwise starts in the future would count against the rate for as long as the clock was set back.
        await self._clock_watch.look(now, lambda: self._db.write(store.bring_back, NO_LOCKS))
        for tenant, key in {*freed, *due}:
            lock = locks.limit_lock(tenant, key)
            is_freed = (tenant, key) in freed
            await self._db.write(partial(self._release, tenant=tenant, key=key, is_freed=is_freed), (lock,))

    def _release(self, tx: Tx, tenant: str, key: str, is_freed: bool) -> None:
        """Unpark the tasks that have a slot, most urgent first. Claims count again, so one too many is parked again."""
        check_at = tx.now + MAX_LIMIT_SECONDS * SECOND
        # By period, because the tasks of a key may name different ones; without a period the running tasks count.
        for highest in store.list_parked_limits(tx, tenant, key):
            used = store.count_used(tx, tenant, highest)
            if used < highest.max:
                self._fill(tx, tenant, highest, used, is_freed)
            # The highest `max` is the first to have a free slot again.
            check_at = min(check_at, store.find_check_time(tx, tenant, highest))
        store.set_check(tx, tenant, key, check_at if store.has_parked(tx, tenant, key) else None)

    def _fill(self, tx: Tx, tenant: str, highest: TaskLimit, used: int, is_freed: bool) -> None:
        # A task that was put back and not claimed for a second takes no slot: an agent that claims nothing must not
        # block the agents of later tasks.
        idle, last = self._put_back.get((tenant, highest), (0, None))
        if is_freed or last is None or not store.is_unparked(tx, last):
            idle = 0
        number = idle
        for queued in store.list_startable(tx, tenant, highest, used, BATCH_SIZE):
            assert queued.limit is not None
            if used - idle < queued.limit.max:
                used, number, last = used + 1, number + 1, queued
                store.unpark(tx, queued)
                # After the commit: if it is rolled back, the task stays parked.
                tx.after_commit(partial(self._dispatcher.enqueue, queued))
        tx.after_commit(partial(self._note_put_back, (tenant, highest), (number, last)))

    def _note_put_back(self, limit: tuple[str, TaskLimit], tasks: tuple[int, QueuedTask | None]) -> None:
        if len(self._put_back) >= MAX_REMEMBERED:
            self._put_back.clear()
        self._put_back[limit] = tasks

    def _note_end(self, tenant: str, task_id: str, events: list[Any]) -> None:
        if (key := self._gate.running.pop((tenant, task_id), None)) is not None:
            self._freed.add(key)
            self._event.set()
