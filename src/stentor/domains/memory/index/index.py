"""The search index of one vault: documents, their terms, links and vectors, changed in one transaction.

Does not know the vault: `indexer` decides what to index. Statements are in `store`, `sqlite` and `postgres/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from stentor.core.db import Tx
from stentor.domains.memory.index import links, store
from stentor.domains.memory.index.links import LinkReader
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
    ListedDocument,
    Neighbourhood,
    folder_list,
)
from stentor.domains.memory.index.protocols import IndexDatabase, KeywordStore, VectorStore
from stentor_vault.notes.model import Stat

T = TypeVar("T")


class SearchIndex:
    """The index over a database, a keyword store and a vector store. Every method may raise StoreUnavailable.

    `is_shared`: other processes read and write it too. `warning` is for the operator, for example a missing extension.
    """

    def __init__(
        self,
        database: IndexDatabase,
        keywords: KeywordStore,
        vectors: VectorStore,
        dialect: str,
        *,
        is_shared: bool,
        warning: str | None = None,
    ) -> None:
        self.is_shared = is_shared
        self.warning = warning
        self.vectors = vectors
        self._database = database
        self._keywords = keywords
        self._dialect = dialect

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._database.read(fn)

    async def write(self, fn: Callable[[Tx], T]) -> T:
        return await self._database.write(fn)

    async def upsert(
        self, entries: Sequence[IndexEntry], deleted_paths: Sequence[str], at: int, *, force: bool
    ) -> dict[str, int]:
        """Insert or replace documents and delete others, in one transaction; return the ids of changed ones by path.

        An entry with the same bytes as the indexed document changes nothing, unless `force` is set.
        """

        def work(tx: Tx) -> tuple[dict[str, int | None], list[int]]:
            deleted_ids = self._delete(tx, deleted_paths)
            store.write_fact(tx, "synced_at", at)
            # In one order, so that two processes that index the same notes lock their rows in the same order.
            ordered = sorted(entries, key=lambda entry: entry.path)
            ids = {entry.path: self._upsert(tx, entry, force=force) for entry in ordered}
            changed = {doc_id: entry for entry in ordered if (doc_id := ids[entry.path]) is not None}
            links.insert_links(tx, self._dialect, changed)
            return ids, deleted_ids

        ids_by_path, deleted_ids = await self.write(work)
        # Vectors in memory follow only after the commit, or a rollback would lose them.
        self.vectors.on_deleted(deleted_ids)
        return {path: doc_id for path, doc_id in ids_by_path.items() if doc_id is not None}

    def _upsert(self, tx: Tx, entry: IndexEntry, *, force: bool) -> int | None:
        """Return the document's id, or None if it is indexed already."""
        existing = store.find_id_and_hash(tx, entry.path)
        if existing is None:
            doc_id = store.insert(tx, entry)
        elif existing[1] == entry.raw_hash and not force:
            store.touch(tx, entry.path, entry.modified_at, entry.size)
            return None
        else:
            # Its old vectors stay searchable until the document is embedded again.
            doc_id = existing[0]
            store.update(tx, doc_id, entry)
            self._keywords.delete(tx, doc_id)
            links.delete_links(tx, doc_id)
        self._keywords.insert(tx, doc_id, entry)
        return doc_id

    async def delete(self, paths: Sequence[str]) -> list[int]:
        """Delete documents; return the ids that they had."""
        deleted_ids = await self.write(lambda tx: self._delete(tx, paths))
        self.vectors.on_deleted(deleted_ids)
        return deleted_ids

    def _delete(self, tx: Tx, paths: Iterable[str]) -> list[int]:
        doc_ids = [row[0] for path in sorted(paths) if (row := store.find_id_and_hash(tx, path)) is not None]
        for doc_id in doc_ids:
            store.delete(tx, doc_id)
            links.delete_links(tx, doc_id)
            self._keywords.delete(tx, doc_id)
            self.vectors.delete(tx, doc_id)
        return doc_ids

    async def touch(self, stats: Sequence[Stat]) -> None:
        """Update the size and time of files whose bytes did not change."""

        def work(tx: Tx) -> None:
            for stat in stats:
                store.touch(tx, stat.path, stat.modified_at, stat.size)

        await self.write(work)

    async def file_states(self) -> dict[str, IndexedFileState]:
        return await self.read(store.file_states)

    async def file_states_of(self, paths: Iterable[str]) -> dict[str, IndexedFileState]:
        """Return the states of those of these files that are indexed."""
        return await self.read(lambda tx: store.file_states_of(tx, paths))

    async def paths_under(self, folder: str) -> list[str]:
        """Return the indexed files in a folder and its subfolders."""
        return await self.read(lambda tx: store.paths_under(tx, folder))

    async def was_reconciled(self) -> bool:
        """Return whether the whole vault was compared with this index since it was created."""
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
        """Return all folders with documents directly in them."""
        return await self.read(store.list_folders)

    async def list_recent(
        self, folder: str | None, tag: str, before: tuple[int, str], limit: int
    ) -> list[ListedDocument]:
        """List documents, the latest changed first, after a position (time in microseconds, path)."""
        return await self.read(lambda tx: store.list_recent(tx, folder, tag, before, limit))

    async def outline(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the number of documents directly in each folder, and with each tag, the most used tag first."""
        return await self.read(lambda tx: (store.count_by_folder(tx), store.count_tags(tx)))

    async def find_backlinks(self, path: str) -> list[str]:
        """Return the documents that link to a document, resolved as Obsidian does."""
        return await self.read(lambda tx: LinkReader(tx, self._dialect).find_backlinks(path))

    async def find_neighbourhood(self, path: str, limit: int) -> Neighbourhood:
        """Return the documents at most two links away from one, at most `limit` of them, the nearest first."""
        return await self.read(lambda tx: LinkReader(tx, self._dialect).find_neighbourhood(path, limit))

    async def folder_stats(self, folders: Folders) -> FolderStats:
        """Return the figures of all these folders together."""
        return await self.read(lambda tx: store.folder_stats(tx, folder_list(folders)))

    async def search_keywords(
        self, query: KeywordQuery, limit: int, folder: Folders | None = None, *, with_total: bool = True
    ) -> tuple[list[KeywordHit], int]:
        """Return the best hits, and the total number of matches (0 without `with_total`)."""
        return await self.read(lambda tx: self._keywords.search(tx, query, limit, folder, with_total=with_total))

    async def read_rows(self, doc_ids: Sequence[int]) -> dict[int, DocumentRow]:
        """Return documents by id; missing ones are left out."""
        return await self.read(lambda tx: store.read_rows(tx, self._dialect, doc_ids))

    async def read_bodies(self, paths: Sequence[str]) -> dict[str, str]:
        """Return texts by path; missing documents are left out."""
        return await self.read(lambda tx: store.read_bodies(tx, paths))

    async def read_texts(self, paths: Sequence[str]) -> dict[str, str]:
        """Return whole files by path, with their frontmatter; missing documents are left out."""
        return await self.read(lambda tx: store.read_texts(tx, paths))

    def close(self) -> None:
        self._database.close()
