"""The search index of one vault: documents, their terms, links and vectors, changed in one transaction.

Does not know the vault: `indexer` decides what to index. Statements are in `store`, `sqlite/` and `postgres/`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeVar

import msgspec

from stentor.core.db import Tx
from stentor.domains.memory.index import exclusions, links, store
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
    ListExcluded,
    Neighbourhood,
    folder_list,
)
from stentor.domains.memory.index.protocols import IndexDatabase, KeywordStore, VectorStore
from stentor.domains.memory.validity.frontmatter_keys import Mark, Source
from stentor.domains.memory.validity.model import Cause, Exclusion
from stentor_vault.notes.model import Stat

T = TypeVar("T")


def exclude_none(tx: Tx) -> tuple[int, ...]:
    return ()


def exclude_at(at: int, *, include_invalid: bool = False) -> ListExcluded:
    """Exclude what does not hold at a time (microseconds), and what is invalid unless it is included."""
    return lambda tx: exclusions.list_excluded_ids(tx, at, include_invalid=include_invalid)


class IndexChanges(msgspec.Struct):
    """What a transaction changed: documents by id, paths of files that are new or gone, ids whose vectors are.

    `has_keys`: a document has or had a key of validity; `has_marks`: one was or may become excluded by its own marks,
    or was by others.
    """

    entries: dict[int, IndexEntry] = {}
    paths: list[str] = []
    without_vectors: list[int] = []
    has_keys: bool = False
    has_marks: bool = False


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
        self.record_prefix = ""
        """What the ids of the vault's records begin with, if it is one that has a name."""
        self.vectors = vectors
        self._database = database
        self._keywords = keywords
        self._dialect = dialect
        self._was_reconciled, self._reconciled_at = False, 0.0
        self._exclusions_version = 0
        self._unrestricted_version = -1
        """The version at which nothing was excluded and no note held for a time only; only without other processes."""

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

        def work(tx: Tx) -> IndexChanges:
            changes = IndexChanges()
            self._delete(tx, deleted_paths, changes)
            store.write_fact(tx, "synced_at", at)
            # In one order, so that two processes that index the same notes lock their rows in the same order.
            for entry in sorted(entries, key=lambda entry: entry.path):
                self._upsert(tx, entry, changes, force=force)
            links.insert_links(tx, self._dialect, changes.entries)
            self._update_exclusions(tx, changes)
            return changes

        changes = await self._change(work)
        return {entry.path: doc_id for doc_id, entry in changes.entries.items()}

    async def _change(self, work: Callable[[Tx], IndexChanges]) -> IndexChanges:
        changes = await self.write(work)
        # Vectors in memory follow only after the commit, or a rollback would lose them.
        self.vectors.on_deleted(changes.without_vectors)
        return changes

    def _upsert(self, tx: Tx, entry: IndexEntry, changes: IndexChanges, *, force: bool) -> None:
        existing = store.find_stored(tx, entry.path)
        if existing is None:
            doc_id = store.insert(tx, entry)
            changes.paths.append(entry.path)
        elif existing.raw_hash == entry.raw_hash and not force:
            store.touch(tx, entry.path, entry.modified_at, entry.size)
            return
        else:
            doc_id = existing.doc_id
            store.update(tx, doc_id, entry)
            self._keywords.delete(tx, doc_id)
            links.delete_links(tx, doc_id)
            if existing.has_keys:
                self._delete_keys(tx, doc_id, changes)
            if entry.full_body is not None:
                # Other old vectors stay searchable until the document is embedded again, but not those of a passage
                # that is invalid.
                self.vectors.withdraw(tx, doc_id)
                changes.without_vectors.append(doc_id)
        self._keywords.insert(tx, doc_id, entry)
        if entry.has_keys:
            exclusions.insert(tx, doc_id, entry, self.record_prefix)
            changes.has_keys = True
            changes.has_marks |= entry.validity.mark is not None or bool(entry.invalid_anchors)
        changes.entries[doc_id] = entry

    def _delete_keys(self, tx: Tx, doc_id: int, changes: IndexChanges) -> None:
        changes.has_keys = True
        changes.has_marks |= exclusions.is_affected(tx, doc_id)
        exclusions.delete(tx, doc_id)

    def _update_exclusions(self, tx: Tx, changes: IndexChanges) -> None:
        """Exclude again what does not hold, if the changes can make a difference to it."""
        # A change of only a text changes nothing that was derived; a new or deleted file may be what a note names.
        has_derived = exclusions.has_derived(tx, self._dialect, changes.paths)
        if changes.has_keys or has_derived:
            tx.after_commit(self._count_change)
        # A note that was not excluded, and was derived from nothing invalid, makes none: most that agents write.
        if changes.has_marks or has_derived or self._has_invalid_source(tx, changes.entries.values()):
            exclusions.recompute(tx, self._dialect)

    def _has_invalid_source(self, tx: Tx, entries: Iterable[IndexEntry]) -> bool:
        sources = [(entry.path, source) for entry in entries for source in entry.validity.sources]
        return exclusions.has_invalid_source(tx, self._dialect, sources, self.record_prefix)

    def _count_change(self) -> None:
        self._exclusions_version += 1

    async def delete(self, paths: Sequence[str]) -> list[int]:
        """Delete documents; return the ids that they had."""

        def work(tx: Tx) -> IndexChanges:
            changes = IndexChanges()
            self._delete(tx, paths, changes)
            self._update_exclusions(tx, changes)
            return changes

        return (await self._change(work)).without_vectors

    def _delete(self, tx: Tx, paths: Iterable[str], changes: IndexChanges) -> None:
        for path in sorted(paths):
            if (existing := store.find_stored(tx, path)) is None:
                continue
            doc_id = existing.doc_id
            store.delete(tx, doc_id)
            links.delete_links(tx, doc_id)
            self._keywords.delete(tx, doc_id)
            self.vectors.delete(tx, doc_id)
            if existing.has_keys:
                self._delete_keys(tx, doc_id, changes)
            changes.paths.append(path)
            changes.without_vectors.append(doc_id)

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

    async def was_reconciled(self, *, max_age_s: float = 0.0) -> bool:
        """Return whether the whole vault was compared with this index since it was created; otherwise it lacks notes.
        True may be a cached answer of up to `max_age_s` seconds ago.
        """
        asked_at = time.monotonic()
        # Another process may rebuild a shared index.
        if not self._was_reconciled or (self.is_shared and asked_at - self._reconciled_at >= max_age_s):
            self._was_reconciled = await self.read(lambda tx: store.read_fact(tx, "compared_at")) is not None
            self._reconciled_at = asked_at
        return self._was_reconciled

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
        self,
        query: KeywordQuery,
        limit: int,
        folder: Folders | None = None,
        *,
        with_total: bool = True,
        list_excluded: ListExcluded = exclude_none,
    ) -> tuple[list[KeywordHit], int, tuple[int, ...]]:
        """Return the best hits, the total number of matches (0 without `with_total`), and what was excluded.

        That is listed in the same transaction, which costs a search less than one of its own.
        """

        listing = self._skip_unrestricted(list_excluded)

        def work(tx: Tx) -> tuple[list[KeywordHit], int, tuple[int, ...]]:
            once = cache(listing)
            hits, total = self._keywords.search(tx, query, limit, folder, once, with_total=with_total)
            return hits, total, once(tx)

        return await self.read(work)

    async def list_excluded(self, list_excluded: ListExcluded) -> tuple[int, ...]:
        """Return the documents that a search must not return."""
        if self._unrestricted_version == self._exclusions_version:
            return ()
        return await self.read(self._skip_unrestricted(list_excluded))

    def _skip_unrestricted(self, list_excluded: ListExcluded) -> ListExcluded:
        """Return a function that asks nothing as long as it is known that nothing is excluded."""
        if self.is_shared:
            return list_excluded
        # Before the transaction begins: a change that it does not see counts as a later version.
        version = self._exclusions_version

        def list_if_restricted(tx: Tx) -> tuple[int, ...]:
            if self._unrestricted_version == version:
                return ()
            if exclusions.is_restricted(tx):
                return list_excluded(tx)
            self._unrestricted_version = version
            return ()

        return list_if_restricted

    async def replace_sources(self, marks: Mapping[str, Mark], version: int, *, seen: int) -> None:
        """Set the sources that are invalid, unless the index has a later version of them than `seen`."""

        def work(tx: Tx) -> None:
            stored = store.read_fact(tx, "sources_version") or 0
            if stored > max(version, seen):
                return
            store.write_fact(tx, "sources_version", version)
            if exclusions.replace_sources(tx, marks):
                tx.after_commit(self._count_change)
                exclusions.recompute(tx, self._dialect)

        await self.write(work)

    async def sources_version(self) -> int:
        return await self.read(lambda tx: store.read_fact(tx, "sources_version")) or 0

    async def list_derived(self, path: str, anchors: Sequence[str] = ()) -> list[str]:
        """Return the notes that were derived from a note, or from these passages of it; also indirectly."""
        return await self.read(lambda tx: exclusions.list_derived(tx, self._dialect, path, anchors))

    async def has_invalid_source(self, path: str, sources: Sequence[Source]) -> bool:
        """Return whether any of these entries of a note's `derived_from` names something that is invalid."""
        entries = [(path, source) for source in sources]
        return await self.read(lambda tx: exclusions.has_invalid_source(tx, self._dialect, entries, self.record_prefix))

    async def find_exclusion(self, path: str) -> Exclusion | None:
        """Return why a note is excluded; None if it is not."""
        return await self.read(lambda tx: exclusions.find_exclusion(tx, path))

    async def explain_exclusions(self, doc_ids: Sequence[int]) -> dict[int, Exclusion]:
        """Return why these documents are excluded; others are left out."""
        return await self.read(lambda tx: exclusions.explain(tx, doc_ids))

    async def list_exclusions(self) -> list[Exclusion]:
        """Return all invalid documents, by path."""
        return await self.read(exclusions.list_exclusions)

    async def list_claims(self) -> list[Cause]:
        """Return the passages that are marked as invalid, by path."""
        return await self.read(exclusions.list_claims)

    async def read_rows(self, doc_ids: Sequence[int]) -> dict[int, DocumentRow]:
        """Return documents by id; missing ones are left out."""
        return await self.read(lambda tx: store.read_rows(tx, self._dialect, doc_ids))

    async def read_headings(self, doc_ids: Sequence[int]) -> dict[int, list[str]]:
        """Return the headings of the chunks of documents with vectors, in their order."""
        return await self.read(lambda tx: store.read_headings(tx, self._dialect, doc_ids))

    async def read_bodies(self, paths: Sequence[str]) -> dict[str, str]:
        """Return texts by path; missing documents are left out."""
        return await self.read(lambda tx: store.read_bodies(tx, paths))

    async def read_texts(self, paths: Sequence[str]) -> dict[str, str]:
        """Return whole files by path, with their frontmatter; missing documents are left out."""
        return await self.read(lambda tx: store.read_texts(tx, paths))

    def close(self) -> None:
        self._database.close()
