"""A task that waits: its attempt has ended and no agent holds it, until what it waits for queues it again."""

from __future__ import annotations

from stentor.core.db import Tx
from stentor.core.errors import LeaseLost
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.placement import TaskQueue, enqueue_after_commit


def suspend(tx: Tx, runlog: RunLog, task: Task, message: str, keys: list[str]) -> None:
    """End the attempt of an executing task. `keys` are the steps that it waits for. Raises LeaseLost."""
    meta = {"status": "waiting", "epoch": task.epoch, "keys": keys}
    draft = EventDraft("task_waiting", "tasks", message, meta, task.assigned_agent)
    head = runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)
    if not store.suspend(tx, task, head):
        raise LeaseLost("You no longer hold the lease of this task.")
    changes = ("executing", task.assigned_agent, -1), ("waiting", task.assigned_agent, 1)
    queries.update_counts(tx, task.tenant, task.created_at, *changes)


def resume(tx: Tx, runlog: RunLog, dispatch: TaskQueue, tenant: str, task_id: str, message: str, cause: str) -> None:
    """Queue a task again if it waits. `cause` is the event that ended the wait."""
    task = store.find(tx, tenant, task_id)
    if task is None or task.status != "waiting":
        return
    draft = EventDraft("task_resumed", "tasks", message, {"status": "queued", "cause": cause}, task.assigned_agent)
    head = runlog.append(tx, tenant, [draft], task_id=task_id, parent=task.head_id)
    # Only attempts that are lost from now on count: the ones before it ended as they should.
    if store.requeue(tx, task, "queued", head, attempt_epoch=task.epoch):
        changes = ("waiting", task.assigned_agent, -1), ("queued", task.assigned_agent, 1)
        queries.update_counts(tx, tenant, task.created_at, *changes)
        resumed = store.find(tx, tenant, task_id)
        assert resumed is not None
        enqueue_after_commit(tx, resumed, dispatch)
