"""Use cases of tasks that are stored already: read, list, cancel, approve, reject, retry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, Forbidden, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.learning.service import learning_skipped_event
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agents
from stentor.domains.tasks import events, model, queries, store
from stentor.domains.tasks.model import Task, TaskFilter, TaskPage, TaskStatus
from stentor.domains.tasks.placement import AuthorityResolver, Placement, TaskQueue, TaskRouter, enqueue_after_commit

EventExtra = Mapping[str, Any]
NO_EVENT_EXTRA: EventExtra = MappingProxyType({})


class TaskService:
    def __init__(
        self, db: Database, runlog: RunLog, placing: TaskRouter, dispatch: TaskQueue, grants: AuthorityResolver
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._placing = placing
        self._dispatch = dispatch
        self._grants = grants

    async def get(self, principal: Principal, task_id: str) -> Task:
        """Raises NotFound, the same for a foreign task as for none."""
        return await self._db.read(lambda tx: require_visible_task(tx, principal, task_id))

    def notice(self, task: Task) -> str | None:
        """What a reader should know of a task that waits, or None."""
        return self._placing.notice(task)

    async def list_page(self, principal: Principal, wanted: TaskFilter, limit: int, offset: int) -> TaskPage:
        """A page of what the caller sees, newest first, and how many match in all."""
        tenant = principal.tenant
        wanted = msgspec.structs.replace(wanted, key=queries.visibility_key(principal))

        def read(tx: Tx) -> TaskPage:
            # One row more than asked for tells whether there is a next page.
            rows = queries.read_page(tx, tenant, wanted, limit + 1, offset)
            return TaskPage(rows[:limit], queries.count_tasks(tx, tenant, wanted), len(rows) > limit)

        return await self._db.read(read)

    async def cancel(self, principal: Principal, task_id: str) -> int:
        """Final at once; the work is stopped after the commit. Answers the time of the cancellation."""
        return await self._db.write(lambda tx: self.cancel_in_tx(tx, principal, task_id), ())

    def cancel_in_tx(self, tx: Tx, principal: Principal, task_id: str, event_extra: EventExtra = NO_EVENT_EXTRA) -> int:
        """The same as a part of somebody's own transaction; `via` goes into the event."""
        task = _living(tx, principal, task_id, "cancelled")
        meta = {"by": principal.name, "from": task.status, "status": "cancelled", **event_extra}
        self._end(tx, task, "cancelled", None, EventDraft("task_cancelled", "tasks", "Task cancelled.", meta))
        return tx.now

    async def approve(self, principal: Principal, task_id: str) -> Task:
        """Let a task that waits for a human go into the queue."""
        return await self._db.write(lambda tx: self.approve_in_tx(tx, principal, task_id))

    def approve_in_tx(
        self, tx: Tx, principal: Principal, task_id: str, event_extra: EventExtra = NO_EVENT_EXTRA
    ) -> Task:
        """The same as a part of somebody's own transaction. Raises Forbidden for the agent's own hand."""
        task = _pending(tx, principal.tenant, task_id)
        _check_approver(tx, principal, task)
        given = EventDraft(
            "approval_given", "tasks", "Approved.", {"by": principal.name, "approved": True, **event_extra}
        )
        return self._requeue(tx, task, "queued", [given, events.queued_event(task.priority)])

    async def reject(self, principal: Principal, task_id: str, reason: str | None) -> Task:
        """End a task that waits for a human: aborted, APPROVAL_REJECTED."""
        return await self._db.write(lambda tx: self.reject_in_tx(tx, principal, task_id, reason))

    def reject_in_tx(
        self, tx: Tx, principal: Principal, task_id: str, reason: str | None, event_extra: EventExtra = NO_EVENT_EXTRA
    ) -> Task:
        """The same as a part of somebody's own transaction."""
        task = _pending(tx, principal.tenant, task_id)
        error = {"code": "APPROVAL_REJECTED", "message": reason or "The approval was refused."}
        meta = {"by": principal.name, "approved": False, "reason": reason, "status": "aborted", **event_extra}
        self._end(tx, task, "aborted", error, EventDraft("task_aborted", "tasks", "Rejected.", meta))
        return require_task(tx, task.tenant, task.task_id)

    async def retry(self, principal: Principal, task_id: str) -> Task:
        """A new attempt of a failed or aborted task, routed anew. Raises the RoutingDenied."""
        return await self._db.write(await self.prepare_retry(principal, task_id))

    async def prepare_retry(
        self, principal: Principal, task_id: str, event_extra: EventExtra = NO_EVENT_EXTRA
    ) -> Callable[[Tx], Task]:
        """The same as a part of somebody's own transaction, routed now."""
        task = await self.get(principal, task_id)
        grant_id = task.metadata.grant_id
        granted = (await self._grants.resolve_authority(principal, grant_id))[0] if grant_id else None
        placement = self._placing.route(principal, task, granted)
        if placement.denial is not None and task.status in model.RETRYABLE_STATUSES:
            raise placement.denial

        def work(tx: Tx) -> Task:
            task = require_task(tx, principal.tenant, task_id)
            if task.status not in model.RETRYABLE_STATUSES or task.learning_pending:
                raise Conflict(f"The task is {task.status}; only a failed or aborted task can be retried.")
            count = (task.metadata.retry_count or 0) + 1
            metadata = msgspec.structs.replace(task.metadata, retry_count=count)
            drafts = events.placement_events(
                placement, task.priority, {"retry_count": count, "by": principal.name, **event_extra}
            )
            return self._requeue(tx, task, placement.status, drafts, placement, metadata)

        return work

    def _requeue(
        self,
        tx: Tx,
        task: Task,
        status: TaskStatus,
        drafts: list[EventDraft],
        placement: Placement | None = None,
        metadata: model.TaskMetadata | None = None,
    ) -> Task:
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        fresh: dict[str, Any] = {}
        if placement is not None:
            fresh = {
                "agent_id": placement.agent_id,
                "runtime_kind": placement.runtime_kind,
                "attempt_epoch": task.epoch,
                "metadata": metadata,
            }
        if not store.requeue(tx, task, status, head, **fresh):
            raise Conflict("The task changed at the same moment. Look at it again.")
        changed = require_task(tx, task.tenant, task.task_id)
        self._recount(tx, task, status, changed.assigned_agent)
        enqueue_after_commit(tx, changed, self._dispatch)
        return changed

    def _end(self, tx: Tx, task: Task, status: TaskStatus, error: Any, draft: EventDraft) -> None:
        """A human's word ends the task: outcome class cancelled, and nothing is learned."""
        drafts = [draft, learning_skipped_event("cancelled")]
        head = self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        if not store.end_without_learning(tx, task, status, "cancelled", error, head):
            raise Conflict("The task changed at the same moment. Look at it again.")
        self._recount(tx, task, status, task.assigned_agent)
        tx.after_commit(lambda: self._dispatch.stop(task.tenant, task.task_id))

    def _recount(self, tx: Tx, task: Task, status: TaskStatus, agent_id: str | None) -> None:
        queries.update_counts(
            tx, task.tenant, task.created_at, (task.status, task.assigned_agent, -1), (status, agent_id, 1)
        )


def require_task(tx: Tx, tenant: str, task_id: str) -> Task:
    """Raises NotFound, also for what can be no id: empty, or longer than 255 characters."""
    task = store.find(tx, tenant, task_id) if 0 < len(task_id) <= model.MAX_ID_LENGTH and "\0" not in task_id else None
    if task is None:
        raise NotFound("No task has this id.")
    return task


def require_visible_task(tx: Tx, principal: Principal, task_id: str) -> Task:
    """Raises NotFound, the same for a task that the caller does not see as for none."""
    task = require_task(tx, principal.tenant, task_id)
    if not queries.can_see(tx, principal, task):
        raise NotFound("No task has this id.")
    return task


def _check_approver(tx: Tx, principal: Principal, task: Task) -> None:
    """Raises Forbidden: the work waits for a person, not for the key that asked for it or that would do it."""
    if principal.role == "admin":
        return
    agent = agents.find(tx, task.tenant, task.assigned_agent) if task.assigned_agent else None
    if task.submitted_by == principal.name or agent is None or authorization.can_work_as(principal, agent):
        raise Forbidden("An agent's key may not approve work that it asked for or would do: use a key of role admin.")


def _living(tx: Tx, principal: Principal, task_id: str, verb: str) -> Task:
    task = require_visible_task(tx, principal, task_id)
    if task.status in model.TERMINAL_STATUSES:
        raise Conflict(f"The task is {task.status} already, so it cannot be {verb}.")
    return task


def _pending(tx: Tx, tenant: str, task_id: str) -> Task:
    task = require_task(tx, tenant, task_id)
    if task.status != "pending_approval":
        raise Conflict(f"The task is {task.status}; it does not wait for approval.")
    return task
