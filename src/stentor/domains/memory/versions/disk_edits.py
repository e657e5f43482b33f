"""Versions of notes that were edited or deleted on disk, past the service.

`index.indexer` reports the changes that it detects, before it indexes them. The text before the first edit is rebuilt
from the index; versions that the service writes are stored by `service`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stentor.core.clock import MINUTE, SECOND
from stentor.core.db import Database, Tx
from stentor.domains.memory import store
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.store import NewestVersion
from stentor_vault.notes.model import Note, content_hash

EDIT_INTERVAL_US = 5 * MINUTE
"""Least time between two kept versions while a note is edited, in microseconds: editors save while one types."""
OWN_WRITE_US = 10 * SECOND
"""Age up to which a stored version that appears on disk is taken for a write of the service that is not indexed yet."""
MAX_BYTES = 1_000_000
"""Files above this size get no versions when they are edited on disk."""


class DiskChange(msgspec.Struct, frozen=True):
    """An indexed note that has another content on disk. `after` is None for a deleted file.

    `before_at` is the time of the file as it was indexed, in microseconds.
    """

    path: str
    before_hash: str
    before_at: int
    after: Note | None

    @property
    def after_hash(self) -> str | None:
        return None if self.after is None else self.after.hash


class DiskEdits:
    """Stores the versions before and after the edits of one vault's files.

    `stored_path` returns the path by which the database knows a note.
    """

    def __init__(self, db: Database, index: SearchIndex, stored_path: Callable[[str], str]) -> None:
        self._db = db
        self._index = index
        self._stored_path = stored_path

    async def record(self, changes: Sequence[DiskChange]) -> None:
        """Store the versions of these changes. Call it before the index is updated. Raises StoreUnavailable."""
        missing = await self._db.read(lambda tx: self._list_missing(tx, changes))
        texts = await self._index.read_texts(missing) if missing else {}
        before = {path: text.encode() for path, text in texts.items()}
        await self._db.write(lambda tx: self._save_all(tx, changes, before))

    def _list_missing(self, tx: Tx, changes: Sequence[DiskChange]) -> list[str]:
        """Return the notes whose version before the change is not stored."""
        return [
            change.path
            for change in changes
            if not store.has_version(tx, self._stored_path(change.path), change.before_hash)
        ]

    def _save_all(self, tx: Tx, changes: Sequence[DiskChange], before: dict[str, bytes]) -> None:
        for change in changes:
            self._save(tx, self._stored_path(change.path), change, before.get(change.path))
        store.prune_versions(tx, {self._stored_path(change.path) for change in changes})

    def _save(self, tx: Tx, key: str, change: DiskChange, before: bytes | None) -> None:
        newest = store.list_newest(tx, key, change.after_hash)
        if change.after_hash is not None and _is_own_write(newest, change.after_hash, tx.now):
            return
        last_at = newest[0].created_at if newest else 0
        # The hash proves that the text in the index, with its frontmatter, equals the file byte for byte.
        if before is not None and len(before) <= MAX_BYTES and content_hash(before) == change.before_hash:
            at = min(max(change.before_at, last_at + 1), tx.now - 2)
            store.save_replaced_version(tx, key, change.before_hash, before, at)
        if change.after is None or len(change.after.content) > MAX_BYTES:
            return
        if _is_intermediate(newest, change.before_hash):
            store.delete_version(tx, key, change.before_hash)
        store.save_disk_version(tx, key, change.after.hash, change.after.content, last_at)


def _is_own_write(newest: Sequence[NewestVersion], after_hash: str, now: int) -> bool:
    """Return whether the service stored this content itself, just before it wrote the file."""
    if newest and newest[0].content_hash == after_hash:
        return True
    stored = next((version for version in newest if version.content_hash == after_hash), None)
    return stored is not None and not stored.provisional and now - stored.created_at < OWN_WRITE_US


def _is_intermediate(newest: Sequence[NewestVersion], before_hash: str) -> bool:
    """Return whether the version before a change is one of many that an editor saved, and which nobody has read."""
    if len(newest) < 2 or newest[0].content_hash != before_hash or not newest[0].provisional:
        return False
    return newest[0].created_at - newest[1].created_at < EDIT_INTERVAL_US
