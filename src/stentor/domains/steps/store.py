"""SQL of the journal: the steps of a task, and long values beside them by their hash."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.domains.steps.model import (
    MAX_INLINE_BYTES,
    Step,
    StepDraft,
    StepOutcome,
    decode_value,
)
from stentor.domains.tasks.model import Task

OpenStep = tuple[str, str, Step]
"""Tenant, task and a step that has no outcome."""
Decision = tuple[str, str, Step]
"""Task, its title, and a step that waits for a person."""
_FIELDS = Step.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_TASK = "tenant = :tenant and task_id = :task_id"
_FIND = Sql(f"select {_COLUMNS} from task_steps where {_TASK} and key = :key")
_LIST = Sql(f"select {_COLUMNS} from task_steps where {_TASK} and event_id > :after order by event_id limit :limit")
_INSERT = Sql(
    f"insert into task_steps (tenant, task_id, {_COLUMNS}) "
    f"values (:tenant, :task_id, {', '.join(':' + name for name in _FIELDS)}) "
    f"on conflict (tenant, task_id, key) do update set {', '.join(f'{name} = excluded.{name}' for name in _FIELDS)} "
    # A step that failed before the task was retried; see `model.is_superseded`.
    "where task_steps.state = 'failed' and task_steps.epoch <= :retry_epoch "
    "and task_steps.name = excluded.name and task_steps.kind = excluded.kind"
)
_END = Sql(
    f"""update task_steps set state = :state, encoding = :encoding, value = :value,
        value_hash = :value_hash, size = :size, error = :error, ended_at = :now,
        epoch = (select epoch from tasks where {_TASK})
    where {_TASK} and key = :key and state = 'started'"""
)
_OPEN = f"task_steps.tenant, task_steps.task_id, {', '.join(f'task_steps.{name}' for name in _FIELDS)}"
_LIST_DUE = Sql(
    f"select {_OPEN} from task_steps where state = 'started' and wake_at is not null and wake_at <= :now "
    "order by wake_at limit :limit"
)
_ENDED = "('completed', 'failed', 'aborted', 'cancelled')"
_LIST_ENDED_CHILDREN = Sql(
    f"select {_OPEN} from task_steps join tasks as child "
    "on child.tenant = task_steps.tenant and child.task_id = task_steps.reference "
    f"where task_steps.state = 'started' and task_steps.kind = 'child' and child.status in {_ENDED} limit :limit"
)
_LIST_ORPHANS = Sql(
    f"select {_OPEN} from task_steps join tasks "
    "on tasks.tenant = task_steps.tenant and tasks.task_id = task_steps.task_id "
    "where task_steps.state = 'started' and task_steps.kind = 'child' and tasks.status = 'cancelled' limit :limit"
)
_HAS_OPEN_CHILDREN = Sql("select 1 from task_steps where state = 'started' and kind = 'child' limit 1")
_LIST_OPEN = Sql(f"select {_COLUMNS} from task_steps where {_TASK} and state = 'started' order by event_id")
_LIST_FOR_PEOPLE = Sql(
    f"""select coalesce(tasks.title, tasks.type), {_OPEN} from task_steps join tasks
        on tasks.tenant = task_steps.tenant and tasks.task_id = task_steps.task_id
    where task_steps.tenant = :tenant and task_steps.state = 'started' and task_steps.kind in ('question', 'effect')
        and (tasks.status = 'waiting' and task_steps.kind = 'question'
            or tasks.status not in ('executing', 'queued') and task_steps.kind = 'effect')
        and (cast(:key as text) is null or tasks.submitted_by = :key or tasks.assigned_agent in
            (select agent_id from agents where tenant = :tenant and key_name = :key))
    order by task_steps.event_id limit :limit"""
)
_INSERT_SIGNAL = Sql(
    "insert into task_signals (tenant, task_id, event_id, name, value) "
    "values (:tenant, :task_id, :event_id, :name, :value)"
)
_COUNT_SIGNALS = Sql(f"select count(*) from task_signals where {_TASK}")
_FIND_SIGNAL = Sql(f"select event_id, value from task_signals where {_TASK} and name = :name order by event_id limit 1")
_DELETE_SIGNAL = Sql(f"delete from task_signals where {_TASK} and event_id = :event_id")
_INSERT_VALUE = Sql(
    "insert into step_values (tenant, hash, content) values (:tenant, :hash, :content) "
    "on conflict (tenant, hash) do nothing"
)
_FIND_VALUE = Sql("select content from step_values where tenant = :tenant and hash = :hash")


def find(tx: Tx, tenant: str, task_id: str, key: str) -> Step | None:
    row = tx.row(_FIND, tenant=tenant, task_id=task_id, key=key)
    return None if row is None else _step_from_row(row)


def list_steps(tx: Tx, tenant: str, task_id: str, after: str, limit: int) -> list[Step]:
    """List the steps of a task that began after an event id, oldest first."""
    return [_step_from_row(row) for row in tx.rows(_LIST, tenant=tenant, task_id=task_id, after=after, limit=limit)]


def insert_started(tx: Tx, task: Task, draft: StepDraft, event_id: str) -> bool:
    """Insert a step that has begun; False if the journal has it."""
    return _insert(tx, task, draft, event_id, state="started", started_at=tx.now)


def insert_ended(tx: Tx, task: Task, draft: StepDraft, event_id: str, outcome: StepOutcome, started: int) -> bool:
    """Insert a step that has ended; False if the journal has it. `started` in microseconds."""
    columns = _store_outcome(tx, task.tenant, outcome)
    return _insert(tx, task, draft, event_id, started_at=started, ended_at=tx.now, **columns)


def end(tx: Tx, tenant: str, task_id: str, key: str, outcome: StepOutcome) -> bool:
    """Record the outcome of a step that has begun; False if it has one."""
    columns = _store_outcome(tx, tenant, outcome)
    return tx.run(_END, tenant=tenant, task_id=task_id, key=key, now=tx.now, **columns) == 1


def list_due(tx: Tx, limit: int) -> list[OpenStep]:
    """List waits whose time is over, the longest overdue first."""
    return [_open_from_row(row) for row in tx.rows(_LIST_DUE, now=tx.now, limit=limit)]


def list_ended_children(tx: Tx, limit: int) -> list[OpenStep]:
    """List waits for a child that has ended."""
    return [_open_from_row(row) for row in tx.rows(_LIST_ENDED_CHILDREN, limit=limit)]


def list_orphans(tx: Tx, limit: int) -> list[OpenStep]:
    """List waits for a child of tasks that were cancelled."""
    return [_open_from_row(row) for row in tx.rows(_LIST_ORPHANS, limit=limit)]


def has_open_children(tx: Tx) -> bool:
    """Return whether any task waits for a child."""
    return tx.row(_HAS_OPEN_CHILDREN) is not None


def list_open(tx: Tx, tenant: str, task_id: str) -> list[Step]:
    """List the steps of a task that have begun and have no outcome, oldest first."""
    return [_step_from_row(row) for row in tx.rows(_LIST_OPEN, tenant=tenant, task_id=task_id)]


def list_for_people(tx: Tx, tenant: str, key: str | None, limit: int) -> list[Decision]:
    """List open questions, and effects of which it is not known whether they happened, oldest first.

    Only those of tasks that are visible to the key; None sees all.
    """
    rows = tx.rows(_LIST_FOR_PEOPLE, tenant=tenant, key=key, limit=limit)
    return [(row[2], row[0], _step_from_row(row[3:])) for row in rows]


def insert_signal(tx: Tx, tenant: str, task_id: str, event_id: str, name: str, value: Any) -> None:
    tx.run(_INSERT_SIGNAL, tenant=tenant, task_id=task_id, event_id=event_id, name=name, value=jsontext.dump(value))


def count_signals(tx: Tx, tenant: str, task_id: str) -> int:
    row = tx.row(_COUNT_SIGNALS, tenant=tenant, task_id=task_id)
    return int(row[0]) if row else 0


def take_signal(tx: Tx, tenant: str, task_id: str, name: str) -> tuple[str, Any] | None:
    """Remove the oldest signal of a name, and return its event and its value; None without one."""
    row = tx.row(_FIND_SIGNAL, tenant=tenant, task_id=task_id, name=name)
    if row is None:
        return None
    tx.run(_DELETE_SIGNAL, tenant=tenant, task_id=task_id, event_id=row[0])
    return row[0], jsontext.load(row[1])


def read_value(tx: Tx, tenant: str, step: Step) -> Any:
    """Return the value of a completed step, wherever it is stored. Raises CorruptRecord."""
    if step.value_hash is None:
        return step.value
    row = tx.row(_FIND_VALUE, tenant=tenant, hash=step.value_hash)
    content = b"" if row is None else bytes(row[0])
    if hashlib.sha256(content).hexdigest() != step.value_hash:
        raise CorruptRecord(f"The value of step {step.key!r} is missing or damaged.")
    return decode_value(step.encoding, content)


def _insert(tx: Tx, task: Task, draft: StepDraft, event_id: str, **columns: Any) -> bool:
    values: dict[str, Any] = {"encoding": "json", "value": None, "value_hash": None, "size": 0, "error": None}
    values |= {"ended_at": None, "reference": draft.reference} | columns
    values["wake_at"] = None if draft.seconds is None else tx.now + int(draft.seconds * SECOND)
    values["options"] = None if draft.options is None else jsontext.dump(draft.options)
    touched = tx.run(
        _INSERT,
        tenant=task.tenant,
        task_id=task.task_id,
        retry_epoch=task.retry_epoch,
        key=draft.key,
        event_id=event_id,
        name=draft.name,
        kind=draft.kind,
        position=draft.position,
        epoch=task.epoch,
        **values,
    )
    return touched == 1


def _store_outcome(tx: Tx, tenant: str, outcome: StepOutcome) -> dict[str, Any]:
    """Store a long value beside the journal, and return the columns of the outcome."""
    columns: dict[str, Any] = {"state": outcome.state, "encoding": outcome.encoding, "value": None, "value_hash": None}
    if outcome.error is not None:
        return columns | {"size": 0, "error": jsontext.dump(outcome.error)}
    if len(outcome.content) <= MAX_INLINE_BYTES:
        columns["value"] = jsontext.dump(decode_value(outcome.encoding, outcome.content))
    else:
        columns["value_hash"] = outcome.sha256
        tx.run(_INSERT_VALUE, tenant=tenant, hash=outcome.sha256, content=outcome.content)
    return columns | {"size": len(outcome.content), "error": None}


def _open_from_row(row: tuple[Any, ...]) -> OpenStep:
    return row[0], row[1], _step_from_row(row[2:])


def _step_from_row(row: tuple[Any, ...]) -> Step:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        for optional in ("value", "error", "options"):
            if values[optional] is not None:
                values[optional] = jsontext.load(values[optional])
        return msgspec.convert(values, Step)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The journal has a malformed step {values['key']!r}: {error}.") from error
