"""SQL of task notes: records of tasks, changes since a cursor, the cursors of the writers, notes of the inbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Row
from stentor.core.errors import CorruptRecord
from stentor.domains.tasknotes.inbox_notes import InboxNote
from stentor.domains.tasknotes.model import MAX_READ_CHARS, TaskNoteRecord
from stentor.domains.tasks.model import TaskMetadata

TASKS_PER_STATEMENT = 64
"""Tasks per statement; a fixed number, so that the SQL text is always the same."""
_CUT_FIELDS = ("input", "result", "error")
_FIELDS = TaskNoteRecord.__struct_fields__
# One character more than is shown tells that the text was cut.
_COLUMNS = ", ".join(f"substr({name}, 1, {MAX_READ_CHARS + 1})" if name in _CUT_FIELDS else name for name in _FIELDS)
_SOME = Sql(
    f"select {_COLUMNS} from tasks where tenant = :tenant and task_id in "
    f"({', '.join(f':id_{n}' for n in range(TASKS_PER_STATEMENT))})"
)
_AFTER = Sql(
    f"""select {_COLUMNS} from tasks where tenant = :tenant and (created_at, task_id) > (:time, :task_id)
    order by created_at, task_id limit :limit"""
)
_CHANGED = Sql(
    """select event_id, task_id from events where event_id > :after and event_id <= :until
    order by event_id limit :limit"""
)
_NEWEST = Sql("select max(event_id) from events")
# Deleted as it is read, so that of two processes only one takes a cursor over.
_TAKE_ALL = Sql("delete from task_note_cursors where seen_at <= :before returning event_id")
_ANY = Sql("select count(*) from task_note_cursors")
_SET = Sql(
    """insert into task_note_cursors (writer_id, event_id, seen_at) values (:writer_id, :event_id, :now)
    on conflict (writer_id) do update set event_id = excluded.event_id, seen_at = excluded.seen_at"""
)


def get_records(tx: Tx, tenant: str, task_ids: Sequence[str]) -> list[TaskNoteRecord]:
    """Return the tasks that exist, in any order."""
    records: list[TaskNoteRecord] = []
    for start in range(0, len(task_ids), TASKS_PER_STATEMENT):
        page = task_ids[start : start + TASKS_PER_STATEMENT]
        # The last id fills the parameters that are left over.
        params = {f"id_{n}": page[min(n, len(page) - 1)] for n in range(TASKS_PER_STATEMENT)}
        records += map(_record, tx.rows(_SOME, tenant=tenant, **params))
    return records


def list_records_after(tx: Tx, tenant: str, time: int, task_id: str, limit: int) -> list[TaskNoteRecord]:
    """Return the next tasks after a task, in the order of their submission."""
    return [_record(row) for row in tx.rows(_AFTER, tenant=tenant, time=time, task_id=task_id, limit=limit)]


def get_latest_event_id(tx: Tx) -> str:
    """Return the id of the latest event, empty before the first one."""
    row = tx.row(_NEWEST)
    return str(row[0]) if row and row[0] is not None else ""


def list_changed_tasks(tx: Tx, after: str, until: str, limit: int) -> tuple[list[str], str | None]:
    """Return the tasks with events after `after` up to `until`, and the last event read, None at the end.

    Returns tasks of all tenants; `get_records` then reads only those of one.
    """
    rows = tx.rows(_CHANGED, after=after, until=until, limit=limit)
    task_ids = dict.fromkeys(str(task_id) for _, task_id in rows if task_id is not None)
    return list(task_ids), str(rows[-1][0]) if len(rows) == limit else None


def adopt_cursors(tx: Tx, writer_id: str, own: str, before: int) -> str:
    """Take over the cursors of writers last seen before a time in microseconds. Return where this writer begins.

    The first writer of a database begins at its first event.
    """
    row = tx.row(_ANY)
    is_first = row is None or row[0] == 0
    cursors = [str(row[0]) for row in tx.rows(_TAKE_ALL, before=before)]
    start = "" if is_first else min([own, *cursors])
    set_cursor(tx, writer_id, start)
    return start


def set_cursor(tx: Tx, writer_id: str, event_id: str) -> None:
    tx.run(_SET, writer_id=writer_id, event_id=event_id, now=tx.now)


_capabilities = msgspec.json.Decoder(tuple[str, ...])
_metadata = msgspec.json.Decoder(TaskMetadata)


def _record(row: Row) -> TaskNoteRecord:
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=True))
    try:
        values["required_capabilities"] = _capabilities.decode(values["required_capabilities"])
        values["metadata"] = _metadata.decode(values["metadata"])
        if values["learning_eligible"] is not None:
            values["learning_eligible"] = bool(values["learning_eligible"])
        return TaskNoteRecord(**values)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The stored record of task {values['task_id']!r} is malformed: {error}.") from error


_INBOX_FIELDS = InboxNote.__struct_fields__
_INBOX_COLUMNS = ", ".join(_INBOX_FIELDS)
_INBOX_NOTES = Sql(f"select {_INBOX_COLUMNS} from inbox_notes where tenant = :tenant")
_ANSWERABLE_NOTES = Sql(
    f"""select {_INBOX_COLUMNS} from inbox_notes where tenant = :tenant and state = 'asked' and (problem is not null
        or exists (select 1 from tasks where tasks.tenant = inbox_notes.tenant
            and tasks.task_id = inbox_notes.task_id
            and status in ('completed', 'failed', 'aborted', 'cancelled')))
    order by path limit :limit"""
)
_SAVE_INBOX_NOTE = Sql(
    f"""insert into inbox_notes (tenant, {_INBOX_COLUMNS}, updated_at)
    values (:tenant, {", ".join(f":{name}" for name in _INBOX_FIELDS)}, :now)
    on conflict (tenant, path) do update set {", ".join(f"{name} = excluded.{name}" for name in _INBOX_FIELDS[1:])},
        updated_at = excluded.updated_at"""
)


def list_inbox_notes(tx: Tx, tenant: str) -> dict[str, InboxNote]:
    """Return the notes of the inbox by path."""
    return {str(row[0]): InboxNote(*row) for row in tx.rows(_INBOX_NOTES, tenant=tenant)}


def list_answerable_notes(tx: Tx, tenant: str, limit: int) -> list[InboxNote]:
    """Return the notes without an answer whose tasks are over or that cannot become a task."""
    return [InboxNote(*row) for row in tx.rows(_ANSWERABLE_NOTES, tenant=tenant, limit=limit)]


def save_inbox_note(tx: Tx, tenant: str, asked: InboxNote) -> None:
    values = {name: getattr(asked, name) for name in _INBOX_FIELDS}
    tx.run(_SAVE_INBOX_NOTE, tenant=tenant, now=tx.now, **values)
