"""SQL of cancelled tasks whose subtasks, and waits for children, are still to be ended.

A task is recorded in the transaction that cancels it, and gets no subtask after it. So no job has to search for tasks
whose parent was cancelled, and a subtask that a person retries later continues.
"""

from __future__ import annotations

import msgspec

from stentor.core.db import RowsSql, Sql, Tx
from stentor.domains.tasks.store import TaskRef

# A task that was run again from a step waits for children of the first one. With an expression, for which no database
# reads all waits for children in their index.
_HAS_SUBTASKS_OR_WAITS = Sql(
    """select 1 from tasks where tenant = :tenant and parent_task_id = :parent
    union all select 1 from task_steps
        where tenant = :tenant and task_id = :parent and state = 'started' and kind || '' = 'child'
    limit 1"""
)
_NOTE = Sql("insert into cancelled_parents (tenant, task_id) values (:tenant, :parent) on conflict do nothing")
_NOTE_ALL = RowsSql(
    ("tenant", "task_id"),
    """insert into cancelled_parents (tenant, task_id) select given.tenant, given.task_id from given
    where exists (select 1 from tasks where tasks.tenant = given.tenant and tasks.parent_task_id = given.task_id)
        or exists (select 1 from task_steps where task_steps.tenant = given.tenant
            and task_steps.task_id = given.task_id and state = 'started' and kind || '' = 'child')
    on conflict do nothing returning task_id""",
)
_LIST_PARENTS = Sql("select tenant, task_id, seen_created_at, seen_task_id from cancelled_parents limit :limit")
# In the order of the index by parent, so that PostgreSQL uses that index.
_LIST_OPEN = Sql(
    """select created_at, task_id from tasks where tenant = :tenant and parent_task_id = :parent
        and (created_at, task_id) > (:seen_created_at, :seen_task_id) and completion_time is null
    order by created_at, task_id limit :limit"""
)
_SET_POSITION = Sql(
    """update cancelled_parents set seen_created_at = :seen_created_at, seen_task_id = :seen_task_id
    where tenant = :tenant and task_id = :parent"""
)
_FIND_POSITION = Sql(
    "select seen_created_at, seen_task_id from cancelled_parents where tenant = :tenant and task_id = :parent"
)
# Only columns of the index by parent: 100,000 subtasks take milliseconds.
_COUNT_AFTER = Sql(
    """select count(*) from tasks where tenant = :tenant and parent_task_id = :parent
    and (created_at, task_id) > (:seen_created_at, :seen_task_id)"""
)
_FORGET = Sql("delete from cancelled_parents where tenant = :tenant and task_id = :parent")


def note_cancelled(tx: Tx, tenant: str, task_id: str) -> None:
    """Record a task if it has subtasks or waits for a child. Hold the lock of the task."""
    if tx.row(_HAS_SUBTASKS_OR_WAITS, tenant=tenant, parent=task_id):
        tx.run(_NOTE, tenant=tenant, parent=task_id)


def note_all_cancelled(tx: Tx, refs: list[TaskRef]) -> None:
    """Record those of the tasks that have subtasks or wait for a child. Hold their locks."""
    tx.rows_for(_NOTE_ALL, refs)


_AGAIN = -1
"""Position at the start once all subtasks have been read: few of them, if any, are still open."""


class CancelledParent(msgspec.Struct, frozen=True):
    """A cancelled task; its subtasks up to this position, in the order of their creation, have been read already."""

    tenant: str
    task_id: str
    seen_created_at: int
    seen_task_id: str

    @property
    def ref(self) -> TaskRef:
        return self.tenant, self.task_id

    @property
    def is_at_start(self) -> bool:
        return self.seen_created_at <= 0


def list_parents(tx: Tx, limit: int) -> list[CancelledParent]:
    """List cancelled tasks whose subtasks and waits are still to be ended."""
    return [CancelledParent(*row) for row in tx.rows(_LIST_PARENTS, limit=limit)]


def list_open(
    tx: Tx, parents: list[CancelledParent], limit: int
) -> tuple[list[tuple[str, str, str]], list[CancelledParent], list[TaskRef]]:
    """List subtasks of these tasks that have not ended: tenant, id, and id of the parent.

    Also return the parents with a new position, and those that have no open subtask from the first one on.
    """
    found, moved, over = list[tuple[str, str, str]](), list[CancelledParent](), list[TaskRef]()
    for parent in parents:
        if len(found) >= limit:
            break
        left, position = limit - len(found), msgspec.structs.asdict(parent)
        rows = tx.rows(_LIST_OPEN, **position | {"parent": position.pop("task_id"), "limit": left})
        found += [(parent.tenant, task_id, parent.task_id) for _, task_id in rows]
        if len(rows) == left:
            created_at, task_id = rows[-1]
            moved.append(CancelledParent(*parent.ref, created_at, task_id))
        elif not parent.is_at_start:
            # From the first one again: what changed at the moment when it was to be cancelled is still open.
            moved.append(CancelledParent(*parent.ref, _AGAIN, ""))
        elif not rows:
            over.append(parent.ref)
    return found, moved, over


def save_positions(tx: Tx, moved: list[CancelledParent], over: list[TaskRef]) -> None:
    """Store the new positions of cancelled tasks, and forget those all of whose subtasks have ended."""
    rows = [msgspec.structs.asdict(parent) for parent in moved]
    tx.many(_SET_POSITION, [row | {"parent": row.pop("task_id")} for row in rows])
    tx.many(_FORGET, [{"tenant": tenant, "parent": task_id} for tenant, task_id in over])


def count_left(tx: Tx, tenant: str, parent: str) -> int:
    """Return how many direct subtasks of a cancelled task are still to be cancelled, with those that ended by
    themselves.
    """
    row = tx.row(_FIND_POSITION, tenant=tenant, parent=parent)
    if row is None or row[0] == _AGAIN:
        return 0
    position = {"seen_created_at": row[0], "seen_task_id": row[1]}
    return int(tx.rows(_COUNT_AFTER, tenant=tenant, parent=parent, **position)[0][0])
