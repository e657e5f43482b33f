"""SQL of the values of sessions. A long value is in the contents, by its hash."""

from __future__ import annotations

from typing import Any

from stentor.core.db import Sql, Tx
from stentor.domains.contents import store as contents
from stentor.domains.sessions.model import (
    MAX_INLINE_BYTES,
    MAX_PAGE_BYTES,
    KeySpan,
    Session,
    StoredValue,
    ValueDraft,
    ValueQuery,
    decode_value,
)
from stentor.domains.sessions.store import session_key

_ONE = "tenant = :tenant and session_id = :session_id"
_COLUMNS = "key, number, encoding, value, value_hash, size, updated_at"
_FIND = Sql(f"select {_COLUMNS} from session_values where {_ONE} and key = :key")
_INSERT = Sql(
    f"""insert into session_values (tenant, session_id, {_COLUMNS})
    values (:tenant, :session_id, :key, :number, :encoding, :value, :value_hash, :size, :now)"""
)
_UPDATE = Sql(
    f"""update session_values set number = :number, encoding = :encoding, value = :value, value_hash = :value_hash,
    size = :size, updated_at = :now where {_ONE} and key = :key"""
)
_RANGE = f"{_ONE} and key >= :start and key < :end"
_BY_KEY = Sql(f"select {_COLUMNS} from session_values where {_RANGE} and key > :after order by key limit :limit")
_BY_KEY_DESCENDING = Sql(f"select {_COLUMNS} from session_values where {_RANGE} order by key desc limit :limit")
_BY_NUMBER = Sql(
    f"select {_COLUMNS} from session_values where {_RANGE} and number < :number order by number desc limit :limit"
)
_HASHES = Sql(f"select value_hash from session_values where {_RANGE} and value_hash is not null")
_COUNT = Sql(f"select count(*), coalesce(sum(size), 0) from session_values where {_RANGE}")
_DELETE = Sql(f"delete from session_values where {_RANGE}")


def find_size(tx: Tx, session: Session, key: str) -> tuple[int, str | None] | None:
    """Return the size of a value and the hash of its content, if it is long; None without the value."""
    row = tx.row(_FIND, **session_key(session), key=key)
    # size and value_hash, see _COLUMNS
    return None if row is None else (row[5], row[4])


def set_value(tx: Tx, session: Session, number: int, draft: ValueDraft, *, is_new: bool) -> None:
    digest = contents.put_long(tx, session.tenant, draft.content, MAX_INLINE_BYTES)
    tx.run(
        _INSERT if is_new else _UPDATE,
        **session_key(session),
        key=draft.key,
        number=number,
        encoding=draft.encoding,
        value=_to_text(draft) if digest is None else None,
        value_hash=digest,
        size=len(draft.content),
        now=tx.now,
    )


def find(tx: Tx, session: Session, key: str) -> StoredValue | None:
    row = tx.row(_FIND, **session_key(session), key=key)
    return None if row is None else _value(tx, session, row)


def list_page(tx: Tx, session: Session, query: ValueQuery) -> tuple[list[StoredValue], bool]:
    """Return the values of a query, and whether there are more."""
    position, limit = query.position, query.limit
    span = _span(session, query.to_span())
    if query.order == "key":
        rows = tx.rows(_BY_KEY, **span, after="" if position is None else position, limit=limit + 1)
    elif query.order == "key_descending":
        # The span ends before the last key of the page before.
        rows = tx.rows(_BY_KEY_DESCENDING, **span, limit=limit + 1)
    else:
        rows = tx.rows(_BY_NUMBER, **span, number=2**62 if position is None else position, limit=limit + 1)
    total, values = 0, list[StoredValue]()
    for row in rows:
        total += row[5]
        if len(values) == limit or (values and total > MAX_PAGE_BYTES):
            return values, True
        values.append(_value(tx, session, row))
    return values, False


def delete_span(tx: Tx, session: Session, keys: KeySpan) -> tuple[int, int, list[str]]:
    """Delete the values of some keys; return their number, their bytes, and the hashes of their contents."""
    span = _span(session, keys)
    hashes = [row[0] for row in tx.rows(_HASHES, **span)]
    row = tx.row(_COUNT, **span)
    assert row is not None
    tx.run(_DELETE, **span)
    return int(row[0]), int(row[1]), hashes


def _span(session: Session, keys: KeySpan) -> dict[str, str]:
    return {**session_key(session), "start": keys.start, "end": keys.end}


def _value(tx: Tx, session: Session, row: tuple[Any, ...]) -> StoredValue:
    key, number, encoding, text, digest, size, updated_at = row
    if digest is not None:
        value = decode_value(encoding, contents.read(tx, session.tenant, digest, f"The value {key!r} of the session"))
    else:
        value = text if encoding == "base64" else decode_value(encoding, text.encode())
    return StoredValue(key, number, encoding, value, size, updated_at)


def _to_text(draft: ValueDraft) -> str:
    """Return the text of a short value: its JSON, or its base64."""
    return draft.content.decode() if draft.encoding == "json" else str(decode_value("base64", draft.content))
