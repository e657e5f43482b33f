"""SQL of tasks and their grades: inserts, reads, and status changes that fail if the row changed in the meantime.

Every change names the status and the epoch that it expects, so that a late writer changes nothing and gets False or
None. Lists and counts for callers are in `queries`, the queue and its claims in `queues`.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import SECOND
from stentor.core.db import NumberedTable, RowsSql, RowUpdate, Sql, Tx
from stentor.core.errors import CorruptRow
from stentor.domains.tasks.model import (
    PRIORITIES,
    TERMINAL_STATUSES,
    Grade,
    OutcomeClass,
    Task,
    TaskClaim,
    TaskMetadata,
    TaskStatus,
)
from stentor.domains.tasks.rows import COLUMNS_OF_TASK, FIELDS, task_from_row

TaskRef = tuple[str, str]
"""Tenant and id of a task."""
_COLUMNS = ", ".join(FIELDS)
_STATUS = FIELDS.index("status")
_KEY = "tenant = :tenant and task_id = :task_id"
_FIND = Sql(f"select {_COLUMNS} from tasks where {_KEY}")
_FIND_ALL = RowsSql(
    ("tenant", "task_id"),
    f"""select {COLUMNS_OF_TASK} from given join tasks
        on tasks.tenant = given.tenant and tasks.task_id = given.task_id""",
)
_RESULT = Sql(f"select result from tasks where {_KEY}")
_INSERT_COLUMNS = tuple(field for field in FIELDS if field not in ("performance", "result"))
LONG_INPUT = 100_000
"""Characters of an input from which its row is inserted in a statement of its own."""
_TASK_COLUMNS = (*_INSERT_COLUMNS, "session_id", "input")
_LANE = {"assigned_agent": "text", "submitted_by": "text", "priority": "integer", "queued_at": "bigint"}
_lane_of, _status_of = itemgetter(*map(_TASK_COLUMNS.index, _LANE)), itemgetter(_TASK_COLUMNS.index("status"))
_TASKS = NumberedTable(
    "tasks",
    _TASK_COLUMNS,
    "turn",
    group=_LANE,
    group_of=lambda row: _lane_of(row) if _status_of(row) == "queued" else None,
    function="find_turns",
)
# Only the claim must still hold: a heartbeat or an event of the attempt since then does not matter. Without `coalesce`
# PostgreSQL takes an index by the status, in which it finds all tasks that execute and have executed since its vacuum.
_FINISH = RowUpdate(
    """update tasks set status = :status, completion_time = :now, result = :result, error = :error,
        outcome_class = :outcome_class, learning_eligible = :learning_eligible, performance = :performance,
        learning_pending = :learning_pending, head_id = :head_id, lease_until = null, deadline_at = null
    where tasks.tenant = :tenant and tasks.task_id = :task_id and coalesce(tasks.status, '') = 'executing'
        and tasks.epoch = :epoch""",
    {"now": "bigint", "epoch": "bigint", "learning_eligible": "bigint", "learning_pending": "bigint"}
    | {"performance": "double precision"},
)
# The head as well, because a move to another agent leaves status and epoch as they are.
_END_WITHOUT_LEARNING = Sql(
    f"""update tasks set status = :status, completion_time = :now, error = :error, outcome_class = :outcome_class,
        learning_eligible = 0, head_id = :head_id, lease_until = null, deadline_at = null
    where {_KEY} and status = :source and epoch = :epoch and head_id = :seen"""
)
_END_ALL_WITHOUT_LEARNING = RowsSql(
    ("tenant", "task_id", "source", "epoch", "seen", "head_id"),
    """update tasks set status = :status, completion_time = :now, error = :error, outcome_class = :outcome_class,
        learning_eligible = 0, head_id = given.head_id, lease_until = null, deadline_at = null
    from given where tasks.tenant = given.tenant and tasks.task_id = given.task_id
        and coalesce(tasks.status, '') = given.source and tasks.epoch = cast(given.epoch as bigint)
        and tasks.head_id = given.seen
    returning tasks.tenant, tasks.task_id""",
)
_REASSIGN = Sql(
    f"""update tasks set assigned_agent = :agent_id, runtime_kind = :runtime_kind, head_id = :head_id
    where {_KEY} and status = 'queued' and epoch = :epoch and head_id = :seen"""
)
# Without a queue timeout the deadline becomes null, as null plus anything is. The journal stays: its steps count
# for the next attempt.
_REQUEUE = Sql(
    f"""update tasks set status = :status, queued_at = :now, parked = 0, head_id = :head_id, assigned_agent = :agent_id,
        runtime_kind = :runtime_kind, attempt_epoch = :attempt_epoch, retry_epoch = :retry_epoch, metadata = :metadata,
        queue_deadline_at = :now + cast(queue_timeout_seconds as bigint) * {SECOND},
        start_time = null, completion_time = null, lease_until = null, deadline_at = null, result = null,
        error = null, outcome_class = null, learning_eligible = null, performance = null
    where {_KEY} and status = :source and epoch = :epoch"""
)
_RESUME = RowsSql(
    ("tenant", "task_id", "epoch", "head_id"),
    f"""update tasks set status = 'queued', queued_at = :now, parked = 0, head_id = given.head_id,
        attempt_epoch = tasks.epoch, start_time = null,
        queue_deadline_at = :now + cast(queue_timeout_seconds as bigint) * {SECOND}
    from given where tasks.tenant = given.tenant and tasks.task_id = given.task_id and tasks.status = 'waiting'
        and tasks.epoch = cast(given.epoch as bigint)
    returning tasks.tenant, tasks.task_id""",
)
_SUSPEND = Sql(
    f"""update tasks set status = 'waiting', head_id = :head_id, lease_until = null, deadline_at = null
    where {_KEY} and status = 'executing' and epoch = :epoch"""
)
_RECORD_PROGRESS = Sql(
    f"""update tasks set pinned_agent = assigned_agent, attempt_epoch = epoch
    where {_KEY} and status = 'executing' and epoch = :epoch"""
)
_SET_HEAD = Sql(f"update tasks set head_id = :head_id, learning_pending = 0 where {_KEY} and epoch = :epoch")
# By age, as an index has them; that costs one pass over the queue for each priority, and no sorting of it.
_LIST_REASSIGNABLE = Sql(
    f"""select {_COLUMNS} from tasks
    where tenant = :tenant and assigned_agent = :agent_id and status = 'queued' and agent_preference is null
        and pinned_agent is null and priority = :priority and (created_at, task_id) > (:created_at, :after)
        and parked <= :parked
    order by created_at, task_id limit :limit"""
)
_LIST_UNLEARNED = Sql(
    f"select {_COLUMNS} from tasks where learning_pending = 1 and completion_time < :before limit :limit"
)
_GRADE_COLUMNS = ", ".join(Grade.__struct_fields__)
_FIND_GRADE = Sql(f"select {_GRADE_COLUMNS} from task_grades where tenant = :tenant and task_id = :task_id")
_INSERT_GRADE = Sql.insert("task_grades", ("tenant", *Grade.__struct_fields__))


def insert(tx: Tx, task: Task, content: Any, claim: TaskClaim | None = None) -> None:
    """Store a new task with its input, with a claim as one that executes."""
    params = msgspec.structs.asdict(task)
    params["required_capabilities"] = jsontext.dump(task.required_capabilities)
    params["metadata"] = jsontext.dump(task.metadata)
    params["error"] = None if task.error is None else jsontext.dump(task.error)
    params["learning_eligible"] = None if task.learning_eligible is None else int(task.learning_eligible)
    params["learning_pending"] = int(task.learning_pending)
    if claim is not None:
        started = claim.start_time
        params |= {"status": "executing", "epoch": claim.epoch, "head_id": claim.head_id, "start_time": started}
        params |= {"first_started_at": started, "heartbeat_at": started, "lease_until": claim.lease_until}
        params["deadline_at"] = started + claim.timeout_seconds * SECOND
    text = jsontext.dump(content)
    params |= {"session_id": task.metadata.session, "input": text}
    tx.append(_TASKS, tuple(map(params.__getitem__, _TASKS.columns)))
    if len(text) > LONG_INPUT:
        # Not together with others: a hundred of the longest would make a statement longer than PostgreSQL takes.
        tx.flush()


def read_result(tx: Tx, tenant: str, task_id: str) -> str | None:
    """Return the result of a task as JSON text; None without one."""
    row = tx.row(_RESULT, tenant=tenant, task_id=task_id)
    return row[0] if row else None


def find(tx: Tx, tenant: str, task_id: str) -> Task | None:
    row = tx.row(_FIND, tenant=tenant, task_id=task_id)
    return task_from_row(row) if row else None


def find_all(tx: Tx, refs: Iterable[TaskRef]) -> dict[TaskRef, Task]:
    """Return those of the tasks that exist, without malformed ones that have ended. Raises CorruptRow."""
    tasks: dict[TaskRef, Task] = {}
    for row in tx.rows_for(_FIND_ALL, sorted(set(refs))):
        try:
            task = task_from_row(row)
        except CorruptRow:
            # An open task is set aside. One that has ended stays unchanged, and must not stop the jobs that search for
            # it.
            if row[_STATUS] not in TERMINAL_STATUSES:
                raise
        else:
            tasks[task.tenant, task.task_id] = task
    return tasks


def finish(
    tx: Tx,
    tenant: str,
    task_id: str,
    epoch: int,
    *,
    status: TaskStatus,
    outcome_class: OutcomeClass,
    learning_eligible: bool,
    learning_pending: bool,
    head_id: str,
    result: Any = None,
    error: Any = None,
    performance: float | None = None,
) -> bool:
    """End an executing task; False if `epoch` is not its current one."""
    return tx.update_row(
        _FINISH,
        tenant=tenant,
        task_id=task_id,
        epoch=epoch,
        now=tx.now,
        status=status,
        outcome_class=outcome_class,
        learning_eligible=int(learning_eligible),
        learning_pending=int(learning_pending),
        head_id=head_id,
        result=jsontext.dump(result) if status == "completed" else None,
        error=None if error is None else jsontext.dump(error),
        performance=performance,
    )


def end_without_learning(
    tx: Tx, task: Task, status: TaskStatus, outcome_class: OutcomeClass, error: Any, head_id: str
) -> bool:
    """End a task that was cancelled, rejected or denied at dispatch; False if it changed since it was read."""
    touched = tx.run(
        _END_WITHOUT_LEARNING,
        tenant=task.tenant,
        task_id=task.task_id,
        source=task.status,
        epoch=task.epoch,
        now=tx.now,
        status=status,
        outcome_class=outcome_class,
        error=None if error is None else jsontext.dump(error),
        head_id=head_id,
        seen=task.head_id,
    )
    return touched == 1


def end_all_without_learning(
    tx: Tx, heads: list[tuple[Task, str]], status: TaskStatus, outcome_class: OutcomeClass, error: Any
) -> set[TaskRef]:
    """End tasks, given with their new heads, like `end_without_learning`; return those that had not changed."""
    rows = [(task.tenant, task.task_id, task.status, task.epoch, task.head_id, head_id) for task, head_id in heads]
    text = None if error is None else jsontext.dump(error)
    params = {"now": tx.now, "status": status, "outcome_class": outcome_class, "error": text}
    return {(row[0], row[1]) for row in tx.rows_for(_END_ALL_WITHOUT_LEARNING, rows, **params)}


def reassign(tx: Tx, task: Task, agent_id: str, runtime_kind: str, head_id: str) -> bool:
    """Assign a queued task to another agent; its age and its queue timeout stay.

    False if it changed since it was read: claimed, cancelled, or reassigned by another process.
    """
    touched = tx.run(
        _REASSIGN,
        tenant=task.tenant,
        task_id=task.task_id,
        epoch=task.epoch,
        seen=task.head_id,
        agent_id=agent_id,
        runtime_kind=runtime_kind,
        head_id=head_id,
    )
    return touched == 1


def requeue(
    tx: Tx,
    task: Task,
    status: TaskStatus,
    head_id: str,
    *,
    agent_id: str | None = None,
    runtime_kind: str | None = None,
    attempt_epoch: int | None = None,
    retry_epoch: int | None = None,
    metadata: TaskMetadata | None = None,
) -> bool:
    """Queue a task again, or let it wait for approval: after approval, a lost lease, a wait, or as a retry."""
    touched = tx.run(
        _REQUEUE,
        tenant=task.tenant,
        task_id=task.task_id,
        source=task.status,
        epoch=task.epoch,
        now=tx.now,
        status=status,
        head_id=head_id,
        agent_id=agent_id or task.assigned_agent,
        runtime_kind=runtime_kind or task.runtime_kind,
        attempt_epoch=task.attempt_epoch if attempt_epoch is None else attempt_epoch,
        retry_epoch=task.retry_epoch if retry_epoch is None else retry_epoch,
        metadata=jsontext.dump(metadata or task.metadata),
    )
    return touched == 1


def suspend(tx: Tx, task: Task, head_id: str) -> bool:
    """End the attempt of an executing task that waits from now on; False if it changed since it was read."""
    touched = tx.run(_SUSPEND, tenant=task.tenant, task_id=task.task_id, epoch=task.epoch, head_id=head_id)
    return touched == 1


def resume_all(tx: Tx, heads: list[tuple[Task, str]]) -> set[TaskRef]:
    """Queue tasks that wait, with their new heads; return those that did not change since they were read.

    Only attempts that are lost from now on count: the ones before it ended as they should.
    """
    rows = [(task.tenant, task.task_id, task.epoch, head_id) for task, head_id in heads]
    return {(row[0], row[1]) for row in tx.rows_for(_RESUME, rows, now=tx.now)}


def record_progress(tx: Tx, task: Task) -> None:
    """Pin a task to its agent, so that no other one gets it, and forget the attempts that were lost before this one."""
    tx.run(_RECORD_PROGRESS, tenant=task.tenant, task_id=task.task_id, epoch=task.epoch)


def set_head(tx: Tx, tenant: str, task_id: str, epoch: int, head_id: str) -> None:
    """Set the last event of an ended task whose outcome was learned."""
    tx.run(_SET_HEAD, tenant=tenant, task_id=task_id, epoch=epoch, head_id=head_id)


def list_reassignable(
    tx: Tx, tenant: str, agent_id: str, after: Task | None, limit: int, *, with_parked: bool = True
) -> list[Task]:
    """List an agent's queued tasks whose submitter did not name an agent, most urgent first, following `after`.

    Parked tasks wait for a slot of their limit, not for the agent.
    """
    priority, *position = (0, 0, "") if after is None else (after.priority, after.created_at, after.task_id)
    tasks: list[Task] = []
    while len(tasks) < limit and priority <= max(PRIORITIES.values()):
        created_at, task_id = position
        rows = tx.rows(
            _LIST_REASSIGNABLE,
            tenant=tenant,
            agent_id=agent_id,
            priority=priority,
            created_at=created_at,
            after=task_id,
            parked=int(with_parked),
            limit=limit - len(tasks),
        )
        tasks += [task_from_row(row) for row in rows]
        priority, position = priority + 1, [0, ""]
    return tasks


def list_unlearned(tx: Tx, before: int, limit: int) -> list[Task]:
    """List tasks that ended before the time `before` and whose outcome is still to be learned."""
    return [task_from_row(row) for row in tx.rows(_LIST_UNLEARNED, before=before, limit=limit)]


def find_grade(tx: Tx, tenant: str, task_id: str) -> Grade | None:
    row = tx.row(_FIND_GRADE, tenant=tenant, task_id=task_id)
    if row is None:
        return None
    values = dict(zip(Grade.__struct_fields__, row, strict=True))
    return Grade(**values | {"learned": bool(values["learned"])})


def insert_grade(tx: Tx, tenant: str, grade: Grade) -> None:
    tx.run(_INSERT_GRADE, **(msgspec.structs.asdict(grade) | {"tenant": tenant, "learned": int(grade.learned)}))
