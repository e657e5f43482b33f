"""The search index: documents, their words and their vectors, always changed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from stentor.core.db import Tx
from stentor.domains.memory.index import store
from stentor.domains.memory.index.model import (
    DocumentRow,
    Folders,
    FolderStats,
    IndexedDocument,
    IndexedFileState,
    IndexEntry,
    IndexTotals,
    KeywordHit,
    KeywordQuery,
    folder_list,
)
from stentor.domains.memory.index.protocols import IndexDatabase, KeywordStore, VectorStore
from stentor.domains.notes.model import Stat

T = TypeVar("T")


class SearchIndex:
    """`shared`: other processes read it and write to it too; `note` is what an operator should know of it.

    Every method may raise StoreUnavailable.
    """

    def __init__(
        self,
        tables: IndexDatabase,
        words: KeywordStore,
        vectors: VectorStore,
        dialect: str,
        *,
        is_shared: bool,
        warning: str | None = None,
    ) -> None:
        self.is_shared = is_shared
        self.warning = warning
        self.vectors = vectors
        self._tables = tables
        self._words = words
        self._dialect = dialect

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._tables.read(fn)

    async def write(self, fn: Callable[[Tx], T]) -> T:
        return await self._tables.write(fn)

    async def upsert(
        self, entries: Sequence[IndexEntry], gone: Sequence[str], at: int, *, force: bool
    ) -> dict[str, int]:
        """Insert or replace documents and remove others, in one transaction at this time; answers the ids of those
        that changed, by path. What is there already stays as it is, unless it is to be made `anew`."""

        def work(tx: Tx) -> tuple[dict[str, int | None], list[int]]:
            forgotten = self._delete(tx, gone)
            store.write_fact(tx, "synced_at", at)
            ordered = sorted(entries, key=lambda one: one.path)
            return {entry.path: self._upsert(tx, entry, force=force) for entry in ordered}, forgotten

        put, forgotten = await self.write(work)
        self.vectors.on_deleted(forgotten)
        return {path: doc_id for path, doc_id in put.items() if doc_id is not None}

    def _upsert(self, tx: Tx, entry: IndexEntry, *, force: bool) -> int | None:
        known = store.find_id_and_hash(tx, entry.path)
        if known is None:
            doc_id = store.insert(tx, entry)
        elif known[1] == entry.raw_hash and not force:
            store.touch(tx, entry.path, entry.modified_at, entry.size)
            return None
        else:
            doc_id = known[0]
            store.update(tx, doc_id, entry)
            self._words.delete(tx, doc_id)
        self._words.insert(tx, doc_id, entry)
        return doc_id

    async def delete(self, paths: Sequence[str]) -> list[int]:
        """Remove documents; answers the ids that they had."""
        gone = await self.write(lambda tx: self._delete(tx, paths))
        self.vectors.on_deleted(gone)
        return gone

    def _delete(self, tx: Tx, paths: Iterable[str]) -> list[int]:
        known = [found[0] for path in sorted(paths) if (found := store.find_id_and_hash(tx, path)) is not None]
        for doc_id in known:
            store.delete(tx, doc_id)
            self._words.delete(tx, doc_id)
            self.vectors.delete(tx, doc_id)
        return known

    async def touch(self, stats: Sequence[Stat]) -> None:
        """These files have another time and the same bytes."""

        def work(tx: Tx) -> None:
            for stat in stats:
                store.touch(tx, stat.path, stat.modified_at, stat.size)

        await self.write(work)

    async def file_states(self) -> dict[str, IndexedFileState]:
        return await self.read(store.file_states)

    async def file_states_of(self, paths: Iterable[str]) -> dict[str, IndexedFileState]:
        """Of those that are indexed."""
        return await self.read(lambda tx: store.file_states_of(tx, paths))

    async def paths_under(self, folder: str) -> list[str]:
        """The indexed files in a folder and its folders."""
        return await self.read(lambda tx: store.paths_under(tx, folder))

    async def was_reconciled(self) -> bool:
        """Whether all of the vault was compared with it since it was made."""
        return await self.read(lambda tx: store.read_fact(tx, "compared_at")) is not None

    async def mark_reconciled(self, at: int) -> None:
        await self.write(lambda tx: store.write_fact(tx, "compared_at", at))

    async def is_empty(self) -> bool:
        return not await self.read(store.has_documents)

    async def totals(self) -> IndexTotals:
        return await self.read(store.totals)

    async def find_document(self, path: str) -> IndexedDocument | None:
        return await self.read(lambda tx: store.find_document(tx, path))

    async def list_folders(self) -> list[str]:
        """All that have documents in them."""
        return await self.read(store.list_folders)

    async def folder_stats(self, folders: Folders) -> FolderStats:
        """Of all of them together."""
        return await self.read(lambda tx: store.folder_stats(tx, folder_list(folders)))

    async def search_keywords(
        self, query: KeywordQuery, limit: int, folder: Folders | None = None, *, with_total: bool = True
    ) -> tuple[list[KeywordHit], int]:
        """The best, of the whole vault or of some folders, and how many there are in all, if that is asked for."""
        return await self.read(lambda tx: self._words.search(tx, query, limit, folder, with_total=with_total))

    async def read_rows(self, doc_ids: Sequence[int]) -> dict[int, DocumentRow]:
        """Of those that are there."""
        return await self.read(lambda tx: store.read_rows(tx, self._dialect, doc_ids))

    async def read_bodies(self, paths: Sequence[str]) -> dict[str, str]:
        """Of those that are there."""
        return await self.read(lambda tx: store.read_bodies(tx, paths))

    def close(self) -> None:
        self._tables.close()
