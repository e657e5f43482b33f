"""SQL of the items of sessions.

A long value is in the contents, by its hash. What a task has stored already, as its input, its result or a step of its
journal, is not stored again: the item refers to it, and is read through it.
"""

from __future__ import annotations

from typing import Any

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.formats.deflate import inflate
from stentor.domains.atp.text_format import content_for_agent
from stentor.domains.contents import store as contents
from stentor.domains.sessions.model import (
    MAX_INLINE_BYTES,
    MAX_PAGE_BYTES,
    Item,
    ItemDraft,
    Session,
    build_message,
)
from stentor.domains.sessions.store import session_key

_ONE = "tenant = :tenant and session_id = :session_id"
_INSERT = Sql(
    """insert into session_items
    (tenant, session_id, position, kind, source, value, value_hash, size, created_at, task_id, step_key) values
    (:tenant, :session_id, :position, :kind, :source, :value, :value_hash, :size, :now, :task_id, :step_key)"""
)
_SIZES_AFTER = Sql(
    f"select position, size from session_items where {_ONE} and position > :after order by position limit :limit"
)
_SIZES_BEFORE = Sql(
    f"select position, size from session_items where {_ONE} and position < :before order by position desc limit :limit"
)
_READ = Sql(
    """select i.position, i.kind, i.source, i.value, i.value_hash, i.size, i.created_at, i.task_id,
        coalesce(i.value_hash, s.value_hash), c.content, c.is_deflated, s.value, s.deflated, s.error,
        case when i.source = 'input' then t.input when i.source = 'result' then t.result end
    from session_items i
    left join task_steps s on i.source = 'step' and s.tenant = i.tenant and s.task_id = i.task_id
        and s.key = i.step_key
    left join tasks t on i.source in ('input', 'result') and t.tenant = i.tenant and t.task_id = i.task_id
    left join step_values c on c.tenant = i.tenant and c.hash = coalesce(i.value_hash, s.value_hash)
    where i.tenant = :tenant and i.session_id = :session_id and i.position between :first and :last
    order by i.position"""
)
_LAST = Sql(f"select max(position) from session_items where {_ONE}")
_LAST_SUMMARY = Sql(f"select max(position) from session_items where {_ONE} and kind = 'summary' and position < :before")
_FIRST_OF_TASK = Sql(f"select min(position) from session_items where {_ONE} and task_id = :task_id")
_HASHES = Sql(f"select value_hash from session_items where {_ONE} and position >= :first and value_hash is not null")
_COUNT = Sql(
    f"""select count(*), coalesce(sum(case when source = 'own' then size else 0 end), 0) from session_items
    where {_ONE} and position >= :first"""
)
_DELETE = Sql(f"delete from session_items where {_ONE} and position >= :first")


def insert(tx: Tx, session: Session, position: int, draft: ItemDraft, task_id: str | None) -> int:
    """Insert an item; return the bytes that it stores itself."""
    content = jsontext.encode(draft.value)
    digest = contents.put_long(tx, session.tenant, content, MAX_INLINE_BYTES)
    tx.run(
        _INSERT,
        **session_key(session),
        position=position,
        kind=draft.kind,
        source=draft.source,
        value=content.decode() if digest is None else None,
        value_hash=digest,
        size=len(content) if draft.size is None else draft.size,
        now=tx.now,
        task_id=task_id,
        step_key=draft.step_key,
    )
    return len(content) if draft.source == "own" else 0


def list_after(tx: Tx, session: Session, after: int, limit: int) -> list[Item]:
    """Return the items after a position; fewer than `limit` where a page would be too large."""
    positions = _within_page(tx.rows(_SIZES_AFTER, **session_key(session), after=after, limit=limit))
    return _read(tx, session, positions[0], positions[-1]) if positions else []


def list_newest(tx: Tx, session: Session, before: int, limit: int) -> list[Item]:
    """Return the last items before a position, oldest first."""
    positions = _within_page(tx.rows(_SIZES_BEFORE, **session_key(session), before=before, limit=limit))
    return _read(tx, session, positions[-1], positions[0]) if positions else []


def find_last_position(tx: Tx, session: Session) -> int:
    """Return the position of the last item, 0 without items. No two items of a session ever have the same one."""
    row = tx.row(_LAST, **session_key(session))
    return (row[0] if row else None) or 0


def list_since_summary(tx: Tx, session: Session, task_id: str | None = None) -> list[Item]:
    """Return the last summary and the items after it; all items if there is none.

    With `task_id`, only items that were there before those of this task.
    """
    first = None if task_id is None else tx.row(_FIRST_OF_TASK, **session_key(session), task_id=task_id)
    before = first[0] if first and first[0] is not None else session.last_number + 1
    summary = tx.row(_LAST_SUMMARY, **session_key(session), before=before)
    return _read(tx, session, (summary[0] if summary else None) or 0, before - 1)


def delete_from(tx: Tx, session: Session, first: int) -> tuple[int, int, list[str]]:
    """Delete the items from a position on; return their number, their own bytes, and the hashes of their contents."""
    # Before the deletion, after which nothing says which contents may have become unused.
    hashes = [row[0] for row in tx.rows(_HASHES, **session_key(session), first=first)]
    row = tx.row(_COUNT, **session_key(session), first=first)
    assert row is not None
    tx.run(_DELETE, **session_key(session), first=first)
    return int(row[0]), int(row[1]), hashes


def _within_page(rows: list[tuple[Any, ...]]) -> list[int]:
    """Return the positions of the first rows whose sizes fit into a page, of one at least."""
    total, positions = 0, list[int]()
    for position, size in rows:
        total += size
        if positions and total > MAX_PAGE_BYTES:
            break
        positions.append(position)
    return positions


def _read(tx: Tx, session: Session, first: int, last: int) -> list[Item]:
    return [_item(row) for row in tx.rows(_READ, **session_key(session), first=first, last=last)]


def _item(row: tuple[Any, ...]) -> Item:
    position, kind, source, own, own_hash, size, created_at, task_id, digest = row[:9]
    step, deflated, error, of_task = row[11:]
    content = b""
    if digest is not None:
        content = contents.decode((row[9], row[10]), digest, f"Item {position} of the session")
    elif deflated is not None:
        step = inflate(bytes(deflated), f"Item {position} of the session")
    value: Any = jsontext.load(content if own_hash is not None else own)
    if source != "own":
        # A step that failed: a person has said that an effect did not happen.
        text = of_task or (step if digest is None else content)
        stored = {"error": jsontext.load(error)} if error is not None else jsontext.load(text or "null")
        value = build_message(value, content_for_agent(stored) if source == "input" else stored)
    return Item(position, kind, value, size, created_at, task_id)
