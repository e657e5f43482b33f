"""SQL of tasks: rows in, rows out, and the guarded moves between states.

SQL of grades: one for each task.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import ids, jsontext
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.domains.atp.text_format import content_for_agent
from stentor.domains.tasks.model import (
    Grade,
    OutcomeClass,
    QueuedTask,
    Task,
    TaskClaim,
    TaskDraft,
    TaskMetadata,
    TaskStatus,
)

_FIELDS = Task.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_KEY = "tenant = :tenant and task_id = :task_id"
_ONE = Sql(f"select {_COLUMNS} from tasks where {_KEY}")
_INPUT = Sql(f"select input from tasks where {_KEY}")
_RESULT = Sql(f"select result from tasks where {_KEY}")
_INSERT_COLUMNS = tuple(f for f in _FIELDS if f not in ("lease_until", "deadline_at", "performance", "result"))
_INSERT = Sql(
    f"insert into tasks ({', '.join(_INSERT_COLUMNS)}, input) "
    f"values ({', '.join(':' + name for name in _INSERT_COLUMNS)}, :input)"
)
_CLAIM = Sql(
    f"""update tasks set status = 'executing', epoch = epoch + 1, start_time = :now, lease_until = :lease_until,
        deadline_at = :now + cast(timeout_seconds as bigint) * {SECOND}, head_id = :new_head
    where {_KEY} and status = 'queued' and epoch = :epoch and assigned_agent = :agent_id
    returning epoch, type, input, runtime_kind, created_at, timeout_seconds, required_capabilities, metadata,
        submitted_by"""
)
_RENEW = Sql(f"update tasks set lease_until = :lease_until where {_KEY} and status = 'executing' and epoch = :epoch")
_FINISH = Sql(
    f"""update tasks set status = :status, completion_time = :now, result = :result, error = :error,
        outcome_class = :outcome_class, learning_eligible = :learning_eligible, performance = :performance,
        learning_pending = :learning_pending, head_id = :head_id, lease_until = null, deadline_at = null
    where {_KEY} and status = 'executing' and epoch = :epoch"""
)
_END = Sql(
    f"""update tasks set status = :status, completion_time = :now, error = :error, outcome_class = :outcome_class,
        learning_eligible = 0, head_id = :head_id, lease_until = null, deadline_at = null
    where {_KEY} and status = :source and epoch = :epoch and head_id = :seen"""
)
_REASSIGN = Sql(
    f"""update tasks set assigned_agent = :agent_id, runtime_kind = :runtime_kind, head_id = :head_id
    where {_KEY} and status = 'queued' and epoch = :epoch and head_id = :seen"""
)
_QUEUE = Sql(
    f"""update tasks set status = :status, queued_at = :now, head_id = :head_id, assigned_agent = :agent_id,
        runtime_kind = :runtime_kind, attempt_epoch = :attempt_epoch, metadata = :metadata,
        queue_deadline_at = :now + cast(queue_timeout_seconds as bigint) * {SECOND},
        start_time = null, completion_time = null, lease_until = null, deadline_at = null, result = null,
        error = null, outcome_class = null, learning_eligible = null, performance = null
    where {_KEY} and status = :source and epoch = :epoch"""
)
_SET_HEAD = Sql(f"update tasks set head_id = :head_id, learning_pending = :pending where {_KEY} and epoch = :epoch")
_QUEUED = "tenant, task_id, priority, queued_at, assigned_agent, runtime_kind, epoch, head_id, metadata"
_NEXT = f"""select {_QUEUED} from tasks
    where status = 'queued' and {{which}} order by priority, queued_at limit :limit for update skip locked"""
_WAITING = Sql(f"select {_QUEUED} from tasks where status = 'queued' order by priority, queued_at limit :limit")
_NEXT_OF = Sql(_NEXT.format(which="assigned_agent = :agent_id"))
_NEXT_INSIDE = Sql(_NEXT.format(which="runtime_kind <> 'worker' and assigned_agent <> all(:full)"))
"""For several processes on PostgreSQL: each takes what no other has in hand."""
_FIRST = "select tenant, assigned_agent from tasks where status = 'queued'{more} order by assigned_agent limit 1"
_FREE_OF = Sql(
    f"""select {_COLUMNS} from tasks
    where tenant = :tenant and assigned_agent = :agent_id and status = 'queued' and agent_preference is null
        and (priority, queued_at, task_id) > (:priority, :queued_at, :after)
    order by priority, queued_at, task_id limit :limit"""
)
_DEPTHS = Sql(
    f"""with recursive waiting (tenant, agent_id) as (
        ({_FIRST.format(more="")})
        union all
        select next.* from waiting, lateral ({_FIRST.format(more=" and assigned_agent > waiting.agent_id")}) as next
    )
    select agent_id, n from waiting, lateral (
        select n from task_counts as c
        where c.tenant = waiting.tenant and c.hour = -1 and c.status = 'queued' and c.agent_id = waiting.agent_id
    ) as counted where n > 0"""
)
"""From agent to agent that something waits for, through the index: however many there are that nothing waits for, and
however much waits.
"""
_OVERDUE = Sql(
    f"""select {_COLUMNS} from tasks
    where status = 'executing' and (lease_until < :now or deadline_at < :now) limit :limit"""
)
_EXPIRED = Sql(
    f"""select {_COLUMNS} from tasks
    where status = 'queued' and queue_deadline_at is not null and queue_deadline_at < :now limit :limit"""
)
_EXECUTING_HERE = Sql(
    f"select {_COLUMNS} from tasks where status = 'executing' and runtime_kind <> 'worker' limit :limit"
)
_UNLEARNED = Sql(f"select {_COLUMNS} from tasks where learning_pending = 1 and completion_time < :before limit :limit")


def insert(tx: Tx, task: Task, draft: TaskDraft) -> None:
    params = {name: getattr(task, name) for name in _INSERT_COLUMNS}
    for structured in ("required_capabilities", "metadata"):
        params[structured] = jsontext.dump(params[structured])
    params["error"] = None if task.error is None else jsontext.dump(task.error)
    params["learning_eligible"] = None if task.learning_eligible is None else int(task.learning_eligible)
    params["learning_pending"] = int(task.learning_pending)
    tx.run(_INSERT, **params, input=jsontext.dump(draft.input))


def read_result(tx: Tx, tenant: str, task_id: str) -> str | None:
    """A task's result as JSON text; None without one."""
    row = tx.row(_RESULT, tenant=tenant, task_id=task_id)
    return row[0] if row else None


def find(tx: Tx, tenant: str, task_id: str) -> Task | None:
    row = tx.row(_ONE, tenant=tenant, task_id=task_id)
    return _task(row) if row else None


def read_input(tx: Tx, tenant: str, task_id: str) -> Any:
    row = tx.row(_INPUT, tenant=tenant, task_id=task_id)
    return jsontext.load(row[0]) if row else None


def claim(tx: Tx, queued: QueuedTask, lease: int, new_head: str) -> TaskClaim | None:
    """Take a queued task; None when somebody else did, or it was cancelled. `lease` in microseconds."""
    rows = tx.rows(
        _CLAIM,
        tenant=queued.tenant,
        task_id=queued.task_id,
        epoch=queued.epoch,
        agent_id=queued.agent_id,
        now=tx.now,
        lease_until=tx.now + lease,
        new_head=new_head,
    )
    if not rows:
        return None
    epoch, kind, text, runtime_kind, created_at, timeout, capabilities, metadata, submitted_by = rows[0]
    return TaskClaim(
        queued.tenant,
        queued.task_id,
        epoch,
        kind,
        content_for_agent(jsontext.load(text)),
        queued.agent_id,
        runtime_kind,
        created_at,
        tx.now,
        timeout,
        tx.now + lease,
        new_head,
        tuple(jsontext.load(capabilities)),
        _metadata.decode(metadata),
        submitted_by,
    )


def renew_lease(tx: Tx, tenant: str, task_id: str, epoch: int, lease: int) -> bool:
    """Whether the lease was still held; it then runs `lease` microseconds from now."""
    until = tx.now + lease
    return tx.run(_RENEW, tenant=tenant, task_id=task_id, epoch=epoch, lease_until=until) == 1


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
    """End an executing task; False when the epoch is not its current one."""
    touched = tx.run(
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
    return touched == 1


def end_without_learning(
    tx: Tx, task: Task, status: TaskStatus, outcome_class: OutcomeClass, error: Any, head_id: str
) -> bool:
    """End a task without learning from it: cancelled, rejected, denied at dispatch."""
    touched = tx.run(
        _END,
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


def reassign(tx: Tx, task: Task, agent_id: str, runtime_kind: str, head_id: str) -> bool:
    """Let a queued task wait for another agent, in its old place: its age and the end of its patience stay.

    False when it changed since it was read: claimed, cancelled, or reassigned by another process.
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
    metadata: TaskMetadata | None = None,
) -> bool:
    """Back into the queue (or to approval): after approval, a lost lease, or as a new attempt."""
    touched = tx.run(
        _QUEUE,
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
        metadata=jsontext.dump(metadata or task.metadata),
    )
    return touched == 1


def set_head(tx: Tx, tenant: str, task_id: str, epoch: int, head_id: str, *, pending: bool) -> None:
    """The last event of an ended task, and whether its lesson is still to be learned."""
    tx.run(_SET_HEAD, tenant=tenant, task_id=task_id, epoch=epoch, head_id=head_id, pending=int(pending))


def list_queued(tx: Tx, limit: int) -> list[QueuedTask]:
    """Queued tasks, the most urgent first."""
    return [_queued(*row) for row in tx.rows(_WAITING, limit=limit)]


def list_reassignable(tx: Tx, tenant: str, agent_id: str, after: Task | None, limit: int) -> list[Task]:
    """An agent's waiting tasks whose submitter did not ask for it, the most urgent first, from one on."""
    place = (-1, 0, "") if after is None else (after.priority, after.queued_at, after.task_id)
    priority, queued_at, task_id = place
    rows = tx.rows(
        _FREE_OF,
        tenant=tenant,
        agent_id=agent_id,
        priority=priority,
        queued_at=queued_at,
        after=task_id,
        limit=limit,
    )
    return [_task(row) for row in rows]


def next_for_agent(tx: Tx, agent_id: str, limit: int) -> list[QueuedTask]:
    """The most urgent and oldest of an agent's waiting tasks that nobody is taking; PostgreSQL only."""
    return [_queued(*row) for row in tx.rows(_NEXT_OF, agent_id=agent_id, limit=limit)]


def next_in_process(tx: Tx, full: list[str], limit: int) -> list[QueuedTask]:
    """The same for all agents that run inside the service, but for those which are full."""
    return [_queued(*row) for row in tx.rows(_NEXT_INSIDE, full=full, limit=limit)]


def read_queue_depths(tx: Tx) -> dict[str, int]:
    """How many tasks wait for each agent; PostgreSQL only."""
    return {agent_id: int(n) for agent_id, n in tx.rows(_DEPTHS)}


def list_overdue(tx: Tx, limit: int) -> list[Task]:
    """Executing tasks whose lease or time has ended."""
    return [_task(row) for row in tx.rows(_OVERDUE, now=tx.now, limit=limit)]


def list_queue_expired(tx: Tx, limit: int) -> list[Task]:
    """Queued tasks that waited longer than they may."""
    return [_task(row) for row in tx.rows(_EXPIRED, now=tx.now, limit=limit)]


def list_executing_in_process(tx: Tx, limit: int) -> list[Task]:
    """Executing tasks whose work ran inside a service process."""
    return [_task(row) for row in tx.rows(_EXECUTING_HERE, limit=limit)]


def list_unlearned(tx: Tx, before: int, limit: int) -> list[Task]:
    """Ended tasks whose lesson could not be applied with their outcome."""
    return [_task(row) for row in tx.rows(_UNLEARNED, before=before, limit=limit)]


def _queued(*row: Any) -> QueuedTask:
    queued = QueuedTask(*row[:-1])
    ids.advance_past(queued.head_id)
    return msgspec.structs.replace(queued, granted=True) if '"grant_id"' in row[-1] else queued


_capabilities = msgspec.json.Decoder(tuple[str, ...])
_metadata = msgspec.json.Decoder(TaskMetadata)


def _task(row: tuple[Any, ...]) -> Task:
    values = dict(zip(_FIELDS, row, strict=True))
    ids.advance_past(values["head_id"])  # the next event of the task is to sort behind it
    try:
        values["required_capabilities"] = _capabilities.decode(values["required_capabilities"])
        values["metadata"] = _metadata.decode(values["metadata"])
        for optional in ("error", "result"):
            if values[optional] is not None:
                values[optional] = jsontext.load(values[optional])
        if values["learning_eligible"] is not None:
            values["learning_eligible"] = bool(values["learning_eligible"])
        values["learning_pending"] = bool(values["learning_pending"])
        return msgspec.convert(values, Task)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The stored record of task {values['task_id']!r} is malformed: {error}.") from error


_GRADE_FIELDS = Grade.__struct_fields__
_GRADE_COLUMNS = ", ".join(_GRADE_FIELDS)
_ONE_GRADE = Sql(f"select {_GRADE_COLUMNS} from task_grades where tenant = :tenant and task_id = :task_id")
_INSERT_GRADE = Sql(
    f"insert into task_grades (tenant, {_GRADE_COLUMNS})"
    f" values (:tenant, {', '.join(':' + name for name in _GRADE_FIELDS)})"
)


def find_grade(tx: Tx, tenant: str, task_id: str) -> Grade | None:
    row = tx.row(_ONE_GRADE, tenant=tenant, task_id=task_id)
    if row is None:
        return None
    values = dict(zip(_GRADE_FIELDS, row, strict=True))
    return Grade(**values | {"learned": bool(values["learned"])})


def insert_grade(tx: Tx, tenant: str, grade: Grade) -> None:
    tx.run(_INSERT_GRADE, **(msgspec.structs.asdict(grade) | {"tenant": tenant, "learned": int(grade.learned)}))
