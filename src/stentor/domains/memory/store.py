"""SQL of what must outlive the index: intents to write, and the versions that notes had.

Paths of a named vault begin with its scope, such as `archive:`; no path of a vault has a colon in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from stentor.core.db import Sql, Tx

MAX_VERSIONS = 50
"""Of one note; older ones go when a newer one comes."""

SHORT = 4096
"""Bytes of a content that is packed with a window of its own size."""
SMALL_MEMORY = 5

_INTEND = Sql(
    """insert into memory_intents (write_id, path, before_hash, after_hash, created_at)
    values (:write_id, :path, :before_hash, :after_hash, :now)"""
)
_SETTLE = Sql("delete from memory_intents where write_id = :write_id")
_OPEN = Sql(
    """select write_id, path, before_hash, after_hash, created_at from memory_intents where created_at <= :until
    order by write_id"""
)
EVER = 2**62
"""After any time, even if the clock was set back."""
_KEEP = Sql(
    """insert into memory_versions (path, content_hash, content, size, origin, created_at)
    values (:path, :content_hash, :content, :size, :origin, :now)
    on conflict (path, content_hash) do update set created_at = excluded.created_at"""
)
_HAS = Sql("select 1 from memory_versions where path = :path and content_hash = :content_hash")
_VERSION = Sql("select content from memory_versions where path = :path and content_hash = :content_hash")
_VERSIONS = Sql(
    """select content_hash, size, origin, created_at from memory_versions where path = :path
    order by created_at desc, content_hash limit :limit"""
)
_PRUNE = Sql(
    """delete from memory_versions where path = :path and content_hash in (
        select content_hash from memory_versions where path = :path
        order by created_at desc, content_hash limit 10000 offset :kept)"""
)


class WriteIntent(msgspec.Struct, frozen=True):
    """A decided write: the hash of the file before (empty for none) and after (empty for a deletion)."""

    write_id: str
    path: str
    before_hash: str
    after_hash: str
    created_at: int


class NoteVersion(msgspec.Struct, frozen=True):
    content_hash: str
    size: int
    origin: str
    created_at: int


def insert_intent(tx: Tx, intent: WriteIntent, scope: str = "") -> None:
    tx.run(
        _INTEND,
        write_id=intent.write_id,
        path=scope + intent.path,
        before_hash=intent.before_hash,
        after_hash=intent.after_hash,
        now=tx.now,
    )


def delete_intents(tx: Tx, write_ids: Iterable[str]) -> None:
    """These intents were carried out, or given up."""
    tx.many(_SETTLE, ({"write_id": write_id} for write_id in write_ids))


def list_open_intents(tx: Tx, age: int | None, scope: str = "") -> list[WriteIntent]:
    """Those of one vault that are at least so old, in microseconds; all of them without an age."""
    found = (WriteIntent(*row) for row in tx.rows(_OPEN, until=EVER if age is None else tx.now - age))
    split = ((intent, *intent.path.rpartition(":")) for intent in found)
    return [msgspec.structs.replace(intent, path=path) for intent, name, colon, path in split if name + colon == scope]


def save_version(tx: Tx, path: str, content_hash: str, content: bytes, origin: str) -> None:
    """Remember the bytes of a version: the base of later merges, and what a person can go back to."""
    tx.run(
        _KEEP, path=path, content_hash=content_hash, content=_packed(content), size=len(content), origin=origin,
        now=tx.now,
    )  # fmt: skip


def _packed(content: bytes) -> bytes:
    """For zlib. A short one with a small window, because to clear a large one takes longer than the rest."""
    if len(content) > SHORT:
        return zlib.compress(content, 1)
    packer = zlib.compressobj(1, zlib.DEFLATED, SHORT.bit_length() - 1, SMALL_MEMORY)
    return packer.compress(content) + packer.flush()


def has_version(tx: Tx, path: str, content_hash: str) -> bool:
    return tx.row(_HAS, path=path, content_hash=content_hash) is not None


def read_version(tx: Tx, path: str, content_hash: str) -> bytes | None:
    row = tx.row(_VERSION, path=path, content_hash=content_hash)
    return zlib.decompress(row[0]) if row else None


def list_versions(tx: Tx, path: str) -> list[NoteVersion]:
    """Newest first."""
    return [NoteVersion(*row) for row in tx.rows(_VERSIONS, path=path, limit=MAX_VERSIONS)]


def prune_versions(tx: Tx, paths: Iterable[str]) -> None:
    """Forget what is older than the versions that are kept."""
    tx.many(_PRUNE, ({"path": path, "kept": MAX_VERSIONS} for path in paths))
