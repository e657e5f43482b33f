"""SQL of the sessions. Items are in `item_store`, values in `value_store`."""

from __future__ import annotations

from typing import Any

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.ids import LAST_GROUP_START, UUID_LENGTH
from stentor.domains.sessions.model import Session

_FIELDS = Session.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ONE = "tenant = :tenant and session_id = :session_id"
_FIND = Sql(f"select {_COLUMNS} from sessions where {_ONE}")
_LIST = Sql(
    f"""select {_COLUMNS} from sessions where tenant = :tenant
    and (cast(:creator as text) is null or created_by = :creator) and updated_at <= :before_time
    and (updated_at < :before_time or session_id < :before_id)
    order by updated_at desc, session_id desc limit :limit"""
)
REFERENCE_SESSIONS = 10_000
"""Sessions, the last changed, whose ids and names are searched for a reference."""
_LIST_BY_REFERENCE = Sql(
    f"""select {_COLUMNS} from sessions where tenant = :tenant and (session_id = :text or session_id in (
        select session_id from (
            select session_id, name from sessions where tenant = :tenant
            order by updated_at desc, session_id desc limit {REFERENCE_SESSIONS}
        ) as newest where name = :text or substr(session_id, 1, :length) = :text
            or substr(session_id, length(session_id) - :length + 1) = :text
            or (length(session_id) = {UUID_LENGTH} and substr(session_id, {LAST_GROUP_START}, :length) = :text)))
    and (cast(:creator as text) is null or created_by = :creator)
    order by case when session_id = :text then 0 else 1 end, updated_at desc, session_id desc limit :limit"""
)
_INSERT = Sql.insert("sessions", _FIELDS)
_UPDATE = Sql(f"update sessions set name = :name, metadata = :metadata, updated_at = :now where {_ONE}")
_NOTE = Sql(
    f"""update sessions set item_count = item_count + :items, value_count = value_count + :values,
    stored_bytes = stored_bytes + :size, last_number = :last_number, updated_at = :now where {_ONE}"""
)
_DELETE = Sql(f"delete from sessions where {_ONE}")
# A holder counts while its attempt runs: an attempt that was lost, waits or has ended holds nothing.
_HOLD = Sql(
    f"""update sessions set held_by = :task_id, held_epoch = :epoch where {_ONE}
    and (held_by is null or held_by = :task_id or not exists (select 1 from tasks where tasks.tenant = sessions.tenant
        and tasks.task_id = sessions.held_by and tasks.epoch = sessions.held_epoch and tasks.status = 'executing'))"""
)
_HOLDER = Sql(f"select held_by from sessions where {_ONE}")
# A key that is bound to its agents works on a session while one of them executes a task of it.
_HAS_WORK = Sql(
    """select 1 from tasks join agents on agents.tenant = tasks.tenant and agents.agent_id = tasks.assigned_agent
    where tasks.tenant = :tenant and tasks.session_id = :session_id and tasks.status = 'executing'
    and agents.key_name = :key limit 1"""
)
_FIND_OTHER_WORK = Sql(
    """select tasks.task_id from tasks
    left join agents on agents.tenant = tasks.tenant and agents.agent_id = tasks.assigned_agent
    where tasks.tenant = :tenant and tasks.session_id = :session_id and tasks.status = 'executing'
    and tasks.task_id <> :task_id and coalesce(agents.key_name, '') <> :key order by tasks.task_id limit 1"""
)


def find(tx: Tx, tenant: str, session_id: str) -> Session | None:
    row = tx.row(_FIND, tenant=tenant, session_id=session_id)
    return None if row is None else _session(row)


def list_page(tx: Tx, tenant: str, creator: str | None, before: tuple[int, str], limit: int) -> list[Session]:
    """List sessions by their last change, the newest first, below a time and an id; with `creator` those of a key."""
    params = {"creator": creator, "before_time": before[0], "before_id": before[1]}
    return [_session(row) for row in tx.rows(_LIST, tenant=tenant, limit=limit, **params)]


def list_by_reference(tx: Tx, tenant: str, creator: str | None, text: str, limit: int) -> list[Session]:
    """List the sessions whose name is the text, or that it refers to (`ids.matches_part`), the exact id first.

    Searches the last changed REFERENCE_SESSIONS; an exact id is found among all.
    """
    params = {"creator": creator, "text": text, "length": len(text)}
    return [_session(row) for row in tx.rows(_LIST_BY_REFERENCE, tenant=tenant, limit=limit, **params)]


def insert(tx: Tx, session: Session) -> None:
    row = {name: getattr(session, name) for name in _FIELDS}
    tx.run(_INSERT, **row | {"metadata": jsontext.dump(session.metadata)})


def update(tx: Tx, session: Session) -> None:
    """Store the name and the metadata."""
    metadata = jsontext.dump(session.metadata)
    tx.run(_UPDATE, **session_key(session), name=session.name, metadata=metadata, now=tx.now)


def note_change(tx: Tx, session: Session, last_number: int, *, items: int = 0, values: int = 0, size: int) -> None:
    """Add to the counts of a session."""
    tx.run(_NOTE, **session_key(session), items=items, values=values, size=size, last_number=last_number, now=tx.now)


def delete(tx: Tx, session: Session) -> None:
    """Delete only the row."""
    tx.run(_DELETE, **session_key(session))


def hold(tx: Tx, tenant: str, session_id: str, task_id: str, epoch: int) -> str | None:
    """Let the attempt of a task hold a session; return the task that holds it otherwise."""
    if tx.run(_HOLD, tenant=tenant, session_id=session_id, task_id=task_id, epoch=epoch):
        return None
    return find_holder(tx, tenant, session_id)


def find_holder(tx: Tx, tenant: str, session_id: str) -> str | None:
    """Return the task that held a session last; None if none did, or without such a session."""
    row = tx.row(_HOLDER, tenant=tenant, session_id=session_id)
    return row[0] if row else None


def has_work(tx: Tx, session: Session, key: str) -> bool:
    """Return whether an agent of a key executes a task of the session."""
    return tx.row(_HAS_WORK, **session_key(session), key=key) is not None


def find_other_work(tx: Tx, session: Session, key: str, task_id: str | None) -> str | None:
    """Return a task of the session that is executed, other than this task and those of the agents of a key."""
    row = tx.row(_FIND_OTHER_WORK, **session_key(session), key=key, task_id=task_id or "")
    return None if row is None else str(row[0])


def session_key(session: Session) -> dict[str, str]:
    """Return the parameters that select a session's rows."""
    return {"tenant": session.tenant, "session_id": session.session_id}


def _session(row: tuple[Any, ...]) -> Session:
    values = dict(zip(_FIELDS, row, strict=True))
    return Session(**values | {"metadata": jsontext.load(values["metadata"])})
