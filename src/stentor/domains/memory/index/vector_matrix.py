"""All vectors in memory, searched exactly: one product, filters before the best are taken.

SQL of chunks and vectors. A vector is kept by model and hash of its text, so that no text is embedded twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.in_memory_vectors import DELETE_CHUNKS
from stentor.domains.memory.index.model import PendingDocument, VectorHit
from stentor.domains.memory.text.markdown import Chunk

FREE_ROW = -1
_FIRST = 1024


class VectorMatrix:
    """A row for each chunk. `weight` and `created_at` are its document's; a document without weight has NaN."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._lock = threading.Lock()
        self._rows: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._used = 0
        self._vectors = np.zeros((_FIRST, dimensions), np.float32)
        self._doc = np.full(_FIRST, FREE_ROW, np.int64)
        self._ordinal = np.zeros(_FIRST, np.int32)
        self._weight = np.full(_FIRST, np.nan, np.float64)
        self._created = np.zeros(_FIRST, np.int64)

    def __len__(self) -> int:
        """Documents in it."""
        return len(self._rows)

    def upsert(self, doc_id: int, vectors: NDArray[np.float32], weight: float | None, created_at: int) -> None:
        """The vectors of a document's chunks, in order; replaces those that it had."""
        with self._lock:
            self._upsert(doc_id, vectors, weight, created_at)

    def delete(self, doc_id: int) -> None:
        with self._lock:
            self._delete(doc_id)

    def _upsert(self, doc_id: int, vectors: NDArray[np.float32], weight: float | None, created_at: int) -> None:
        self._delete(doc_id)
        rows = [self._row() for _ in range(len(vectors))]
        self._rows[doc_id] = rows
        self._vectors[rows] = vectors
        self._doc[rows] = doc_id
        self._ordinal[rows] = np.arange(len(rows))
        self._weight[rows] = np.nan if weight is None else weight
        self._created[rows] = created_at

    def _delete(self, doc_id: int) -> None:
        rows = self._rows.pop(doc_id, [])
        self._doc[rows] = FREE_ROW
        self._free.extend(rows)

    def nearest(
        self,
        query: NDArray[np.float32],
        most: int,
        weight_min: float | None = None,
        created_after: int | None = None,
        doc_ids: Sequence[int] | None = None,
    ) -> tuple[list[VectorHit], int]:
        """The nearest documents (`among` those of these ids), best first, and how many pass the filters."""
        with self._lock:
            rows = self._passing(weight_min, created_after)
            return self._nearest(query, most, rows if doc_ids is None else rows[np.isin(self._doc[rows], doc_ids)])

    def _nearest(self, query: NDArray[np.float32], most: int, rows: NDArray[np.int64]) -> tuple[list[VectorHit], int]:
        if not len(rows):
            return [], 0
        documents = self._doc[rows]
        scores = self._vectors[: self._used] @ query
        order = np.argsort(-scores[rows], kind="stable")
        ids, first = np.unique(documents[order], return_index=True)
        best = np.sort(first)[:most]
        chosen = rows[order[best]]
        found = [VectorHit(int(self._doc[r]), float(scores[r]), int(self._ordinal[r])) for r in chosen]
        return found, len(ids)

    def similarities(self, query: NDArray[np.float32], doc_ids: Iterable[int]) -> dict[int, float]:
        """How like the query the nearest chunk of each of these documents is, of those that are known."""
        with self._lock:
            known = {doc_id: self._rows[doc_id] for doc_id in doc_ids if doc_id in self._rows}
            return {doc_id: float((self._vectors[rows] @ query).max()) for doc_id, rows in known.items()}

    def _passing(self, weight_min: float | None, created_after: int | None) -> NDArray[np.int64]:
        passes = self._doc[: self._used] != FREE_ROW
        if weight_min is not None:
            passes &= self._weight[: self._used] >= weight_min
        if created_after is not None:
            passes &= self._created[: self._used] > created_after
        return np.flatnonzero(passes)

    def _row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._doc):
            self._grow()
        self._used += 1
        return self._used - 1

    def _grow(self) -> None:
        size = len(self._doc)
        self._vectors = np.concatenate([self._vectors, np.zeros((size, self.dimensions), np.float32)])
        self._doc = np.concatenate([self._doc, np.full(size, FREE_ROW, np.int64)])
        self._ordinal = np.concatenate([self._ordinal, np.zeros(size, np.int32)])
        self._weight = np.concatenate([self._weight, np.full(size, np.nan)])
        self._created = np.concatenate([self._created, np.zeros(size, np.int64)])


Vector = NDArray[np.float32]

_WAITING = Sql(
    """select doc_id, path, title, body, weight, created_at, modified_at, raw_hash from documents
    where model is null order by size, doc_id limit :limit"""
)
_OUTDATE = Sql("update documents set model = null where model <> :model")
_CHUNKS = """select d.doc_id, d.weight, d.created_at, v.vector from documents d
    join chunks c on c.doc_id = d.doc_id join vectors v on v.model = d.model and v.hash = c.hash"""
_READY = Sql(f"{_CHUNKS} where d.model = :model order by d.doc_id, c.ordinal")
_READY_OF = Sql(f"{_CHUNKS} where d.model = :model and d.doc_id = :doc_id order by c.ordinal")
_CHUNK = Sql("insert into chunks (doc_id, ordinal, heading, hash) values (:doc_id, :ordinal, :heading, :hash)")
_VECTOR = Sql("insert into vectors (model, hash, vector) values (:model, :hash, :vector) on conflict do nothing")
_KNOWN = Sql("select vector from vectors where model = :model and hash = :hash")
_DONE = Sql("update documents set model = :model where doc_id = :doc_id and raw_hash = :raw_hash")
_SWEEP = Sql("delete from vectors where model <> :model or hash not in (select hash from chunks)")


class ChunkVector(msgspec.Struct, frozen=True):
    """The vector of one chunk, with what its document is filtered by."""

    doc_id: int
    weight: float | None
    created_at: int
    vector: Vector


def list_pending(tx: Tx, limit: int) -> list[PendingDocument]:
    """Documents without vectors: found by an index, however many have theirs."""
    return [PendingDocument(*row) for row in tx.rows(_WAITING, limit=limit)]


def invalidate_other_models(tx: Tx, model: str) -> int:
    """Documents with vectors of another model wait for new ones; answers how many. Looks at all documents."""
    return tx.run(_OUTDATE, model=model)


def list_vectors(tx: Tx, model: str) -> list[ChunkVector]:
    """Every chunk that has its vector, in the order of documents and chunks."""
    return [_chunk_vector(row) for row in tx.rows(_READY, model=model)]


def list_document_vectors(tx: Tx, model: str, doc_id: int) -> list[ChunkVector]:
    """The same of one document."""
    return [_chunk_vector(row) for row in tx.rows(_READY_OF, model=model, doc_id=doc_id)]


def _chunk_vector(row: tuple[int, float | None, int, bytes]) -> ChunkVector:
    doc_id, weight, at, raw = row
    return ChunkVector(doc_id, weight, at, np.frombuffer(raw, np.float32))


def find_by_hash(tx: Tx, model: str, hashes: Sequence[str]) -> dict[str, Vector]:
    found = ((one, tx.row(_KNOWN, model=model, hash=one)) for one in dict.fromkeys(hashes))
    return {one: np.frombuffer(row[0], np.float32) for one, row in found if row is not None}


def save_vectors(tx: Tx, model: str, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vector) -> bool:
    """The chunks and vectors of a document; False, and nothing kept, when it was changed meanwhile."""
    if not tx.run(_DONE, model=model, doc_id=document.doc_id, raw_hash=document.raw_hash):
        return False
    tx.run(DELETE_CHUNKS, doc_id=document.doc_id)
    for chunk, vector in zip(chunks, vectors, strict=True):
        tx.run(_CHUNK, doc_id=document.doc_id, ordinal=chunk.ordinal, heading=chunk.heading, hash=chunk.hash)
        tx.run(_VECTOR, model=model, hash=chunk.hash, vector=vector.tobytes())
    return True


def delete_orphans(tx: Tx, model: str) -> int:
    """Forget vectors that no chunk has any more; answers how many. Looks at all vectors."""
    return tx.run(_SWEEP, model=model)
