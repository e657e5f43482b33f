"""The vector store of a shared index without pgvector: tables for all processes, and a copy in the memory of each.

A change journal (table `changes`) tells each process what the others changed; it is read before every search. Its
numbers are in commit order, because all writes to the index are serialized by one lock (see `schema`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stentor.core.clock import HOUR, SECOND
from stentor.core.db import Sql, Tx
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index.model import PendingDocument, SearchFilters, VectorHit
from stentor.domains.memory.index.postgres import embedding_state
from stentor.domains.memory.index.postgres.embedding_state import EmbeddingClaims
from stentor.domains.memory.index.protocols import IndexDatabase
from stentor.domains.memory.index.sqlite.in_memory_vectors import InMemoryVectorStore
from stentor_vault.text.markdown import Chunk

if TYPE_CHECKING:
    from stentor.domains.memory.index.sqlite import vector_matrix
    from stentor.domains.memory.index.sqlite.vector_matrix import ChunkVector, VectorMatrix
else:
    vector_matrix = lazy_module("stentor.domains.memory.index.sqlite.vector_matrix")

JOURNAL_RETENTION_US = HOUR
"""How long changes are retained. A process that last read them half of that ago reloads all vectors instead."""
_INSERT_CHANGE = Sql("insert into changes (doc_id, at) values (:doc_id, :at)")
_LIST_CHANGED = Sql("select distinct doc_id from changes where number > :number")
_NEWEST_CHANGE = Sql("select coalesce(max(number), 0) from changes")
# The newest entry stays: without it `_NEWEST_CHANGE` would fall back to 0, which means that the schema was rebuilt.
_PRUNE_CHANGES = Sql("delete from changes where at < :before and number < (select max(number) from changes)")
_SET_CHUNK_COUNT = Sql("update documents set pieces = :pieces where doc_id = :doc_id")


class SharedInMemoryVectorStore(InMemoryVectorStore):
    """Implements `VectorStore` with exact search over a copy that follows the change journal."""

    TABLES = f"""{embedding_state.MODEL_TABLE};
create table chunks (
    doc_id integer not null,
    ordinal integer not null,
    heading text not null,
    hash text not null,
    primary key (doc_id, ordinal)
);
create table vectors (model text not null, hash text not null, vector bytea not null, primary key (model, hash));
create table changes (
    number bigint generated always as identity primary key,
    doc_id integer not null,
    at bigint not null
)"""

    def __init__(self, database: IndexDatabase) -> None:
        super().__init__(database)
        self._claims = EmbeddingClaims()
        self._sync_lock = asyncio.Lock()
        self._last_change = 0
        self._synced_at = 0.0

    async def next_pending(self, limit: int) -> list[PendingDocument]:
        def work(tx: Tx) -> list[PendingDocument]:
            if embedding_state.read_model(tx) is None:
                # The schema was dropped and created again while this process ran.
                embedding_state.switch_model(tx, self._current_model)
            return self._claims.claim(embedding_state.require_model(tx, self._current_model), limit)

        pending = await self._database.write(work)
        await self._sync()
        return pending

    async def nearest(self, vector: Vectors, limit: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        await self._sync()
        return await super().nearest(vector, limit, filters)

    async def delete_orphans(self) -> None:
        await super().delete_orphans()
        await self._database.write(self._prune)

    def delete(self, tx: Tx, doc_id: int) -> None:
        super().delete(tx, doc_id)
        tx.run(_INSERT_CHANGE, doc_id=doc_id, at=tx.now)

    def _invalidate(self, tx: Tx) -> None:
        embedding_state.switch_model(tx, self._current_model)

    async def _reload(self) -> None:
        self._matrix, self._last_change, self._synced_at = await self._database.read(self._load_at_change)

    def _load_at_change(self, tx: Tx) -> tuple[VectorMatrix, int, float]:
        # Same transaction as the vectors, so that no change falls between the number and the load.
        newest, started_at = int(tx.rows(_NEWEST_CHANGE)[0][0]), time.monotonic()
        return self._load(embedding_state.require_model(tx, self._current_model)), newest, started_at

    def _save(self, tx: Tx, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        self._claims.release(tx, document.doc_id)
        if not super()._save(embedding_state.require_model(tx, self._current_model), document, chunks, vectors):
            return False
        tx.run(_SET_CHUNK_COUNT, doc_id=document.doc_id, pieces=len(chunks))
        tx.run(_INSERT_CHANGE, doc_id=document.doc_id, at=tx.now)
        return True

    def _prune(self, tx: Tx) -> None:
        tx.run(_PRUNE_CHANGES, before=tx.now - JOURNAL_RETENTION_US)
        self._claims.delete_expired(tx)

    async def _sync(self) -> None:
        """Apply the changes of other processes. Raises EmbeddingUnavailable if they switched to another model."""
        async with self._sync_lock:
            is_late = (time.monotonic() - self._synced_at) * SECOND > JOURNAL_RETENTION_US / 2
            changes = None if is_late else await self._database.read(self._read_changes)
            if changes is None:
                await self._reload()
                return
            # With the vectors, and not in the transaction: the caller may be cancelled while that continues.
            changed, self._last_change, self._synced_at = changes
            for doc_id, rows in changed.items():
                self._loaded_matrix.delete(doc_id)
                self._loaded_matrix.add(rows)

    def _read_changes(self, tx: Tx) -> tuple[dict[int, list[ChunkVector]], int, float] | None:
        """Return changed documents with their chunks (none for a deleted one), the last change, and the time.

        None if the journal was restarted.
        """
        newest = int(embedding_state.require_model(tx, self._current_model).rows(_NEWEST_CHANGE)[0][0])
        if newest < self._last_change:
            return None
        doc_ids: list[int] = []
        if newest > self._last_change:
            doc_ids = [row[0] for row in tx.rows(_LIST_CHANGED, number=self._last_change)]
        changed = {doc_id: vector_matrix.list_document_vectors(tx, self._identity, doc_id) for doc_id in doc_ids}
        return changed, newest, time.monotonic()
