"""The SQL of the tables that outlive the index: the write journal, and the versions of notes.

Paths there are those of `stored_path`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.memory.model import VersionCause

MAX_VERSIONS = 50
"""Stored versions per note without a name; older ones are deleted when a new one is stored."""
MAX_NAMED_VERSIONS = 100
"""Versions with a name per note."""
SMALL_BYTES = 4096
"""Contents up to this size are compressed with a window of this size."""
SMALL_MEMORY_LEVEL = 5
NO_AGE_LIMIT = 2**62
"""A time after any other, even if the clock was set back."""

_INSERT_INTENT = Sql(
    """insert into memory_intents (write_id, path, before_hash, after_hash, created_at)
    values (:write_id, :path, :before_hash, :after_hash, :now)"""
)
_DELETE_INTENT = Sql("delete from memory_intents where write_id = :write_id")
_LIST_INTENTS = Sql(
    """select write_id, path, before_hash, after_hash, created_at from memory_intents where created_at <= :until
    order by write_id"""
)
_COUNT_INTENTS = Sql("select count(*), min(created_at) from memory_intents")
_FIND_RECORD_VERSION = Sql("select version, raw_hash from memory_records where path = :path")
_SAVE_RECORD_VERSION = Sql.insert("memory_records", ("path", "version", "raw_hash"), key=("path",))
# The first version of a note existed before the service; later ones on disk are edits.
_CAUSE_ON_DISK = "case when exists (select 1 from memory_versions where path = :path) then 'edited' else 'found' end"
_SAVE_VERSION = Sql(
    f"""insert into memory_versions (path, content_hash, content, size, origin, created_at, provisional, cause)
    values (:path, :content_hash, :content, :size, :origin, :now, :provisional,
        coalesce(cast(:cause as text), {_CAUSE_ON_DISK}))
    on conflict (path, content_hash) do update set created_at = excluded.created_at,
        provisional = memory_versions.provisional * excluded.provisional,
        first_at = coalesce(memory_versions.first_at, memory_versions.created_at),
        cause = case excluded.cause when 'written' then 'restored' else 'edited' end"""
)
# The version that a write replaces keeps its time, unless it is new here or others were stored since: then it was there
# just before the write.
_SAVE_REPLACED = Sql(
    f"""insert into memory_versions (path, content_hash, content, size, origin, created_at, cause)
    values (:path, :content_hash, :content, :size, :origin, :now, {_CAUSE_ON_DISK})
    on conflict (path, content_hash) do update set created_at = excluded.created_at, cause = 'edited',
        first_at = coalesce(memory_versions.first_at, memory_versions.created_at)
    where exists (
        select 1 from memory_versions as newer
        where newer.path = excluded.path and newer.created_at > memory_versions.created_at
    )"""
)
_LIST_NEWEST = Sql(
    """select content_hash, created_at, provisional from memory_versions where path = :path
    order by created_at desc, content_hash limit 2"""
)
_FIND_NEWEST = Sql(
    """select content_hash, created_at, provisional from memory_versions
    where path = :path and content_hash = :content_hash"""
)
_KEEP_VERSION = Sql("update memory_versions set provisional = 0 where path = :path and content_hash = :content_hash")
_DELETE_VERSION = Sql("delete from memory_versions where path = :path and content_hash = :content_hash")
_DELETE_NEW_VERSION = Sql(
    """delete from memory_versions
    where path = :path and content_hash = :content_hash and created_at = :at and first_at is null and name is null"""
)
_IS_PROVISIONAL = Sql("select provisional from memory_versions where path = :path and content_hash = :content_hash")
_HAS_VERSION = Sql("select 1 from memory_versions where path = :path and content_hash = :content_hash")
_READ_VERSION = Sql("select content from memory_versions where path = :path and content_hash = :content_hash")
_FIND_LAST_WRITTEN = Sql(
    """select content_hash from memory_versions where path = :path and cause in ('written', 'restored')
    order by created_at desc, content_hash limit 1"""
)
# Versions from before migration 0036 have no cause.
_LIST_VERSIONS = Sql(
    """select content_hash, size, origin, created_at, name,
        coalesce(cause, case when origin = 'bus' then 'written'
            when row_number() over (order by created_at, content_hash desc) = 1 then 'found'
            else 'edited' end), first_at
    from memory_versions where path = :path order by created_at desc, content_hash limit :limit"""
)
_NAME_VERSION = Sql(
    """update memory_versions set name = :name, provisional = 0
    where path = :path and content_hash = :content_hash"""
)
_COUNT_OTHER_NAMED = Sql(
    """select count(*) from memory_versions
    where path = :path and name is not null and content_hash <> :content_hash"""
)
_PRUNE_VERSIONS = Sql(
    """delete from memory_versions where path = :path and content_hash in (
        select content_hash from memory_versions where path = :path and name is null
        order by created_at desc, content_hash limit 10000 offset :kept)"""
)


class WriteIntent(msgspec.Struct, frozen=True):
    """A journal entry: a decided write, with the file's hash before (empty for no file) and after (for a deletion)."""

    write_id: str
    path: str
    before_hash: str
    after_hash: str
    created_at: int


class NoteVersion(msgspec.Struct, frozen=True):
    """A stored version without its content; `origin` is "vault" for one that was found there, "bus" for a write.

    One that came back, by a write or an edit on disk, has the time of that in `created_at`, and in `first_at` when it
    was stored first.
    """

    content_hash: str
    size: int
    origin: str
    created_at: int
    name: str | None
    cause: VersionCause
    first_at: int | None


class NewestVersion(msgspec.Struct, frozen=True):
    """One of the newest versions; a provisional one may be replaced by the next edit on disk."""

    content_hash: str
    created_at: int
    provisional: bool


def stored_path(key_prefix: str, path: str) -> str:
    """Return the path by which the tables know a note: in a named vault it begins with a prefix, such as `archive:`.

    In the default vault a path with a colon begins with another one, so that it is not a path of a named vault.
    """
    return f"{key_prefix or ':' * (':' in path)}{path}"


def insert_intent(tx: Tx, intent: WriteIntent, key_prefix: str = "") -> None:
    tx.run(
        _INSERT_INTENT,
        write_id=intent.write_id,
        path=stored_path(key_prefix, intent.path),
        before_hash=intent.before_hash,
        after_hash=intent.after_hash,
        now=tx.now,
    )


def delete_intents(tx: Tx, write_ids: Iterable[str]) -> None:
    """Delete the entries of writes that were applied or cancelled."""
    tx.many(_DELETE_INTENT, ({"write_id": write_id} for write_id in write_ids))


def list_open_intents(tx: Tx, min_age_us: int | None, key_prefix: str = "") -> list[WriteIntent]:
    """Return the pending entries of one vault of at least this age (microseconds); all of them without an age."""
    until = NO_AGE_LIMIT if min_age_us is None else tx.now - min_age_us
    intents = (WriteIntent(*row) for row in tx.rows(_LIST_INTENTS, until=until))
    # Filtered here, because the default vault's prefix is empty and would match all paths in SQL.
    parts = ((intent, *_split_stored_path(intent.path)) for intent in intents)
    return [msgspec.structs.replace(intent, path=path) for intent, prefix, path in parts if prefix == key_prefix]


def _split_stored_path(stored: str) -> tuple[str, str]:
    """Return the prefix of the vault, empty for the default vault, and the path in it."""
    name, colon, path = stored.partition(":")
    return (f"{name}:" if name else "", path) if colon else ("", stored)


def count_open_intents(tx: Tx) -> tuple[int, int | None]:
    """Count the open intents; the second value is when the oldest was recorded, in microseconds."""
    count, oldest_at = tx.rows(_COUNT_INTENTS)[0]
    return int(count), None if oldest_at is None else int(oldest_at)


def find_record_version(tx: Tx, path: str) -> tuple[int, str] | None:
    """Return the last version number of a governed record with the hash of its file."""
    row = tx.row(_FIND_RECORD_VERSION, path=path)
    return None if row is None else (int(row[0]), str(row[1]))


def save_record_version(tx: Tx, path: str, version: int, file_hash: str) -> None:
    tx.run(_SAVE_RECORD_VERSION, path=path, version=version, raw_hash=file_hash)


def save_version(tx: Tx, path: str, content_hash: str, content: bytes, origin: str) -> None:
    """Store the bytes of a version, as the base of later merges and for the version history."""
    _save(
        tx,
        _SAVE_VERSION,
        path,
        content_hash,
        content,
        origin,
        tx.now,
        provisional=0,
        cause="written" if origin == "bus" else None,
    )


def save_disk_version(tx: Tx, path: str, content_hash: str, content: bytes, after: int) -> None:
    """Store what somebody wrote on disk, later than the time `after` in microseconds.

    Its time is before any write of the service in this moment, which replaces it.
    """
    at = max(tx.now - 1, after + 1)
    _save(tx, _SAVE_VERSION, path, content_hash, content, "vault", at, provisional=1, cause="edited")


def save_replaced_version(tx: Tx, path: str, content_hash: str, content: bytes, at: int | None = None) -> None:
    """Store the version that a write replaces: it is older than the one that is stored next.

    `at` is since when it was there, in microseconds, if that is known.
    """
    _save(tx, _SAVE_REPLACED, path, content_hash, content, "vault", tx.now - 1 if at is None else at)


def _save(
    tx: Tx, sql: Sql, path: str, content_hash: str, content: bytes, origin: str, at: int, **values: int | str | None
) -> None:
    compressed = _compress(content)
    fields = {"path": path, "content_hash": content_hash, "content": compressed, "size": len(content)}
    tx.run(sql, **fields, origin=origin, now=at, **values)


def has_version(tx: Tx, path: str, content_hash: str) -> bool:
    return tx.row(_HAS_VERSION, path=path, content_hash=content_hash) is not None


def keep_if_stored(tx: Tx, path: str, content_hash: str) -> bool:
    """Return whether the version is stored. One that was provisional is kept from now on."""
    row = tx.row(_IS_PROVISIONAL, path=path, content_hash=content_hash)
    if row is not None and row[0]:
        tx.run(_KEEP_VERSION, path=path, content_hash=content_hash)
    return row is not None


def delete_version(tx: Tx, path: str, content_hash: str) -> None:
    tx.run(_DELETE_VERSION, path=path, content_hash=content_hash)


def delete_new_version(tx: Tx, path: str, content_hash: str, at: int) -> None:
    """Delete a version that was stored first at this time in microseconds; one that was there before stays."""
    tx.run(_DELETE_NEW_VERSION, path=path, content_hash=content_hash, at=at)


def list_newest(tx: Tx, path: str, content_hash: str | None) -> list[NewestVersion]:
    """Return the two newest versions of a note, and the one with this hash, if it is stored."""
    rows = tx.rows(_LIST_NEWEST, path=path)
    if content_hash is not None and all(row[0] != content_hash for row in rows):
        rows += tx.rows(_FIND_NEWEST, path=path, content_hash=content_hash)
    return [NewestVersion(str(row[0]), int(row[1]), bool(row[2])) for row in rows]


def read_version(tx: Tx, path: str, content_hash: str) -> bytes | None:
    row = tx.row(_READ_VERSION, path=path, content_hash=content_hash)
    # Works for any window: zlib writes its size into the header.
    return zlib.decompress(row[0]) if row else None


def find_last_written(tx: Tx, path: str) -> str | None:
    """Return the hash of the stored version that the service wrote last; None if it has written none."""
    row = tx.row(_FIND_LAST_WRITTEN, path=path)
    return None if row is None else str(row[0])


def list_versions(tx: Tx, path: str) -> list[NoteVersion]:
    """Return the versions of a note, newest first."""
    rows = tx.rows(_LIST_VERSIONS, path=path, limit=MAX_VERSIONS + MAX_NAMED_VERSIONS)
    return [NoteVersion(*row) for row in rows]


def name_version(tx: Tx, path: str, content_hash: str, name: str | None) -> bool:
    """Set or remove the name of a version; return whether there is one."""
    return bool(tx.run(_NAME_VERSION, path=path, content_hash=content_hash, name=name))


def has_room_for_name(tx: Tx, path: str, content_hash: str) -> bool:
    """Return whether this version can get a name without exceeding MAX_NAMED_VERSIONS."""
    return int(tx.rows(_COUNT_OTHER_NAMED, path=path, content_hash=content_hash)[0][0]) < MAX_NAMED_VERSIONS


def prune_versions(tx: Tx, paths: Iterable[str]) -> None:
    """Delete all but the newest versions of these notes, and those with a name."""
    tx.many(_PRUNE_VERSIONS, ({"path": path, "kept": MAX_VERSIONS} for path in paths))


def _compress(content: bytes) -> bytes:
    if len(content) > SMALL_BYTES:
        return zlib.compress(content, 1)
    # Clearing zlib's default window takes longer than compressing a short content.
    compressor = zlib.compressobj(1, zlib.DEFLATED, SMALL_BYTES.bit_length() - 1, SMALL_MEMORY_LEVEL)
    return compressor.compress(content) + compressor.flush()
