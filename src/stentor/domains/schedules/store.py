"""SQL of the schedules and of their runs."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import ids, jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Params
from stentor.core.errors import CorruptRow
from stentor.domains.schedules.model import MALFORMED_TASK, RUNS_KEPT, Schedule, ScheduleRun
from stentor.domains.tasks.model import TaskDraft

TABLE = "schedules"
_FIELDS = Schedule.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ONE = Sql(f"select {_COLUMNS} from schedules where tenant = :tenant and name = :name")
# PostgreSQL cannot infer the type of a parameter that is only compared with null.
_LIST = Sql(
    f"""select {_COLUMNS} from schedules
    where tenant = :tenant and (cast(:creator as text) is null or created_by = :creator and runs_as = :creator)
    order by name"""
)
_LIST_NAMES = Sql("select name from schedules where tenant = :tenant")
_COUNT = Sql("select count(*) from schedules where tenant = :tenant and created_by = :creator")
_DUE = Sql(
    f"""select {_COLUMNS} from schedules where next_at <= :now and (next_at, tenant, name) > (:after, :tenant, :name)
    order by next_at, tenant, name limit :limit"""
)
_WAITING = Sql(f"select {_COLUMNS} from schedules where next_at > :now")
_INSERT = Sql.insert("schedules", _FIELDS)
_CHANGED = tuple(name for name in _FIELDS if name not in ("tenant", "name", "created_by", "created_at"))
_UPDATE = Sql(
    f"""update schedules set {", ".join(f"{name} = :{name}" for name in _CHANGED)}
    where tenant = :tenant and name = :name"""
)
_ADVANCE = Sql(
    """update schedules set next_at = :next_at, version = version + 1, last_task_id = coalesce(:task_id, last_task_id)
    where tenant = :tenant and name = :name"""
)
_PAUSE_MALFORMED = Sql(
    """update schedules set paused = 1, paused_reason = :reason, next_at = null, updated_at = :now,
        version = version + 1
    where tenant = :tenant and name = :name and paused = 0"""
)
_DELETE = Sql("delete from schedules where tenant = :tenant and name = :name")

_RUN_FIELDS = ScheduleRun.__struct_fields__
_RUN_COLUMNS = ", ".join(_RUN_FIELDS)
_INSERT_RUN = Sql.insert("schedule_runs", ("tenant", "name", *_RUN_FIELDS))
_RUNS = Sql(
    f"""select {_RUN_COLUMNS} from schedule_runs
    where tenant = :tenant and name = :name order by run_id desc limit :limit"""
)
_LAST_RUNS = Sql(
    f"""select r.name, {", ".join("r." + name for name in _RUN_FIELDS)} from schedule_runs r where r.tenant = :tenant
    and r.run_id = (select max(n.run_id) from schedule_runs n where n.tenant = r.tenant and n.name = r.name)"""
)
_LAST_RUN_ID = Sql("select max(run_id) from schedule_runs where tenant = :tenant and name = :name")
_DONE = Sql("select due_at from schedule_runs where tenant = :tenant and name = :name and due_at >= :first")
# Run ids sort by time, so the row behind the kept ones is where deleting begins. After the clock was set back, runs of
# future times say what has already been done.
_TRIM_RUNS = Sql(
    """delete from schedule_runs where tenant = :tenant and name = :name and due_at <= :now and run_id <= (
        select run_id from schedule_runs where tenant = :tenant and name = :name
        order by run_id desc limit 1 offset :kept)"""
)
_DELETE_RUNS = Sql("delete from schedule_runs where tenant = :tenant and name = :name")


def find(tx: Tx, tenant: str, name: str) -> Schedule | None:
    row = tx.row(_ONE, tenant=tenant, name=name)
    return _schedule(row) if row else None


def list_schedules(tx: Tx, tenant: str, creator: str | None) -> list[Schedule]:
    """Return a tenant's schedules by name; with `creator` those that this key made."""
    return [_schedule(row) for row in tx.rows(_LIST, tenant=tenant, creator=creator)]


def list_names(tx: Tx, tenant: str) -> set[str]:
    return {str(name) for (name,) in tx.rows(_LIST_NAMES, tenant=tenant)}


def count(tx: Tx, tenant: str, creator: str) -> int:
    row = tx.row(_COUNT, tenant=tenant, creator=creator)
    return int(row[0]) if row else 0


def list_due(tx: Tx, limit: int, after: Schedule | None = None) -> list[Schedule]:
    """Return the schedules of all tenants whose time has come, those that are most late first; behind one of them."""
    next_at, tenant, name = (after.next_at, after.tenant, after.name) if after else (0, "", "")
    rows = tx.rows(_DUE, now=tx.now, limit=limit, after=next_at, tenant=tenant, name=name)
    return [_schedule(row, is_strict=True) for row in rows]


def list_waiting(tx: Tx) -> list[Schedule]:
    """Return the schedules of all tenants whose time is to come."""
    return [_schedule(row, is_strict=True) for row in tx.rows(_WAITING, now=tx.now)]


def insert(tx: Tx, schedule: Schedule) -> None:
    tx.run(_INSERT, **_row(schedule))


def update(tx: Tx, schedule: Schedule) -> None:
    row = _row(schedule)
    tx.run(_UPDATE, **{name: row[name] for name in ("tenant", "name", *_CHANGED)})


def advance(tx: Tx, schedule: Schedule, next_at: int, task_id: str | None) -> None:
    """Store the next time, and the task that was submitted, if one was."""
    tx.run(_ADVANCE, tenant=schedule.tenant, name=schedule.name, next_at=next_at, task_id=task_id)


def pause_malformed(tx: Tx, tenant: str, name: str, reason: str) -> Schedule | None:
    """Pause a schedule that cannot be read, and return it; None if it is paused."""
    paused = tx.run(_PAUSE_MALFORMED, tenant=tenant, name=name, reason=reason, now=tx.now)
    return find(tx, tenant, name) if paused else None


def delete(tx: Tx, tenant: str, name: str) -> None:
    """Delete a schedule with its runs; the tasks stay."""
    tx.run(_DELETE_RUNS, tenant=tenant, name=name)
    tx.run(_DELETE, tenant=tenant, name=name)


def insert_run(tx: Tx, schedule: Schedule, run: ScheduleRun) -> None:
    """Record what was done for a time, as the latest run, and forget the oldest one."""
    key = {"tenant": schedule.tenant, "name": schedule.name}
    row = tx.row(_LAST_RUN_ID, **key)
    if row and row[0] and run.run_id < row[0]:
        # Since then the service was started again with its clock set back, or its processes' clocks differ.
        ids.advance_past(row[0])
        run = msgspec.structs.replace(run, run_id=ids.new_id())
    tx.run(_INSERT_RUN, **key, **msgspec.structs.asdict(run))
    tx.run(_TRIM_RUNS, **key, kept=RUNS_KEPT, now=tx.now)


def list_done(tx: Tx, schedule: Schedule, first: int) -> set[int]:
    """Return for which times from `first` on something was done: after the clock was set back also for some to come."""
    return {int(row[0]) for row in tx.rows(_DONE, tenant=schedule.tenant, name=schedule.name, first=first)}


def list_runs(tx: Tx, schedule: Schedule, limit: int) -> list[ScheduleRun]:
    """Return the runs of a schedule, the latest first."""
    return [ScheduleRun(*row) for row in tx.rows(_RUNS, tenant=schedule.tenant, name=schedule.name, limit=limit)]


def list_last_runs(tx: Tx, tenant: str) -> dict[str, ScheduleRun]:
    """Return the last run of each schedule of a tenant that has one, by the schedule's name."""
    return {name: ScheduleRun(*run) for name, *run in tx.rows(_LAST_RUNS, tenant=tenant)}


# SQLite has neither a type for JSON nor one for booleans.
def _row(schedule: Schedule) -> Params:
    row = {name: getattr(schedule, name) for name in _FIELDS}
    return row | {"task": jsontext.dump(schedule.task), "paused": int(schedule.paused)}


def _schedule(row: tuple[Any, ...], *, is_strict: bool = False) -> Schedule:
    """Return the schedule; its task is MALFORMED_TASK if it cannot be read, or raises CorruptRow if `is_strict`.

    The scheduler is strict, and pauses it; lists and changes are not.
    """
    values = dict(zip(_FIELDS, row, strict=True))
    values["paused"] = bool(values["paused"])
    try:
        values["task"] = msgspec.json.decode(values["task"], type=TaskDraft)
    except msgspec.MsgspecError as error:
        if is_strict:
            text = f"The task of the schedule {values['name']!r} is malformed: {error}."
            raise CorruptRow(text, TABLE, (values["tenant"], values["name"])) from error
        values["task"] = MALFORMED_TASK
    return Schedule(**values)
