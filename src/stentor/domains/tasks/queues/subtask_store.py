"""SQL of cancelled tasks whose subtasks, and waits for children, are still to be ended.

A task is recorded in the transaction that cancels it, and gets no subtask after it. So no job has to search for tasks
whose parent was cancelled, and a subtask that a person retries later continues.
"""

from __future__ import annotations

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
_LIST_PARENTS = Sql("select tenant, task_id from cancelled_parents limit :limit")
# In the order of the index by parent, so that PostgreSQL uses that index.
_LIST_OPEN = Sql(
    """select task_id from tasks where tenant = :tenant and parent_task_id = :parent and completion_time is null
    order by created_at, task_id limit :limit"""
)
_FORGET = Sql("delete from cancelled_parents where tenant = :tenant and task_id = :parent")


def note_cancelled(tx: Tx, tenant: str, task_id: str) -> None:
    """Record a task if it has subtasks or waits for a child. Hold the lock of the task."""
    if tx.row(_HAS_SUBTASKS_OR_WAITS, tenant=tenant, parent=task_id):
        tx.run(_NOTE, tenant=tenant, parent=task_id)


def note_all_cancelled(tx: Tx, refs: list[TaskRef]) -> None:
    """Record those of the tasks that have subtasks or wait for a child. Hold their locks."""
    tx.rows_for(_NOTE_ALL, refs)


def list_parents(tx: Tx, limit: int) -> list[TaskRef]:
    """List cancelled tasks whose subtasks and waits are still to be ended."""
    return [(tenant, task_id) for tenant, task_id in tx.rows(_LIST_PARENTS, limit=limit)]


def list_open(tx: Tx, parents: list[TaskRef], limit: int) -> list[tuple[str, str, str]]:
    """List subtasks of these tasks that have not ended: tenant, id, and id of the parent."""
    found = list[tuple[str, str, str]]()
    for tenant, parent in parents:
        if len(found) >= limit:
            break
        rows = tx.rows(_LIST_OPEN, tenant=tenant, parent=parent, limit=limit - len(found))
        found += [(tenant, task_id, parent) for (task_id,) in rows]
    return found


def forget(tx: Tx, parents: list[TaskRef]) -> None:
    """Forget cancelled tasks all of whose subtasks have ended."""
    tx.many(_FORGET, [{"tenant": tenant, "parent": task_id} for tenant, task_id in parents])
