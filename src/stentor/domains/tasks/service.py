"""Changes of stored tasks on behalf of a caller: cancel, approve, reject, retry.

`submission` creates tasks, `reading` reads them, `execution` runs them. A method `..._in_tx` does the same within the
caller's transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import msgspec

from stentor.auth.principal import IsActive, Principal, require_active
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.locks import locks
from stentor.core.errors import Conflict
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.registry.model import Agent
from stentor.domains.tasks import events, model, queries, store
from stentor.domains.tasks.access import check_approver, require_task, require_visible_task
from stentor.domains.tasks.model import Task, TaskStatus
from stentor.domains.tasks.queues import subtask_store
from stentor.domains.tasks.queues.damaged import refuse_damaged
from stentor.domains.tasks.store import TaskRef
from stentor.domains.tasks.submission.drafts import draft_rerun
from stentor.domains.tasks.submission.placement import (
    AuthorityResolver,
    Placement,
    StartConditions,
    TaskQueue,
    TaskRouter,
    enqueue_after_commit,
)

EventExtra = Mapping[str, Any]
NO_EVENT_EXTRA: EventExtra = MappingProxyType({})


class TaskService:
    """Changes the status of tasks on behalf of a caller."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        router: TaskRouter,
        dispatch: TaskQueue,
        grants: AuthorityResolver,
        starts: StartConditions,
        is_active: IsActive,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._router = router
        self._dispatch = dispatch
        self._grants = grants
        self._starts = starts
        self._is_active = is_active

    async def cancel(self, principal: Principal, task_id: str) -> int:
        """Cancel a task and, after the commit, stop its execution. Return the time of cancellation, in microseconds."""
        # Without a lock: the update names the status, the epoch and the head that were read.
        return await self._db.write(lambda tx: self.cancel_in_tx(tx, principal, task_id), NO_LOCKS)

    def cancel_in_tx(self, tx: Tx, principal: Principal, task_id: str, event_extra: EventExtra = NO_EVENT_EXTRA) -> int:
        """Cancel a task within the caller's transaction; `event_extra` goes into the event's metadata."""
        task = _require_not_ended(tx, principal, task_id)
        if task.submitted_by != principal.name:
            require_active(principal, self._is_active, "cancel tasks of others")
        self.cancel_found(tx, task, principal.name, event_extra)
        return tx.now

    def cancel_found(self, tx: Tx, task: Task, by: str, event_extra: EventExtra) -> None:
        """Cancel a task that was read in this transaction and has not ended, whether or not the key `by` sees it."""
        meta = {"by": by, "from": task.status, "status": "cancelled", **event_extra}
        event = EventDraft("task_cancelled", "tasks", "Task cancelled.", meta)
        self._end_as_cancelled(tx, task, "cancelled", None, event)

    def cancel_subtasks(self, tx: Tx, parents: Mapping[TaskRef, str]) -> None:
        """Cancel tasks, given with their parents, because those were cancelled; what has ended stays as it is.

        Hold their locks.
        """
        drafts = list[tuple[Task, EventDraft]]()
        for ref, task in store.find_all(tx, parents).items():
            if task.status not in model.TERMINAL_STATUSES:
                meta = {"from": task.status, "status": "cancelled", "parent_task_id": parents[ref]}
                drafts.append((task, EventDraft("task_cancelled", "tasks", "Cancelled with its parent.", meta)))
        subtask_store.note_all_cancelled(tx, self._end_all_as_cancelled(tx, drafts, "cancelled", None))

    def abort_unstarted(self, tx: Tx, tenant: str, task_id: str, message: str) -> None:
        """Abort a task that waits for its first attempt, because a task that it comes after did not complete."""
        task = store.find(tx, tenant, task_id)
        if task is None or task.epoch > 0 or task.status not in ("waiting", "pending_approval"):
            return
        error = {"code": "DEPENDENCY_FAILED", "message": message}
        event = EventDraft("task_aborted", "tasks", message, {"code": error["code"], "status": "aborted"})
        self._end_as_cancelled(tx, task, "aborted", error, event)

    def abort_late(self, tx: Tx, late: Sequence[TaskRef]) -> None:
        """Abort tasks whose deadline has passed, unless they have ended in the meantime."""
        error = {"code": "DEADLINE_EXCEEDED", "message": "The deadline of the task passed before it had ended."}
        drafts = list[tuple[Task, EventDraft]]()
        for task in store.find_all(tx, late).values():
            if task.status not in model.TERMINAL_STATUSES and is_late(tx, task):
                meta = {"code": error["code"], "from": task.status, "status": "aborted"}
                drafts.append((task, EventDraft("task_aborted", "tasks", error["message"], meta)))
        self._end_all_as_cancelled(tx, drafts, "aborted", error)

    async def approve(self, principal: Principal, task_id: str) -> Task:
        """Approve a task that waits for approval; it is queued."""
        return await self._db.write(lambda tx: self.approve_in_tx(tx, principal, task_id))

    def approve_in_tx(
        self, tx: Tx, principal: Principal, task_id: str, event_extra: EventExtra = NO_EVENT_EXTRA
    ) -> Task:
        """Approve within the caller's transaction. Raises Forbidden for a key that submitted or would do the task."""
        task = _require_pending(tx, principal, task_id)
        check_approver(tx, principal, task)
        meta = {"by": principal.name, "approved": True, **event_extra}
        approval = EventDraft("approval_given", "tasks", f"Approved by {principal.name}.", meta)
        if self._starts.has_open(tx, task):
            return self._requeue(tx, task, "waiting", [approval, events.waiting_event()])
        return self._requeue(tx, task, "queued", [approval, events.queued_event(task.priority)])

    async def reject(self, principal: Principal, task_id: str, reason: str | None) -> Task:
        """Reject a task that waits for approval: it is aborted with APPROVAL_REJECTED."""
        return await self._db.write(lambda tx: self.reject_in_tx(tx, principal, task_id, reason))

    def reject_in_tx(
        self, tx: Tx, principal: Principal, task_id: str, reason: str | None, event_extra: EventExtra = NO_EVENT_EXTRA
    ) -> Task:
        """Reject within the caller's transaction."""
        task = _require_pending(tx, principal, task_id)
        error = {"code": "APPROVAL_REJECTED", "message": reason or "The approval was rejected."}
        meta = {"by": principal.name, "approved": False, "reason": reason, **event_extra}
        # An event of its own for the audit, which does not list how tasks end.
        refusal = EventDraft("approval_refused", "tasks", f"Rejected by {principal.name}.", meta)
        end = EventDraft("task_aborted", "tasks", "Rejected.", {**meta, "status": "aborted"})
        self._end_as_cancelled(tx, task, "aborted", error, refusal, end)
        return require_task(tx, task.tenant, task.task_id)

    async def retry(self, principal: Principal, task_id: str) -> Task:
        """Route a failed or aborted task again and queue it. Raises RoutingDenied, and Conflict for another status."""
        async with self.prepare_retry(principal, task_id) as work:
            return await self._db.write(work)

    async def prepare_rerun(
        self, principal: Principal, task_id: str, agent_preference: str | None, from_step: str | None
    ) -> model.TaskDraft:
        """Return the draft of a new task that repeats a task, with another preferred agent if one is given.

        With `from_step` it takes over what is recorded before that step. Raises NotFound.
        """

        def read(tx: Tx) -> model.TaskDraft:
            task = require_visible_task(tx, principal, task_id)
            task_input = queries.read_whole_input(tx, principal.tenant, task_id)
            return draft_rerun(task, task_input, agent_preference, from_step)

        return await self._db.read(read)

    @asynccontextmanager
    async def prepare_retry(
        self, principal: Principal, task_id: str, event_extra: EventExtra = NO_EVENT_EXTRA
    ) -> AsyncIterator[Callable[[Tx], Task]]:
        """Route a retry now and yield the write for the caller's transaction."""
        task = await self._db.read(lambda tx: require_visible_task(tx, principal, task_id))
        refuse_damaged(task)
        grant_id = task.metadata.grant_id
        granted = (await self._grants.resolve_authority(principal, grant_id))[0] if grant_id else None
        with await self._router.place(principal, task, granted) as placement:
            # In another status the task cannot be retried at all, or has an agent by then; the write reports that.
            if placement.denial is not None and task.status in model.RETRYABLE_STATUSES:
                raise placement.denial
            meta = {"by": principal.name, **event_extra}
            yield lambda tx: self._retry(tx, principal.tenant, task_id, placement, meta)

    def _retry(self, tx: Tx, tenant: str, task_id: str, placement: Placement, event_extra: EventExtra) -> Task:
        task = require_task(tx, tenant, task_id)
        # Read again: the task may have changed since it was routed. While its outcome is still to be learned, a retry
        # would overwrite the row that the learning needs.
        if task.status not in model.RETRYABLE_STATUSES:
            raise Conflict(f"The task is {task.status}; only a failed or aborted task can be retried.")
        if task.learning_pending:
            raise Conflict("The outcome of the task is still being learned. Retry in a few seconds.")
        if is_late(tx, task):
            raise Conflict("The deadline of the task has passed. Do it again as a new task: `stentor task rerun`.")
        if placement.denial is not None:
            raise placement.denial
        metadata = msgspec.structs.replace(task.metadata, retry_count=(task.metadata.retry_count or 0) + 1)
        drafts = events.placement_events(placement, task.priority, {"retry_count": metadata.retry_count, **event_extra})
        self._starts.end(tx, task)
        changed = self._requeue(tx, task, placement.status, drafts, placement, metadata)
        self._router.record_placement(tx, changed)
        return changed

    def _requeue(
        self,
        tx: Tx,
        task: Task,
        status: TaskStatus,
        drafts: list[EventDraft],
        placement: Placement | None = None,
        metadata: model.TaskMetadata | None = None,
    ) -> Task:
        """Write events and status of a task that is queued again. Raises Conflict if it changed since it was read."""
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        assignment: dict[str, Any] = {}
        if placement is not None:
            assignment = {
                "agent_id": placement.agent_id,
                "runtime_kind": placement.runtime_kind,
                "attempt_epoch": task.epoch,
                "retry_epoch": task.epoch,
                "metadata": metadata,
            }
        # The error undoes the whole function, and with it the events above.
        if not store.requeue(tx, task, status, head, **assignment):
            raise Conflict("The task was changed by another request. Read it again.")
        changed = require_task(tx, task.tenant, task.task_id)
        self._recount(tx, task, status, changed.assigned_agent)
        enqueue_after_commit(tx, changed, self._dispatch)
        return changed

    def _end_as_cancelled(self, tx: Tx, task: Task, status: TaskStatus, error: Any, *drafts: EventDraft) -> None:
        """End a task with the outcome class cancelled, also an aborted one.

        A person, a dependency or its deadline ended it, so it is not evidence about its agent.
        """
        if status == "cancelled":
            # A submission of a subtask takes it too; only a cancelled task gets no more of them.
            tx.lock(locks.task_lock(task.tenant, task.task_id))
            subtask_store.note_cancelled(tx, task.tenant, task.task_id)
        ended = [*drafts, learning_skipped_event("cancelled")]
        head = self._runlog.append(tx, task.tenant, ended, task_id=task.task_id, parent=task.head_id)
        if not store.end_without_learning(tx, task, status, "cancelled", error, head):
            raise Conflict("The task was changed by another request. Read it again.")
        self._forget(tx, task, status)

    def _end_all_as_cancelled(
        self, tx: Tx, drafts: list[tuple[Task, EventDraft]], status: TaskStatus, error: Any
    ) -> list[TaskRef]:
        """End many tasks with the outcome class cancelled, each with its event; return those that had not changed."""
        ends = [(task, [draft, learning_skipped_event("cancelled")]) for task, draft in drafts]
        heads = [(task, recorded[-1].event_id) for task, recorded in ends]
        # Before the events, because a task that another process has just changed must not get them.
        ended = store.end_all_without_learning(tx, heads, status, "cancelled", error)
        for task, recorded in ends:
            if (task.tenant, task.task_id) in ended:
                self._runlog.append(tx, task.tenant, recorded, task_id=task.task_id, parent=task.head_id)
                self._forget(tx, task, status)
        return sorted(ended)

    def _forget(self, tx: Tx, task: Task, status: TaskStatus) -> None:
        """Count a task that was ended here, and stop its attempt."""
        self._recount(tx, task, status, task.assigned_agent)
        # Only after the commit: a rollback would leave an executing task whose execution was stopped.
        tx.after_commit(lambda: self._dispatch.stop(task.tenant, task.task_id, task.epoch))

    def _recount(self, tx: Tx, task: Task, status: TaskStatus, agent_id: str | None) -> None:
        self._router.record_change(tx, task, status)
        changes = (task.status, task.assigned_agent, -1), (status, agent_id, 1)
        queries.update_counts(tx, task.tenant, task.created_at, *changes)


def refuse_to_archive(tx: Tx, agent: Agent) -> None:
    """Refuse to archive an agent whose tasks are running or waiting. Raises Conflict."""
    if count := queries.count_running(tx, agent.tenant, agent.agent_id):
        tasks = "1 task" if count == 1 else f"{count} tasks"
        raise Conflict(
            f"The agent {agent.name!r} has {tasks} running or waiting. Suspend it and archive it when they have ended, "
            "or archive it with force: they continue, and no new ones start."
        )


def is_late(tx: Tx, task: Task) -> bool:
    """Return whether the deadline of a task has passed."""
    return task.end_by is not None and task.end_by < tx.now


def _require_not_ended(tx: Tx, principal: Principal, task_id: str) -> Task:
    task = require_visible_task(tx, principal, task_id)
    if task.status in model.TERMINAL_STATUSES:
        raise Conflict(f"The task is {task.status} already, so it cannot be cancelled.")
    return task


def _require_pending(tx: Tx, principal: Principal, task_id: str) -> Task:
    task = require_visible_task(tx, principal, task_id)
    if task.status != "pending_approval":
        raise Conflict(f"The task is {task.status}; it does not wait for approval.")
    return task
