"""Repairs what was lost: ended leases, overdue tasks, forgotten queue entries, lessons not learned.

Runs once at the start, then every second. Every repair is guarded like any other move, so two
reconcilers, or one and an agent that wakes up late, cannot both win.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx, idempotency
from stentor.core.errors import LeaseLost, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.timers import sleep_until_tick
from stentor.domains.execution import model
from stentor.domains.execution.dispatcher import Dispatcher
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.execution.outcomes import OutcomeRecorder
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.model import QueuedTask, Task, TaskClaim, to_queued_task
from stentor.domains.tasks.service import require_task

INTERVAL_SECONDS = 1.0
RELEARN_TICKS = 10
PURGE_TICKS = 3_600
BATCH_SIZE = 200
log = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        dispatcher: Dispatcher,
        attempts: TaskExecutor,
        ending: OutcomeRecorder,
        max_attempts: int,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._ending = ending
        self._max_attempts = max_attempts
        self._renew_every = attempts.lease_us // (3 * SECOND)

    async def recover(self, *, is_single_process: bool) -> int:
        """At the start: take up what the process before left. `alone`: no other process runs tasks.

        Answers how many tasks were found executing in a process that is gone.
        """
        found = 0
        while is_single_process and (batch := await self._db.write(self._take_up)):
            found += batch
        await self.tick(0)  # offers what was taken up, once all of it is: a batch must not meet the one before
        return found

    async def run(self) -> None:
        """For ever; an outage of the store is waited out."""
        tick = 0
        while True:
            await sleep_until_tick(INTERVAL_SECONDS)
            tick += 1
            try:
                await self.tick(tick)
            except StoreUnavailable:
                continue  # the database says in the log that it is out
            except Exception:
                # Fails open: a repair that breaks must not end all later ones.
                log.exception("the reconciler stumbled")

    async def tick(self, tick: int) -> None:
        waiting = self._dispatcher.refill_query() if tick % self._dispatcher.refill_ticks == 0 else None

        def look(tx: Tx) -> tuple[list[Task], list[Task], Callable[[], None] | None]:
            overdue, expired = store.list_overdue(tx, BATCH_SIZE), store.list_queue_expired(tx, BATCH_SIZE)
            return overdue, expired, waiting(tx) if waiting else None

        overdue, expired, take_up = await self._db.poll(look)
        for task in overdue:
            await self._db.write(self._repairing(task))
        for task in expired:
            await self._db.write(self._expiring(task))
        if tick % self._renew_every == 0 and self._attempts.held_claims:
            await self._renew(list(self._attempts.held_claims.values()))
        if take_up is not None:
            take_up()
        if tick % RELEARN_TICKS == 0:
            await self._relearn()
        if tick % PURGE_TICKS == PURGE_TICKS - 1:
            await self._db.write(idempotency.purge_expired)

    async def _relearn(self) -> None:
        for task in await self._db.read(lambda tx: store.list_unlearned(tx, tx.now - SECOND, BATCH_SIZE)):
            try:
                await self._db.write(self._learning(task))
            except StoreUnavailable:
                return  # tried again later: if only the tables of learning are gone, a start goes on without them
            except Exception:
                log.exception("learning from task %s failed again", task.task_id)

    def _learning(self, task: Task) -> Any:
        return lambda tx: self._ending.retry_learning(tx, task)

    async def _renew(self, claims: list[TaskClaim]) -> None:
        def work(tx: Tx) -> list[TaskClaim]:
            return [
                c for c in claims if not store.renew_lease(tx, c.tenant, c.task_id, c.epoch, self._attempts.lease_us)
            ]

        for claim in await self._db.write(work, ()):
            self._dispatcher.stop(claim.tenant, claim.task_id)

    async def release_claims(self, claims: list[TaskClaim]) -> None:
        """Let others have at once what this process claimed and will not finish."""

        def work(tx: Tx) -> None:
            for claim in claims:
                task = require_task(tx, claim.tenant, claim.task_id)
                if task.status == "executing" and task.epoch == claim.epoch:
                    queued = self._requeue(tx, task, "The process that had it is leaving.")
                    tx.after_commit(partial(self._dispatcher.enqueue, queued))

        if claims:
            await self._db.write(work)

    def _take_up(self, tx: Tx) -> int:
        tasks = store.list_executing_in_process(tx, BATCH_SIZE)
        for task in tasks:
            repair = model.requeue_or_fail(task, self._max_attempts)
            self._apply(tx, task, repair, "The service was restarted.", offer=False)
        return len(tasks)

    def _repairing(self, seen: Task) -> Any:
        def work(tx: Tx) -> None:
            task = require_task(tx, seen.tenant, seen.task_id)
            if task.status != "executing":
                return
            repair = model.choose_repair(task, tx.now, self._max_attempts)
            if repair is not None:
                self._apply(tx, task, repair, "The lease ended without an answer.")

        return work

    def _expiring(self, seen: Task) -> Any:
        """End a task that waited longer than its `queue_timeout_seconds`; nothing is learned from that."""

        def work(tx: Tx) -> None:
            task = require_task(tx, seen.tenant, seen.task_id)
            if task.status != "queued" or task.queue_deadline_at is None or task.queue_deadline_at >= tx.now:
                return
            message = f"No agent took the task within {task.queue_timeout_seconds} s."
            error = {"code": "QUEUE_TIMEOUT", "message": message}
            meta = {"status": "aborted", "outcome_class": "timeout", "learning_eligible": False, "error": error}
            drafts = [EventDraft("task_aborted", "execution", message, meta), learning_skipped_event("timeout")]
            head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
            if store.end_without_learning(tx, task, "aborted", "timeout", error, head):
                changes = ("queued", task.assigned_agent, -1), ("aborted", task.assigned_agent, 1)
                queries.update_counts(tx, task.tenant, task.created_at, *changes)
                tx.after_commit(lambda: self._dispatcher.stop(task.tenant, task.task_id))

        return work

    def _apply(self, tx: Tx, task: Task, repair: model.RepairAction, why: str, *, offer: bool = True) -> None:
        if repair == "requeue":
            queued = self._requeue(tx, task, why)
            if offer:
                tx.after_commit(lambda: self._hand_back(queued))
            return
        outcome = model.TIMEOUT_OUTCOME if repair == "abort" else model.lease_lost_outcome(task)
        assert task.assigned_agent is not None
        try:
            with tx.savepoint():
                self._ending.record(tx, task, task.assigned_agent, task.start_time or tx.now, outcome)
        except LeaseLost:
            return  # it ended by itself
        tx.after_commit(lambda: self._dispatcher.stop(task.tenant, task.task_id))

    def _requeue(self, tx: Tx, task: Task, why: str) -> QueuedTask:
        drafts = [EventDraft("task_requeued", "execution", why, {"epoch": task.epoch}, agent_id=task.assigned_agent)]
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        if not store.requeue(tx, task, "queued", head):
            raise LeaseLost("The task changed at the same moment.")
        changes = ("executing", task.assigned_agent, -1), ("queued", task.assigned_agent, 1)
        queries.update_counts(tx, task.tenant, task.created_at, *changes)
        return to_queued_task(require_task(tx, task.tenant, task.task_id))

    def _hand_back(self, queued: QueuedTask) -> None:
        self._dispatcher.stop(queued.tenant, queued.task_id)
        self._dispatcher.enqueue(queued)
