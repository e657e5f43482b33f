"""Repairs what was lost: expired leases, overdue tasks, missing queue entries, failed learning.

Runs once at the start, then every second; what will be overdue before the next time is repaired in between, on time.
Each repair checks the task's status and epoch in its transaction, so of two reconcilers, or a reconciler and a late
agent, only one succeeds. The choice of a repair is in `model.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from operator import itemgetter

from stentor.core.clock import SECOND, Clock, ClockMark, ClockWatch, JumpWatch
from stentor.core.db import NO_LOCKS, Database, Tx, idempotency
from stentor.core.errors import LeaseLost, StoreUnavailable
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.timers import seconds_until_tick, sleep_until_tick, tick_forever
from stentor.domains.execution import model
from stentor.domains.execution.dispatch.dispatcher import Dispatcher
from stentor.domains.execution.outcomes import OutcomeRecorder
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.access import require_task
from stentor.domains.tasks.model import QueuedTask, Task, TaskClaim, to_queued_task
from stentor.domains.tasks.queues import lease_store, limit_store

INTERVAL_SECONDS = 1.0
RELEARN_TICKS = 10
MARK_TICKS = 10
PURGE_TICKS = 3_600
BATCH_SIZE, MAX_REPAIRS = 200, 1_000
"""Tasks that are recovered in a transaction, and overdue ones that a tick reads."""
LATE_SECONDS = 0.002
"""Time from when something is overdue to its repair: the clocks of the process and of the database differ a little."""
TimedRepair = tuple[float, Callable[[Tx], None]]
"""A repair, with the time of the event loop at which it is due."""
log = logging.getLogger(__name__)


class Reconciler:
    """Background job that repairs tasks."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        dispatcher: Dispatcher,
        outcomes: OutcomeRecorder,
        agents: AgentCache,
        max_attempts: int,
        clock_mark: ClockMark,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._agents = agents
        self._max_attempts = max_attempts
        self._clock_watch, self._jump_watch = ClockWatch(), JumpWatch(clock.monotonic, clock_mark.read())
        self._clock_mark = clock_mark

    async def recover(self, *, is_single_process: bool) -> int:
        """Recover the tasks that the previous process left executing, if no other process runs tasks.

        Return how many there were.
        """
        recovered = 0
        while is_single_process and (batch := await self._db.write(self._recover_batch)):
            recovered += batch
        # Enqueue only after the last batch: a task that already runs again would be recovered a second time.
        await self.tick(0)
        return recovered

    async def run(self) -> None:
        """Run forever; waits out an outage of the database."""
        ticks = count(1)

        async def tick() -> None:
            await self.repair_on_time(await self.tick(next(ticks)))

        await tick_forever("reconciler", partial(sleep_until_tick, INTERVAL_SECONDS), tick)

    async def _bring_back_leases(self) -> None:
        if shortened := await self._db.write(lease_store.bring_back_leases, NO_LOCKS):
            log.warning("reconciler: the clock was set back, leases shortened count=%d", shortened)

    async def follow_jump(self, since: int, now: int, jump: int) -> None:
        """Prolong leases and timeouts by as much as the clock was set ahead, `jump`, between two readings."""
        follow = partial(lease_store.follow_jump, since=since, now=now, jump=jump)
        if prolonged := await self._db.write(follow, NO_LOCKS):
            text = "reconciler: the clock was set ahead, leases and timeouts extended seconds=%.1f count=%d"
            log.warning(text, jump / SECOND, prolonged)

    async def repair_on_time(self, repairs: list[TimedRepair]) -> None:
        """Wait for what is overdue soon, and repair it. What is due at the same time shares a commit."""
        clock = asyncio.get_running_loop().time

        async def repair_at(at: float, repair: Callable[[Tx], None]) -> None:
            await asyncio.sleep(max(0, at - clock()))
            await self._db.write(repair)

        await asyncio.gather(*(repair_at(at, repair) for at, repair in repairs))

    async def tick(self, tick: int) -> list[TimedRepair]:
        """Repair once; return the repairs to make before the next tick.

        `tick` counts the calls, about one a second; rare jobs run at multiples of it.
        """
        # Created before the read: changes of this process from here on override what the poll finds.
        refill_query = self._dispatcher.refill_query() if tick % self._dispatcher.refill_ticks == 0 else None

        ahead = int(seconds_until_tick(INTERVAL_SECONDS) * SECOND)

        def find(tx: Tx) -> tuple[int, list[Task], list[Task], Callable[[], None] | None]:
            until = tx.now + ahead
            overdue = lease_store.list_overdue(tx, until, MAX_REPAIRS)
            expired = lease_store.list_queue_expired(tx, until, MAX_REPAIRS)
            return tx.now, overdue, expired, refill_query(tx) if refill_query else None

        begun = self._jump_watch.begin()
        now, overdue, expired, refill = await self._db.poll(find)
        read_at = asyncio.get_running_loop().time()
        # Before the repairs, which read each task again: after a jump, tasks that seem overdue may have run for seconds
        # only.
        await self._clock_watch.look(now, self._bring_back_leases)
        await self._jump_watch.look(begun, now, self.follow_jump)
        if tick % MARK_TICKS == 0:
            self._clock_mark.write(begun, now)
        repairs = [
            (min(task.lease_until or 0, task.deadline_at or 0), self._repair(task, now + ahead)) for task in overdue
        ]
        repairs += [(task.queue_deadline_at or 0, self._expire(task)) for task in expired]
        # Together, so that they share commits: one after the other, many would take longer than until the next tick.
        await asyncio.gather(*(self._db.write(repair) for due_at, repair in repairs if due_at < now))
        if refill is not None:
            refill()
        if tick % RELEARN_TICKS == 0:
            await self._relearn()
        # Not at multiples, because tick 0 is part of the start, which should not wait for deletions.
        if tick % PURGE_TICKS == PURGE_TICKS - 1:
            await self._db.write(idempotency.purge_expired)
            await self._db.write(limit_store.purge_starts)
        # By the clock that is never set: if the other one is set meanwhile, the next tick follows that first.
        soon = [
            (read_at + (due_at - now) / SECOND + LATE_SECONDS, repair) for due_at, repair in repairs if due_at >= now
        ]
        return sorted(soon, key=itemgetter(0))

    async def _relearn(self) -> None:
        for task in await self._db.poll(lambda tx: store.list_unlearned(tx, tx.now - SECOND, BATCH_SIZE)):
            try:
                await self._db.write(partial(self._learn_again, seen=task))
            except StoreUnavailable:
                return  # retried later; a start must not fail because only the learning tables are unavailable
            except Exception:
                log.exception("reconciler: learning failed again task_id=%s", task.task_id)

    def _learn_again(self, tx: Tx, seen: Task) -> None:
        # Read again: another process may have learned from it, or it is retried, since `seen`.
        task = require_task(tx, seen.tenant, seen.task_id)
        if task.learning_pending and task.epoch == seen.epoch:
            self._outcomes.retry_learning(tx, task)

    async def release_claims(self, claims: list[TaskClaim]) -> None:
        """Requeue the claims that this process will not finish, so that others or its next start can take them at once.

        They do not count as attempts that the agent has lost.
        """

        def work(tx: Tx) -> None:
            for claim in claims:
                task = require_task(tx, claim.tenant, claim.task_id)
                # Only our own claim: the outcome may be recorded already, or the task be claimed by another process.
                if task.status == "executing" and task.epoch == claim.epoch:
                    reason = "The process that ran it is shutting down."
                    queued = self._requeue(tx, task, reason, attempt_epoch=task.attempt_epoch + 1)
                    tx.after_commit(partial(self._dispatcher.enqueue, queued))

        if claims:
            await self._db.write(work)

    def _recover_batch(self, tx: Tx) -> int:
        tasks = lease_store.list_executing_in_process(tx, BATCH_SIZE)
        for task in tasks:
            repair = model.requeue_or_fail(task, self._max_attempts)
            self._apply(tx, task, repair, "The service was restarted.", enqueue=False)
        return len(tasks)

    def _repair(self, seen: Task, until: int) -> Callable[[Tx], None]:
        """Return the repair of a task whose lease or timeout, or both, expire before the time `until`."""

        def work(tx: Tx) -> None:
            # Read again under the transaction: since `seen` the attempt may have ended or renewed its lease.
            task = require_task(tx, seen.tenant, seen.task_id)
            if task.status != "executing" or task.deadline_at != seen.deadline_at:
                return
            # The clock may have been set ahead by more than the renewed lease, so the next tick decides. But not about
            # a timeout, or an agent that renews its lease all the time would never reach it.
            if task.lease_until != seen.lease_until and (task.deadline_at or 0) >= until:
                return
            repair = model.choose_repair(task, tx.now, self._max_attempts)
            if repair is not None:
                self._apply(tx, task, repair, "The lease expired without a result.")

        return work

    def _expire(self, seen: Task) -> Callable[[Tx], None]:
        """Return the abort of a task that waited longer than its `queue_timeout_seconds`; it is not evidence."""

        def work(tx: Tx) -> None:
            # Read again: since `seen` it may have been claimed, or queued again with a later deadline.
            task = require_task(tx, seen.tenant, seen.task_id)
            deadline = task.queue_deadline_at
            if task.status != "queued" or deadline is None or deadline >= tx.now or deadline != seen.queue_deadline_at:
                return
            message = f"No agent claimed the task within {task.queue_timeout_seconds} s."
            error = {"code": "QUEUE_TIMEOUT", "message": message}
            meta = {"status": "aborted", "outcome_class": "timeout", "learning_eligible": False, "error": error}
            drafts = [EventDraft("task_aborted", "execution", message, meta), learning_skipped_event("timeout")]
            head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
            if store.end_without_learning(tx, task, "aborted", "timeout", error, head):
                changes = ("queued", task.assigned_agent, -1), ("aborted", task.assigned_agent, 1)
                queries.update_counts(tx, task.tenant, task.created_at, *changes)
                tx.after_commit(lambda: self._dispatcher.stop(task.tenant, task.task_id, task.epoch))

        return work

    def _apply(self, tx: Tx, task: Task, repair: model.RepairAction, reason: str, *, enqueue: bool = True) -> None:
        agent = self._agents.get(task.tenant, task.assigned_agent or "")
        is_quarantined = agent is not None and agent.status == "quarantined"
        if repair == "requeue" and not is_quarantined:
            queued = self._requeue(tx, task, reason)
            if enqueue:
                # After the commit: if it is rolled back, the attempt that may still run here continues.
                tx.after_commit(lambda: self._restart(queued))
            return
        if repair == "abort":
            outcome = model.TIMEOUT_OUTCOME
        else:
            outcome = model.QUARANTINED_OUTCOME if is_quarantined else model.lease_lost_outcome(task)
        assert task.assigned_agent is not None
        try:
            # record() writes events before it checks the epoch; the savepoint undoes them if the lease is lost.
            with tx.savepoint():
                self._outcomes.record(tx, task, task.assigned_agent, task.start_time or tx.now, outcome)
        except LeaseLost:
            return  # the attempt has recorded its own outcome
        tx.after_commit(lambda: self._dispatcher.stop(task.tenant, task.task_id, task.epoch))

    def _requeue(self, tx: Tx, task: Task, reason: str, attempt_epoch: int | None = None) -> QueuedTask:
        drafts = [EventDraft("task_requeued", "execution", reason, {"epoch": task.epoch}, agent_id=task.assigned_agent)]
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        if not store.requeue(tx, task, "queued", head, attempt_epoch=attempt_epoch):
            raise LeaseLost("The task changed at the same moment.")
        changes = ("executing", task.assigned_agent, -1), ("queued", task.assigned_agent, 1)
        queries.update_counts(tx, task.tenant, task.created_at, *changes)
        return to_queued_task(require_task(tx, task.tenant, task.task_id))

    def _restart(self, queued: QueuedTask) -> None:
        # Stop first: stop() would also remove the new queue entry.
        self._dispatcher.stop(queued.tenant, queued.task_id, queued.epoch)
        self._dispatcher.enqueue(queued)
