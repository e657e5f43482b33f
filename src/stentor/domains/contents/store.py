"""SQL of the contents: long values of steps and sessions, once for each content of a tenant.

In the DEFLATE format where that is shorter. The hash is that of the content itself.
The rows that refer to a content are in `task_steps`, `session_items` and `session_values`, by their `value_hash`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from stentor.core.db import Sql, Tx
from stentor.core.errors import CorruptRecord
from stentor.core.formats.deflate import deflate, inflate

# An update without a change, so that PostgreSQL locks an existing row: it cannot be removed before the reference to it
# is committed.
_PUT = Sql(
    "insert into step_values (tenant, hash, content, is_deflated) values (:tenant, :hash, :content, :is_deflated) "
    "on conflict (tenant, hash) do update set hash = excluded.hash where 1 = 0"
)
_FIND = Sql("select content, is_deflated from step_values where tenant = :tenant and hash = :hash")
_LOCK = Sql("update step_values set hash = hash where tenant = :tenant and hash = :hash")
_REMOVE_UNUSED = Sql(
    """delete from step_values where tenant = :tenant and hash = :hash
    and not exists (select 1 from task_steps where tenant = :tenant and value_hash = :hash)
    and not exists (select 1 from session_items where tenant = :tenant and value_hash = :hash)
    and not exists (select 1 from session_values where tenant = :tenant and value_hash = :hash)"""
)


def put(tx: Tx, tenant: str, content: bytes) -> str:
    """Store a content unless it is stored, and return its SHA-256 in hex. Refer to it in the same transaction."""
    digest = hashlib.sha256(content).hexdigest()
    deflated = deflate(content)
    stored = content if deflated is None else deflated
    tx.run(_PUT, tenant=tenant, hash=digest, content=stored, is_deflated=int(deflated is not None))
    return digest


def put_long(tx: Tx, tenant: str, content: bytes, most_inline: int) -> str | None:
    """Store a content of more than `most_inline` bytes like `put`; None for a shorter one, which stays in its row."""
    return put(tx, tenant, content) if len(content) > most_inline else None


def read(tx: Tx, tenant: str, digest: str, what: str) -> bytes:
    """Return a content. Raises CorruptRecord, with `what` it is, if it is missing or damaged."""
    row = tx.row(_FIND, tenant=tenant, hash=digest)
    return decode(row, digest, what)


def decode(row: tuple[bytes | None, int | None] | None, digest: str, what: str) -> bytes:
    """Return the content of a row with `content` and `is_deflated`. Raises CorruptRecord like `read`."""
    stored, is_deflated = row or (None, None)
    content = bytes(stored or b"")
    if is_deflated:
        content = inflate(content, what)
    # A missing content fails this like a damaged one: no text has the hash of another.
    if hashlib.sha256(content).hexdigest() != digest:
        raise CorruptRecord(f"{what} is missing or damaged.")
    return content


def remove_unused(tx: Tx, tenant: str, digests: Iterable[str]) -> None:
    """Remove those of these contents to which nothing refers any more.

    The lock comes in a statement of its own: on PostgreSQL only the next one sees references that were committed while
    it waited.
    """
    # Sorted, so that two transactions take the locks in the same order and cannot deadlock.
    for digest in sorted(set(digests)):
        if tx.run(_LOCK, tenant=tenant, hash=digest):
            tx.run(_REMOVE_UNUSED, tenant=tenant, hash=digest)
