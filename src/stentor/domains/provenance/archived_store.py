"""SQL of what has left the database for an archive: tasks, and events of which only the leaf is left."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stentor.core.clock import format_iso
from stentor.core.db import Sql, Tx
from stentor.core.errors import TaskArchived

_FIND_TASK = Sql(
    """select a.name, a.ended_at, t.submitted_by from archived_tasks t join archives a on a.number = t.archive
    where t.tenant = :tenant and t.task_id = :task_id"""
)
_FIND_EVENT = Sql(
    """select a.name, a.ended_at, l.number, l.hash, e.metadata from provenance_leaves l
    join archived_events x on x.number = l.number join archives a on a.number = x.archive
    left join events e on e.event_id = a.event_id and e.event_type = 'tasks_archived' and e.tenant = a.tenant
    where l.event_id = :event_id and a.tenant = :tenant"""
)
_LIST_NUMBERS = Sql("select number, archive from archived_events where number >= :first and number < :end")
_LIST_ARCHIVES = Sql(
    """select a.number, a.name, e.metadata from archives a
    left join events e on e.event_id = a.event_id and e.event_type = 'tasks_archived' and e.tenant = a.tenant
    where a.ended_at is not null order by a.number"""
)


class ArchivedTask(msgspec.Struct, frozen=True):
    """The archive of a task, when it got there (microseconds), and the key that submitted the task."""

    archive: str
    archived_at: int
    submitted_by: str


class ArchivedEvent(msgspec.Struct, frozen=True):
    """The archive of an event, when it got there, and its leaf: number, and hash in hex.

    `metadata` is that of the event that recorded the archive, None without that event.
    """

    archive: str
    archived_at: int
    number: int
    leaf: str
    metadata: str | None


def find_task(tx: Tx, tenant: str, task_id: str) -> ArchivedTask | None:
    row = tx.row(_FIND_TASK, tenant=tenant, task_id=task_id)
    return None if row is None else ArchivedTask(*row)


def find_event(tx: Tx, tenant: str, event_id: str) -> ArchivedEvent | None:
    row = tx.row(_FIND_EVENT, tenant=tenant, event_id=event_id)
    return None if row is None else ArchivedEvent(*row)


def list_numbers(tx: Tx, first: int, end: int) -> dict[int, int]:
    """Return the archive of each archived event of a range of numbers."""
    return dict(tx.rows(_LIST_NUMBERS, first=first, end=end))


def iter_archives(tx: Tx) -> Iterator[tuple[int, str, str | None]]:
    """Yield number and name of each archive, and the metadata of the event that vouches for it, None without it."""
    yield from tx.rows(_LIST_ARCHIVES)


def archived_error(what: str, record_id: str, archive: str, archived_at: int) -> TaskArchived:
    """Return the error of a request for something that is in an archive; `what` begins its message."""
    at = format_iso(archived_at)
    return TaskArchived(
        f"{what} was archived at {at}. It is in the folder {archive} of the archive.",
        {"id": record_id, "archive": archive, "archived_at": at},
    )
