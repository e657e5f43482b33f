"""SQL of the journal: the steps of a task, and long values beside them by their hash."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import SECOND
from stentor.core.db import AppendOnlyTable, Prefetch, RowsSql, Sql, Tx
from stentor.core.errors import CorruptRecord, CorruptRow
from stentor.core.formats.deflate import deflate, inflate
from stentor.domains.contents import store as contents
from stentor.domains.steps.model import (
    MAX_INLINE_BYTES,
    Step,
    StepDraft,
    StepOutcome,
    decode_value,
    replaced_event,
)
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.rows import COLUMNS_OF_TASK, task_from_row
from stentor.domains.tasks.store import TaskRef

TABLE = "task_steps"
OpenStep = tuple[str, str, Step]
"""Tenant, task and a step that has no outcome."""
StepRef = tuple[str, str, str]
"""Tenant, task and key of a step."""
ChildCheck = tuple[int, str, str, str]
"""When to look at the waits for a task (microseconds), its tenant and id, and an event of its own or of a wait."""

_FIELDS = Step.__struct_fields__
STORED = (*_FIELDS, "deflated")
"""The columns. A value that is shorter in the DEFLATE format is in `deflated`, and `value` is empty then."""
_COLUMNS = ", ".join(STORED)
_TASK = "tenant = :tenant and task_id = :task_id"
# A range in the order of the key, and below the last event in that order: for `=` or `max` PostgreSQL may take another
# index that begins with the task, and so read every step of the task. From the first statistics of the table on, what
# decides is that it expects many steps of each task (migration 0046).
_FIND = Sql(f"select {_COLUMNS} from task_steps where {_TASK} and key >= :key and key <= :key order by key limit 1")
_LIST = Sql(f"select {_COLUMNS} from task_steps where {_TASK} and event_id > :after order by event_id limit :limit")
_FIND_LAST = Sql(f"select event_id from task_steps where {_TASK} order by event_id desc limit 1")
_STEPS = AppendOnlyTable(TABLE, ("tenant", "task_id", *STORED))
_row_of = itemgetter(*_STEPS.columns)
_FIND_TASK = RowsSql(
    ("tenant", "task_id", "key"),
    f"""select given.tenant, given.task_id, given.key,
        (select step.key from task_steps as step where step.tenant = given.tenant and step.task_id = given.task_id
            and step.key >= given.key and step.key <= given.key order by step.key limit 1),
        (select latest.event_id from task_steps as latest where latest.tenant = given.tenant
            and latest.task_id = given.task_id order by latest.event_id desc limit 1), {COLUMNS_OF_TASK}
    from given join tasks on tasks.tenant = given.tenant and tasks.task_id = given.task_id""",
)
# `old_epoch` is the fence: of two attempts that replace the same failed step only one finds it.
_REPLACE = Sql(
    f"update task_steps set {', '.join(f'{name} = :{name}' for name in STORED if name != 'key')} "
    f"where {_TASK} and key = :key and state = 'failed' and epoch = :old_epoch"
)
_MARK_HANDLED = Sql(f"update task_steps set handled = 1 where {_TASK} and key = :key and state = 'failed'")
_OUTCOME = ("state", "encoding", "value", "value_hash", "size", "error")
_END = RowsSql(
    ("tenant", "task_id", "key", *_OUTCOME),
    """update task_steps set state = given.state, encoding = given.encoding, value = given.value,
        value_hash = given.value_hash, size = cast(given.size as bigint), error = given.error, ended_at = :now,
        epoch = (select tasks.epoch from tasks where tasks.tenant = task_steps.tenant
            and tasks.task_id = task_steps.task_id)
    from given where task_steps.tenant = given.tenant and task_steps.task_id = given.task_id
        and task_steps.key = given.key and task_steps.state = 'started'
    returning task_steps.tenant, task_steps.task_id, task_steps.key""",
)
_FAIL_MALFORMED = Sql(
    f"update task_steps set state = 'failed', error = :error, wake_at = null, ended_at = :now "
    f"where {_TASK} and key = :key and state = 'started'"
)
# By itself: in a statement for many rows PostgreSQL would have to be told the type of a column that is often null.
_SET_DEFLATED = Sql(f"update task_steps set deflated = :deflated where {_TASK} and key = :key")
COLUMNS_OF_OPEN = f"task_steps.tenant, task_steps.task_id, {', '.join(f'task_steps.{name}' for name in STORED)}"
_LIST_DUE = Sql(
    f"select {COLUMNS_OF_OPEN} from task_steps where state = 'started' and wake_at is not null and wake_at <= :now "
    "order by wake_at limit :limit"
)
_NEXT_DUE_AT = Sql("select min(wake_at) from task_steps where state = 'started' and wake_at is not null")
_ENDED = "('completed', 'failed', 'aborted', 'cancelled')"
# A trigger adds to them when a task ends for which others wait (migration 0054).
_CHECKS = AppendOnlyTable("child_checks", ("check_at", "tenant", "task_id", "event_id"))
_LIST_CHECKS = Sql(
    f"""select {", ".join(_CHECKS.columns)} from child_checks where check_at <= :now
    order by {", ".join(_CHECKS.columns)} limit :limit"""
)
_FORGET_CHECK = Sql(
    "delete from child_checks where " + " and ".join(f"{column} = :{column}" for column in _CHECKS.columns)
)
CHECK_AFTER = 60 * SECOND
"""When a new wait is looked at again: by then the commit of an end that did not see it yet is long over."""
_LIST_WAITS_FOR = RowsSql(
    ("tenant", "task_id"),
    f"""select {COLUMNS_OF_OPEN} from given
        join task_steps on task_steps.reference = given.task_id and task_steps.tenant = given.tenant
        join tasks as child on child.tenant = given.tenant and child.task_id = given.task_id
        where task_steps.state = 'started' and task_steps.kind = 'child' and child.status in {_ENDED} limit :limit""",
)
# With an expression, for which SQLite does not read all waits for children in the index by kind.
_LIST_ORPHANS_OF = RowsSql(
    ("tenant", "task_id"),
    f"""select {COLUMNS_OF_OPEN} from given
        join task_steps on task_steps.tenant = given.tenant and task_steps.task_id = given.task_id
        join tasks on tasks.tenant = given.tenant and tasks.task_id = given.task_id
        where task_steps.state = 'started' and task_steps.kind || '' = 'child' and tasks.status = 'cancelled'
        limit :limit""",
)
_HAS_OPEN_CHILDREN = Sql("select 1 from task_steps where state = 'started' and kind = 'child' limit 1")
_HAS_OPEN_TOGETHER = Sql(
    f"select 1 from task_steps where {_TASK} and state = 'started' and together = :together limit 1"
)
_LIST_OPEN = Sql(f"select {_COLUMNS} from task_steps where {_TASK} and state = 'started' order by event_id")
_LIST_UNDECIDED = Sql(
    f"""select {_COLUMNS} from task_steps where {_TASK} and state = 'started' and kind in ('question', 'effect')
    order by event_id limit :limit"""
)
_LIST_OPEN_WAITS = Sql(
    f"""select {COLUMNS_OF_OPEN} from task_steps where {_TASK} and state = 'started'
    and kind in ('sleep', 'signal', 'question', 'child') order by event_id limit :limit"""
)
_INSERT_SIGNAL = Sql.insert("task_signals", ("tenant", "task_id", "event_id", "name", "value"))
_COUNT_SIGNALS = Sql(f"select count(*) from task_signals where {_TASK}")
_FIND_SIGNAL = Sql(f"select event_id, value from task_signals where {_TASK} and name = :name order by event_id limit 1")
_DELETE_SIGNAL = Sql(f"delete from task_signals where {_TASK} and event_id = :event_id")


def find(tx: Tx, tenant: str, task_id: str, key: str) -> Step | None:
    row = tx.row(_FIND, tenant=tenant, task_id=task_id, key=key)
    return None if row is None else step_from_row(row)


def prefetch_task(step: StepRef) -> Prefetch:
    """Return what `find_task` reads, for `Database.write`."""
    return _FIND_TASK, step


def find_task(tx: Tx, step: StepRef) -> tuple[Task | None, bool, str]:
    """Return the task of a step (None if there is none), whether the step is in its journal, and the task's last event.

    The event is that of `find_last_event`.
    """
    rows = tx.prefetched_rows(_FIND_TASK, step)
    return (task_from_row(rows[0][5:]), rows[0][3] is not None, rows[0][4] or "") if rows else (None, False, "")


def find_last_event(tx: Tx, tenant: str, task_id: str) -> str:
    """Return the `event_id` of the step of a task that began last; "" without steps."""
    row = tx.row(_FIND_LAST, tenant=tenant, task_id=task_id)
    return row[0] if row else ""


def list_steps(tx: Tx, tenant: str, task_id: str, after: str, limit: int) -> list[Step]:
    """List the steps of a task that began after an event id, oldest first."""
    return [step_from_row(row) for row in tx.rows(_LIST, tenant=tenant, task_id=task_id, after=after, limit=limit)]


def insert_started(tx: Tx, task: Task, draft: StepDraft, event_id: str, replaced: Step | None = None) -> Step | None:
    """Insert a step that has begun, in the place of a failed one if it is given; None if the journal has one.

    Like `insert_ended`, returns the step without its value.
    """
    return _insert(tx, task, draft, event_id, None, tx.now, replaced)


def insert_ended(
    tx: Tx,
    task: Task,
    draft: StepDraft,
    event_id: str,
    outcome: StepOutcome,
    started: int,
    replaced: Step | None = None,
) -> Step | None:
    """Insert a step that has ended, in the place of a failed one if it is given; None if the journal has one.

    `started` in microseconds.
    """
    return _insert(tx, task, draft, event_id, outcome, started, replaced)


def mark_handled(tx: Tx, task: Task, key: str) -> None:
    """Record that the program continued after this step had failed."""
    tx.run(_MARK_HANDLED, tenant=task.tenant, task_id=task.task_id, key=key)


def end(tx: Tx, tenant: str, task_id: str, key: str, outcome: StepOutcome) -> bool:
    """Record the outcome of a step that has begun; False if it has one."""
    return bool(end_all(tx, [(tenant, task_id, key, outcome)]))


def end_all(tx: Tx, endings: list[tuple[str, str, str, StepOutcome]]) -> set[StepRef]:
    """Record the outcomes of steps, given by tenant, task and key; return those that had none before."""
    rows, deflated = [], dict[StepRef, bytes]()
    for tenant, task_id, key, outcome in endings:
        columns = _store_outcome(tx, tenant, outcome)
        rows.append((tenant, task_id, key, *(columns[name] for name in _OUTCOME)))
        if columns["deflated"] is not None:
            deflated[tenant, task_id, key] = columns["deflated"]
    ended = {(row[0], row[1], row[2]) for row in tx.rows_for(_END, rows, now=tx.now)}
    for tenant, task_id, key in ended & deflated.keys():
        content = deflated[tenant, task_id, key]
        tx.run(_SET_DEFLATED, tenant=tenant, task_id=task_id, key=key, deflated=content)
    return ended


def next_due_at(tx: Tx) -> int | None:
    """Return when the time of the next wait is over, in microseconds; None if none has a time."""
    row = tx.row(_NEXT_DUE_AT)
    return row[0] if row else None


def list_due(tx: Tx, limit: int) -> list[OpenStep]:
    """List waits whose time is over, the longest overdue first."""
    return _open_from_rows(tx.rows(_LIST_DUE, now=tx.now, limit=limit))


def list_checks(tx: Tx, limit: int) -> list[ChildCheck]:
    """List tasks for which others wait and that have ended, or may have."""
    return tx.rows(_LIST_CHECKS, now=tx.now, limit=limit)


def forget_checks(tx: Tx, checks: list[ChildCheck]) -> None:
    """Delete the records of tasks whose waits were checked."""
    tx.many(_FORGET_CHECK, [dict(zip(_CHECKS.columns, check, strict=True)) for check in checks])


def list_waits_for(tx: Tx, children: list[TaskRef], limit: int) -> list[OpenStep]:
    """List the waits for those of these tasks that have ended, at least `limit` if there are as many."""
    return _open_from_rows(tx.rows_for(_LIST_WAITS_FOR, children, limit=limit))


def list_orphans_of(tx: Tx, parents: list[TaskRef], limit: int) -> list[OpenStep]:
    """List the waits for a child of those of these tasks that were cancelled, at least `limit` if there are as many."""
    return _open_from_rows(tx.rows_for(_LIST_ORPHANS_OF, parents, limit=limit))


def fail_malformed(tx: Tx, tenant: str, task_id: str, key: str, message: str) -> None:
    """End a step that cannot be read, unless it has ended."""
    error = jsontext.dump({"type": CorruptRow.code, "message": message})
    tx.run(_FAIL_MALFORMED, tenant=tenant, task_id=task_id, key=key, error=error, now=tx.now)


def has_open_children(tx: Tx) -> bool:
    """Return whether any task waits for a child."""
    return tx.row(_HAS_OPEN_CHILDREN) is not None


def has_open_together(tx: Tx, tenant: str, task_id: str, together: str | None) -> bool:
    """Return whether a wait of this group is open; never without a group."""
    return tx.row(_HAS_OPEN_TOGETHER, tenant=tenant, task_id=task_id, together=together) is not None


def list_open(tx: Tx, tenant: str, task_id: str) -> list[Step]:
    """List the steps of a task that have begun and have no outcome, oldest first."""
    return [step_from_row(row) for row in tx.rows(_LIST_OPEN, tenant=tenant, task_id=task_id)]


def list_undecided(tx: Tx, tenant: str, task_id: str, limit: int) -> list[Step]:
    """List the questions and effects of a task that have begun and have no outcome, oldest first."""
    return [step_from_row(row) for row in tx.rows(_LIST_UNDECIDED, tenant=tenant, task_id=task_id, limit=limit)]


def list_open_waits(tx: Tx, tenant: str, task_id: str, limit: int) -> list[Step]:
    """List what a task waits for, the oldest first, without damaged rows."""
    rows = tx.rows(_LIST_OPEN_WAITS, tenant=tenant, task_id=task_id, limit=limit)
    return [step for _, _, step in _open_from_rows(rows)]


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
    content = contents.read(tx, tenant, step.value_hash, f"The value of step {step.key!r}")
    return decode_value(step.encoding, content)


def _insert(
    tx: Tx,
    task: Task,
    draft: StepDraft,
    event_id: str,
    outcome: StepOutcome | None,
    started_at: int,
    replaced: Step | None,
) -> Step | None:
    stored: dict[str, Any] = {"deflated": None} if outcome is None else _store_outcome(tx, task.tenant, outcome)
    step = Step(
        key=draft.key,
        event_id=event_id if replaced is None else replaced_event(replaced, event_id),
        name=draft.name,
        kind=draft.kind,
        state="started" if outcome is None else outcome.state,
        position=draft.position,
        epoch=task.epoch,
        encoding="json" if outcome is None else outcome.encoding,
        value=None,
        value_hash=stored.get("value_hash"),
        size=stored.get("size", 0),
        error=None if outcome is None else outcome.error,
        started_at=started_at,
        ended_at=None if outcome is None else tx.now,
        wake_at=None if draft.seconds is None else tx.now + int(draft.seconds * SECOND),
        reference=draft.reference,
        options=draft.options,
        together=draft.together,
    )
    params = msgspec.structs.asdict(step) | stored | {"tenant": task.tenant, "task_id": task.task_id}
    if step.kind == "child" and step.state == "started":
        tx.append(_CHECKS, (tx.now + CHECK_AFTER, task.tenant, step.reference, step.event_id))
    if draft.options is not None:
        params["options"] = jsontext.dump(draft.options)
    if replaced is None:
        return step if tx.insert_new(_STEPS, _row_of(params)) else None
    return step if tx.run(_REPLACE, **params, old_epoch=replaced.epoch) else None


def _store_outcome(tx: Tx, tenant: str, outcome: StepOutcome) -> dict[str, Any]:
    """Store a long value beside the journal, and return the columns of the outcome."""
    columns: dict[str, Any] = {"state": outcome.state, "encoding": outcome.encoding}
    columns |= dict.fromkeys(("value", "value_hash", "deflated"))
    if outcome.error is not None:
        return columns | {"size": 0, "error": jsontext.dump(outcome.error)}
    columns["value_hash"] = contents.put_long(tx, tenant, outcome.content, MAX_INLINE_BYTES)
    if columns["value_hash"] is None:
        is_json = outcome.encoding == "json"
        content = outcome.content if is_json else jsontext.encode(decode_value("base64", outcome.content))
        columns["deflated"] = deflate(content)
        columns["value"] = content.decode() if columns["deflated"] is None else ""
    return columns | {"size": len(outcome.content), "error": None}


def _open_from_rows(rows: list[tuple[Any, ...]]) -> list[OpenStep]:
    """Return the steps of all rows. Raises CorruptRow."""
    steps: list[OpenStep] = []
    for row in rows:
        try:
            steps.append((row[0], row[1], step_from_row(row[2:])))
        except CorruptRecord as error:
            text = f"Task {row[1]!r} waits, and its wait cannot be read. {error.message}"
            raise CorruptRow(text, TABLE, (row[0], row[1], row[2])) from error
    return steps


def step_from_row(row: tuple[Any, ...]) -> Step:
    values = dict(zip(STORED, row, strict=True))
    deflated = values.pop("deflated")
    try:
        if deflated is not None:
            values["value"] = inflate(bytes(deflated), f"The value of step {values['key']!r}")
        for optional in ("value", "error", "options"):
            if values[optional] is not None:
                values[optional] = jsontext.load(values[optional])
        return msgspec.convert(values, Step)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The journal has a malformed step {values['key']!r}: {error}.") from error
