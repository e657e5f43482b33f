"""A task that waits: its attempt has ended and no agent holds it, until what it waits for queues it again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stentor.core.db import Tx
from stentor.core.errors import LeaseLost, StoreConflict
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.tasks import queries, store
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.store import TaskRef
from stentor.domains.tasks.submission.placement import TaskQueue, TaskRouter, enqueue_after_commit

ResumeCause = tuple[str, str]
"""Message of the event, and the event that ended the wait."""


def suspend(tx: Tx, runlog: RunLog, task: Task, message: str, keys: list[str]) -> None:
    """End the attempt of an executing task. `keys` are the steps that it waits for. Raises LeaseLost."""
    meta = {"status": "waiting", "epoch": task.epoch, "keys": keys}
    draft = EventDraft("task_waiting", "tasks", message, meta, task.assigned_agent)
    head = runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)
    # The error undoes the whole function, and with it the event above.
    if not store.suspend(tx, task, head):
        raise LeaseLost("You no longer hold the lease of this task.")
    changes = ("executing", task.assigned_agent, -1), ("waiting", task.assigned_agent, 1)
    queries.update_counts(tx, task.tenant, task.created_at, *changes)


def resume_all(
    tx: Tx, runlog: RunLog, router: TaskRouter, dispatch: TaskQueue, causes: Mapping[TaskRef, ResumeCause]
) -> None:
    """Queue those of the tasks again that wait."""
    heads: list[tuple[Task, str]] = []
    for ref, task in store.find_all(tx, causes).items():
        if task.status == "waiting":
            message, cause = causes[ref]
            meta = {"status": "queued", "cause": cause}
            draft = EventDraft("task_resumed", "tasks", message, meta, task.assigned_agent)
            head = runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)
            heads.append((task, head))
    resumed = store.resume_all(tx, heads)
    for task, head in heads:
        if (task.tenant, task.task_id) not in resumed:
            # Another process changed it in the meantime: undo the event too.
            raise StoreConflict("A task that waits changed at the same moment.")
        changes = ("waiting", task.assigned_agent, -1), ("queued", task.assigned_agent, 1)
        queries.update_counts(tx, task.tenant, task.created_at, *changes)
        router.record_change(tx, task, "queued")
        queued = msgspec.structs.replace(task, status="queued", queued_at=tx.now, head_id=head)
        enqueue_after_commit(tx, queued, dispatch)
