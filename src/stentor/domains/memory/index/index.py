"""The search index: documents, their words and their vectors, always changed together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from stentor.core.db import Tx
from stentor.domains.memory.index import store
from stentor.domains.memory.index.model import Entry, Folders, FolderStats, Record, Row, State, Totals, listed
from stentor.domains.memory.index.port import Store, VectorStore, WordStore
from stentor.domains.memory.index.query import Hit, Query
from stentor.domains.notes.model import Stat

T = TypeVar("T")


class Index:
    """`shared`: other processes read it and write to it too; `note` is what an operator should know of it.

    Every method may raise StoreUnavailable.
    """

    def __init__(
        self,
        tables: Store,
        words: WordStore,
        vectors: VectorStore,
        dialect: str,
        *,
        shared: bool,
        note: str | None = None,
    ) -> None:
        self.shared = shared
        self.note = note
        self.vectors = vectors
        self._tables = tables
        self._words = words
        self._dialect = dialect

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._tables.read(fn)

    async def write(self, fn: Callable[[Tx], T]) -> T:
        return await self._tables.write(fn)

    async def put(self, entries: Sequence[Entry], gone: Sequence[str], at: int, *, anew: bool) -> dict[str, int]:
        """Insert or replace documents and remove others, in one transaction at this time; answers the ids of those
        that changed, by path. What is there already stays as it is, unless it is to be made `anew`."""

        def work(tx: Tx) -> tuple[dict[str, int | None], list[int]]:
            forgotten = self._forget(tx, gone)
            store.set_fact(tx, "synced_at", at)
            ordered = sorted(entries, key=lambda one: one.path)
            return {entry.path: self._put(tx, entry, anew=anew) for entry in ordered}, forgotten

        put, forgotten = await self.write(work)
        self.vectors.forgotten(forgotten)
        return {path: doc_id for path, doc_id in put.items() if doc_id is not None}

    def _put(self, tx: Tx, entry: Entry, *, anew: bool) -> int | None:
        known = store.find(tx, entry.path)
        if known is None:
            doc_id = store.insert(tx, entry)
        elif known[1] == entry.raw_hash and not anew:
            store.touch(tx, entry.path, entry.modified_at, entry.size)
            return None
        else:
            doc_id = known[0]
            store.update(tx, doc_id, entry)
            self._words.forget(tx, doc_id)
        self._words.put(tx, doc_id, entry)
        return doc_id

    async def forget(self, paths: Sequence[str]) -> list[int]:
        """Remove documents; answers the ids that they had."""
        gone = await self.write(lambda tx: self._forget(tx, paths))
        self.vectors.forgotten(gone)
        return gone

    def _forget(self, tx: Tx, paths: Iterable[str]) -> list[int]:
        known = [found[0] for path in sorted(paths) if (found := store.find(tx, path)) is not None]
        for doc_id in known:
            store.forget(tx, doc_id)
            self._words.forget(tx, doc_id)
            self.vectors.forget(tx, doc_id)
        return known

    async def touch(self, stats: Sequence[Stat]) -> None:
        """These files have another time and the same bytes."""

        def work(tx: Tx) -> None:
            for stat in stats:
                store.touch(tx, stat.path, stat.modified_at, stat.size)

        await self.write(work)

    async def states(self) -> dict[str, State]:
        return await self.read(store.states)

    async def states_of(self, paths: Iterable[str]) -> dict[str, State]:
        """Of those that are indexed."""
        return await self.read(lambda tx: store.states_of(tx, paths))

    async def paths_below(self, folder: str) -> list[str]:
        """The indexed files in a folder and its folders."""
        return await self.read(lambda tx: store.paths_below(tx, folder))

    async def compared(self) -> bool:
        """Whether all of the vault was compared with it since it was made."""
        return await self.read(lambda tx: store.fact(tx, "compared_at")) is not None

    async def set_compared(self, at: int) -> None:
        await self.write(lambda tx: store.set_fact(tx, "compared_at", at))

    async def empty(self) -> bool:
        return not await self.read(store.any_documents)

    async def totals(self) -> Totals:
        return await self.read(store.totals)

    async def record(self, path: str) -> Record | None:
        return await self.read(lambda tx: store.record(tx, path))

    async def folders(self) -> list[str]:
        """All that have documents in them."""
        return await self.read(store.folders)

    async def folder_stats(self, folders: Folders) -> FolderStats:
        """Of all of them together."""
        return await self.read(lambda tx: store.folder_stats(tx, listed(folders)))

    async def find(
        self, query: Query, limit: int, folder: Folders | None = None, *, counted: bool = True
    ) -> tuple[list[Hit], int]:
        """The best, of the whole vault or of some folders, and how many there are in all, if that is asked for."""
        return await self.read(lambda tx: self._words.find(tx, query, limit, folder, counted=counted))

    async def rows(self, doc_ids: Sequence[int]) -> dict[int, Row]:
        """Of those that are there."""
        return await self.read(lambda tx: store.rows(tx, self._dialect, doc_ids))

    async def bodies(self, paths: Sequence[str]) -> dict[str, str]:
        """Of those that are there."""
        return await self.read(lambda tx: store.bodies(tx, paths))

    def close(self) -> None:
        self._tables.close()
