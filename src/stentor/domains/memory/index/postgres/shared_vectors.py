"""Vectors of a database without pgvector: in tables that all processes share, and in the memory of each.

What one process changed the others learn from a journal, before every search. Its numbers are in the order of the
commits, because writes to the index wait for each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stentor.core.clock import HOUR, SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index.in_memory_vectors import InMemoryVectorStore, add_document
from stentor.domains.memory.index.model import PendingDocument, SearchFilters, VectorHit
from stentor.domains.memory.index.postgres import embedding_state
from stentor.domains.memory.index.postgres.embedding_state import EmbeddingClaims
from stentor.domains.memory.index.protocols import IndexDatabase
from stentor.domains.memory.text.markdown import Chunk

if TYPE_CHECKING:
    from stentor.domains.memory.index.vector_matrix import ChunkVector, VectorMatrix

JOURNAL_RETENTION_US = HOUR
"""How long the journal is. Who looked into it before half of that loads everything again."""
_CHANGED = Sql("insert into changes (doc_id, at) values (:doc_id, :at)")
_SINCE = Sql("select distinct doc_id from changes where number > :number")
_NEWEST = Sql("select coalesce(max(number), 0) from changes")
_PRUNE = Sql("delete from changes where at < :before and number < (select max(number) from changes)")
_PIECES = Sql("update documents set pieces = :pieces where doc_id = :doc_id")


class SharedInMemoryVectorStore(InMemoryVectorStore):
    """Implements the port `VectorStore`."""

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

    def __init__(self, tables: IndexDatabase) -> None:
        super().__init__(tables)
        self._claims = EmbeddingClaims()
        self._following = asyncio.Lock()
        self._number = 0
        self._looked_at = 0.0

    def _invalidate(self, tx: Tx) -> None:
        embedding_state.switch_model(tx, self._current_model)

    def _load(self, tx: Tx) -> VectorMatrix:
        self._number = int(tx.rows(_NEWEST)[0][0])
        self._looked_at = time.monotonic()
        return super()._load(embedding_state.require_model(tx, self._current_model))

    async def next_pending(self, most: int) -> list[PendingDocument]:
        def work(tx: Tx) -> list[PendingDocument]:
            if embedding_state.read_model(tx) is None:
                embedding_state.switch_model(tx, self._current_model)  # the schema was dropped meanwhile
            return self._claims.claim(embedding_state.require_model(tx, self._current_model), most)

        found = await self._database.write(work)
        await self._follow()
        return found

    def _save(self, tx: Tx, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        self._claims.release(tx, document.doc_id)
        if not super()._save(embedding_state.require_model(tx, self._current_model), document, chunks, vectors):
            return False
        tx.run(_PIECES, doc_id=document.doc_id, pieces=len(chunks))
        tx.run(_CHANGED, doc_id=document.doc_id, at=tx.now)
        return True

    async def nearest(self, vector: Vectors, most: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        await self._follow()
        return await super().nearest(vector, most, filters)

    async def delete_orphans(self) -> None:
        await super().delete_orphans()
        await self._database.write(self._prune)

    def _prune(self, tx: Tx) -> None:
        tx.run(_PRUNE, before=tx.now - JOURNAL_RETENTION_US)
        self._claims.delete_expired(tx)

    def delete(self, tx: Tx, doc_id: int) -> None:
        super().delete(tx, doc_id)
        tx.run(_CHANGED, doc_id=doc_id, at=tx.now)

    async def _follow(self) -> None:
        """Learn what others changed. Raises EmbeddingUnavailable when they went on to another model."""
        async with self._following:
            late = (time.monotonic() - self._looked_at) * SECOND > JOURNAL_RETENTION_US / 2
            changed = None if late else await self._database.read(self._since)
            if changed is None:
                self._matrix = await self._database.read(self._load)
                return
            for doc_id, rows in changed.items():
                self._loaded_matrix.delete(doc_id)
                if rows:
                    add_document(self._loaded_matrix, rows)

    def _since(self, tx: Tx) -> dict[int, list[ChunkVector]] | None:
        """Documents and their chunks, none of one that is gone; None when the journal began anew."""
        from stentor.domains.memory.index import vector_matrix

        newest = int(embedding_state.require_model(tx, self._current_model).rows(_NEWEST)[0][0])
        if newest < self._number:
            return None
        found = [row[0] for row in tx.rows(_SINCE, number=self._number)] if newest > self._number else []
        self._number, self._looked_at = newest, time.monotonic()
        return {doc_id: vector_matrix.list_document_vectors(tx, self._identity, doc_id) for doc_id in found}
