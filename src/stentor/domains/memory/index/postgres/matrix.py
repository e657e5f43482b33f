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
from stentor.domains.memory.embedding.model import Vectors
from stentor.domains.memory.index.dense.vectors import MatrixVectors, put
from stentor.domains.memory.index.model import Filters, Near, Waiting
from stentor.domains.memory.index.port import Store
from stentor.domains.memory.index.postgres import models
from stentor.domains.memory.index.postgres.claims import Claims
from stentor.domains.memory.text.chunks import Chunk

if TYPE_CHECKING:
    from stentor.domains.memory.index.dense.matrix import Matrix
    from stentor.domains.memory.index.dense.store import Ready

KEPT = HOUR
"""How long the journal is. Who looked into it before half of that loads everything again."""
_CHANGED = Sql("insert into changes (doc_id, at) values (:doc_id, :at)")
_SINCE = Sql("select distinct doc_id from changes where number > :number")
_NEWEST = Sql("select coalesce(max(number), 0) from changes")
_PRUNE = Sql("delete from changes where at < :before and number < (select max(number) from changes)")
_PIECES = Sql("update documents set pieces = :pieces where doc_id = :doc_id")


class SharedMatrixVectors(MatrixVectors):
    """Implements the port `VectorStore`."""

    TABLES = f"""{models.TABLE};
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

    def __init__(self, tables: Store) -> None:
        super().__init__(tables)
        self._claims = Claims()
        self._following = asyncio.Lock()
        self._number = 0
        self._looked_at = 0.0

    def _outdate(self, tx: Tx) -> None:
        models.adopt(tx, self._adopted)

    def _load(self, tx: Tx) -> Matrix:
        self._number = int(tx.rows(_NEWEST)[0][0])
        self._looked_at = time.monotonic()
        return super()._load(models.check(tx, self._adopted))

    async def waiting(self, most: int) -> list[Waiting]:
        def work(tx: Tx) -> list[Waiting]:
            if models.held(tx) is None:
                models.adopt(tx, self._adopted)  # the schema was dropped meanwhile
            return self._claims.take(models.check(tx, self._adopted), most)

        found = await self._tables.write(work)
        await self._follow()
        return found

    def _keep(self, tx: Tx, document: Waiting, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        self._claims.end(tx, document.doc_id)
        if not super()._keep(models.check(tx, self._adopted), document, chunks, vectors):
            return False
        tx.run(_PIECES, doc_id=document.doc_id, pieces=len(chunks))
        tx.run(_CHANGED, doc_id=document.doc_id, at=tx.now)
        return True

    async def nearest(self, vector: Vectors, most: int, filters: Filters) -> tuple[list[Near], int]:
        await self._follow()
        return await super().nearest(vector, most, filters)

    async def sweep(self) -> None:
        await super().sweep()
        await self._tables.write(self._prune)

    def _prune(self, tx: Tx) -> None:
        tx.run(_PRUNE, before=tx.now - KEPT)
        self._claims.sweep(tx)

    def forget(self, tx: Tx, doc_id: int) -> None:
        super().forget(tx, doc_id)
        tx.run(_CHANGED, doc_id=doc_id, at=tx.now)

    async def _follow(self) -> None:
        """Learn what others changed. Raises EmbeddingUnavailable when they went on to another model."""
        async with self._following:
            late = (time.monotonic() - self._looked_at) * SECOND > KEPT / 2
            changed = None if late else await self._tables.read(self._since)
            if changed is None:
                self._matrix = await self._tables.read(self._load)
                return
            for doc_id, rows in changed.items():
                self._held.forget(doc_id)
                if rows:
                    put(self._held, rows)

    def _since(self, tx: Tx) -> dict[int, list[Ready]] | None:
        """Documents and their chunks, none of one that is gone; None when the journal began anew."""
        from stentor.domains.memory.index.dense import store

        newest = int(models.check(tx, self._adopted).rows(_NEWEST)[0][0])
        if newest < self._number:
            return None
        found = [row[0] for row in tx.rows(_SINCE, number=self._number)] if newest > self._number else []
        self._number, self._looked_at = newest, time.monotonic()
        return {doc_id: store.ready_of(tx, self._identity, doc_id) for doc_id in found}
