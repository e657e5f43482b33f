"""SQL of the archives: which tasks may leave the database, their rows, and their removal.

The tables belong to many domains. As in a copy of the database, what counts here is that no row of a task is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.runlog import EVENT_COLUMNS
from stentor.domains.retention.model import CALLS, EVENTS, GRADES, SIGNALS, STEPS, TASKS, ArchivedTable, TaskArchive

IDS_PER_STATEMENT = 64
"""Ids in one statement; a fixed number, so that the SQL text is always the same."""
WINDOW = 200
"""Tasks that one statement looks at, so that many which must stay do not hold it up."""
Position = tuple[int, str]
START: Position = (-1, "")
"""Before the first task: time of its submission, and its id."""
_IDS = ", ".join(f":id_{n}" for n in range(IDS_PER_STATEMENT))
_OF_TASKS = f"tenant = :tenant and task_id in ({_IDS})"
_WINDOW = Sql(
    """select task_id, created_at from tasks where tenant = :tenant and (created_at, task_id) > (:time, :after)
    and created_at < :before order by created_at, task_id limit :limit"""
)
# What must stay: a task that is not over (only an ended one has a completion time) or whose outcome is not learned yet,
# that has subtasks, whose result its parent may still ask for, that is waited for, whose effect may or may not have
# happened, that a conversation shows, whose end is still to be reported, or with a model call that the sums of usage do
# not have yet. The cross joins and the concatenation keep SQLite from indexes with which it would read all deliveries
# and effects of the tenant for each task.
_LIST_ARCHIVABLE = Sql(
    f"""select t.task_id, length(t.input) + coalesce(length(t.result), 0)
        + coalesce((select sum(s.size) from task_steps s where s.tenant = t.tenant and s.task_id = t.task_id), 0),
        (select count(*) from events e where e.tenant = t.tenant and e.task_id = t.task_id)
    from tasks t where t.tenant = :tenant and t.task_id in ({_IDS})
    and t.completion_time < :before and t.learning_pending = 0
    and not exists (select 1 from tasks c where c.tenant = t.tenant and c.parent_task_id = t.task_id)
    and not exists (select 1 from tasks p where p.tenant = t.tenant and p.task_id = t.parent_task_id
        and p.completion_time is null)
    and not exists (select 1 from task_steps s where s.reference = t.task_id and s.state = 'started'
        and s.kind = 'child')
    and not exists (select 1 from task_steps s where s.tenant = t.tenant and s.task_id = t.task_id
        and s.state || '' = 'started' and s.kind = 'effect')
    and (t.session_id is null or not exists (select 1 from sessions x where x.tenant = t.tenant
        and x.session_id = t.session_id))
    and not exists (select 1 from session_items i where i.tenant = t.tenant and i.task_id = t.task_id
        and i.source <> 'own')
    and not exists (select 1 from atp_messages m where m.tenant = t.tenant and m.task_id = t.task_id
        and m.status = 'executing')
    and not exists (select 1 from inbox_notes n where n.tenant = t.tenant and n.task_id = t.task_id
        and n.state = 'asked')
    and not exists (select 1 from events e where e.tenant = t.tenant and e.task_id = t.task_id
        and not exists (select 1 from provenance_leaves l where l.event_id = e.event_id))
    and not exists (select 1 from events e cross join webhook_subscriptions h cross join webhook_deliveries d
        where e.tenant = t.tenant and e.task_id = t.task_id and h.tenant = e.tenant
        and d.subscription_id = h.subscription_id and d.event_id = e.event_id
        and d.status in ('waiting', 'sending'))
    and not exists (select 1 from llm_calls c where c.tenant = t.tenant and c.task_id = t.task_id
        and c.happened_at >= coalesce((select u.summed_until from llm_usage_marks u where u.tenant = t.tenant), 0))"""
)
_TABLES = {TASKS: "tasks", STEPS: "task_steps", SIGNALS: "task_signals", GRADES: "task_grades", CALLS: "llm_calls"}
_READ = {
    table: Sql(f"select {', '.join(table.columns)} from {source} where {_OF_TASKS}")
    for table, source in _TABLES.items()
}
_READ_EVENTS = Sql(
    f"""select l.hash, l.number, {", ".join(f"e.{name}" for name in EVENT_COLUMNS)} from events e
    left join provenance_leaves l on l.event_id = e.event_id
    where e.tenant = :tenant and e.task_id in ({_IDS}) order by l.number"""
)
_STORED_VALUES = Sql(f"select task_id, key, deflated from task_steps where {_OF_TASKS} and deflated is not null")
_DELETE = {
    **{table: Sql(f"delete from {source} where {_OF_TASKS}") for table, source in _TABLES.items()},
    EVENTS: Sql(f"delete from events where {_OF_TASKS}"),
}
# Prompts and answers are never written to an archive: it could not forget them.
_DELETE_CONTENTS = Sql(f"delete from llm_contents where call_id in (select call_id from llm_calls where {_OF_TASKS})")
_DELETE_WORDS = Sql(f"delete from task_search where {_OF_TASKS}")
_DELETE_SPENT = Sql(f"delete from task_spent where {_OF_TASKS}")
_ARCHIVED_TASKS = AppendOnlyTable("archived_tasks", ("tenant", "task_id", "submitted_by", "archive"))
_ARCHIVED_EVENTS = AppendOnlyTable("archived_events", ("number", "archive"))
_FIELDS = TaskArchive.__struct_fields__
_ARCHIVES = f"select {', '.join(_FIELDS)} from archives"
_LIST = Sql(f"{_ARCHIVES} order by number")
_LIST_UNFINISHED = Sql(f"{_ARCHIVES} where ended_at is null order by number")
_LEAVES = Sql(
    """select l.number, l.hash from archived_events a join provenance_leaves l on l.number = a.number
    where a.archive = :archive"""
)
_LAST_NUMBER = Sql("select coalesce(max(number), 0) from archives")
_INSERT = Sql.insert("archives", _FIELDS)
_FINISH = Sql(
    """update archives set ended_at = :ended_at, event_id = :event_id, size_bytes = :size_bytes
    where name = :name and ended_at is null"""
)
_IS_UNFINISHED = Sql("select 1 from archives where name = :name and ended_at is null")
_FORGET = Sql("delete from archives where name = :name and ended_at is null")


def list_window(tx: Tx, tenant: str, before: int, after: Position, limit: int) -> list[tuple[str, int]]:
    """Return id and submission of the next tasks that were submitted before a time, oldest first."""
    rows = tx.rows(_WINDOW, tenant=tenant, time=after[0], after=after[1], before=before, limit=limit)
    return [(str(task_id), int(created_at)) for task_id, created_at in rows]


def list_archivable(tx: Tx, tenant: str, task_ids: Sequence[str], before: int) -> dict[str, tuple[int, int]]:
    """Return those tasks that ended before a time and may be archived, with their bytes and the number of events."""
    rows = _rows_of(tx, _LIST_ARCHIVABLE, tenant, task_ids, before=before)
    return {str(task_id): (int(size), int(events)) for task_id, size, events in rows}


def read_rows(tx: Tx, table: ArchivedTable, tenant: str, task_ids: Sequence[str]) -> list[Row]:
    """Return the rows of tasks in a table other than that of events."""
    return list(_rows_of(tx, _READ[table], tenant, task_ids))


def read_deflated_values(tx: Tx, tenant: str, task_ids: Sequence[str]) -> dict[tuple[str, str], bytes]:
    """Return the values of steps that are stored in the DEFLATE format, by task and key."""
    rows = _rows_of(tx, _STORED_VALUES, tenant, task_ids)
    return {(str(task_id), str(key)): bytes(value) for task_id, key, value in rows}


def read_events(tx: Tx, tenant: str, task_ids: Sequence[str]) -> list[Row]:
    """Return the events of tasks: leaf hash in hex and number (both None without a number), and EVENT_COLUMNS."""
    return list(_rows_of(tx, _READ_EVENTS, tenant, task_ids))


def delete_rows(tx: Tx, table: ArchivedTable, tenant: str, task_ids: Sequence[str]) -> int:
    """Delete the rows of tasks; return how many there were."""
    return _run_for(tx, _DELETE[table], tenant, task_ids)


def delete_contents(tx: Tx, tenant: str, task_ids: Sequence[str]) -> None:
    """Delete what was kept of the prompts and answers of the tasks' model calls."""
    _run_for(tx, _DELETE_CONTENTS, tenant, task_ids)


def delete_spent(tx: Tx, tenant: str, task_ids: Sequence[str]) -> None:
    """Delete what is counted against the budgets of tasks."""
    _run_for(tx, _DELETE_SPENT, tenant, task_ids)


def delete_words(tx: Tx, tenant: str, task_ids: Sequence[str]) -> None:
    """Delete the words of tasks from PostgreSQL's search index. On SQLite it is in a file of its own."""
    _run_for(tx, _DELETE_WORDS, tenant, task_ids)


def mark_archived(tx: Tx, archive: TaskArchive, submitters: Iterable[tuple[str, str]], numbers: Iterable[int]) -> None:
    """Record which tasks (id and submitter) and which numbers of the run log are in an archive."""
    for task_id, submitted_by in submitters:
        tx.append(_ARCHIVED_TASKS, (archive.tenant, task_id, submitted_by, archive.number))
    for number in numbers:
        tx.append(_ARCHIVED_EVENTS, (number, archive.number))


def list_archives(tx: Tx) -> list[TaskArchive]:
    return [TaskArchive(*row) for row in tx.rows(_LIST)]


def list_unfinished(tx: Tx) -> list[TaskArchive]:
    """List the archives whose writing did not end: it continues, or its process was killed."""
    return [TaskArchive(*row) for row in tx.rows(_LIST_UNFINISHED)]


def list_leaves(tx: Tx, archive: int) -> dict[int, str]:
    """Return the hash, in hex, of each number of the run log whose event is in an archive."""
    return {int(number): str(leaf) for number, leaf in tx.rows(_LEAVES, archive=archive)}


def last_number(tx: Tx) -> int:
    row = tx.row(_LAST_NUMBER)
    return int(row[0]) if row else 0


def insert_archive(tx: Tx, archive: TaskArchive) -> None:
    tx.run(_INSERT, **{name: getattr(archive, name) for name in _FIELDS})


def is_unfinished(tx: Tx, name: str) -> bool:
    return tx.row(_IS_UNFINISHED, name=name) is not None


def finish_archive(tx: Tx, name: str, event_id: str, size_bytes: int) -> None:
    tx.run(_FINISH, name=name, ended_at=tx.now, event_id=event_id, size_bytes=size_bytes)


def forget_archive(tx: Tx, name: str) -> bool:
    """Forget an archive that was not finished; False if it is finished or forgotten already."""
    return tx.run(_FORGET, name=name) == 1


def _rows_of(tx: Tx, sql: Sql, tenant: str, task_ids: Sequence[str], **params: Any) -> Iterator[Row]:
    for ids in _parts(task_ids):
        yield from tx.rows(sql, tenant=tenant, **ids, **params)


def _run_for(tx: Tx, sql: Sql, tenant: str, task_ids: Sequence[str]) -> int:
    return sum(tx.run(sql, tenant=tenant, **ids) for ids in _parts(task_ids))


def _parts(task_ids: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the parameters of the ids; the last id fills those that are left over."""
    for start in range(0, len(task_ids), IDS_PER_STATEMENT):
        batch = task_ids[start : start + IDS_PER_STATEMENT]
        yield {f"id_{n}": batch[min(n, len(batch) - 1)] for n in range(IDS_PER_STATEMENT)}
