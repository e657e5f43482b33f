"""Exact vector search in memory, and the SQL of the tables that the vectors are loaded from.

Used by the vector stores without pgvector. Imports NumPy, so it is itself imported only when vectors are needed.
Vectors are stored by model and hash of their text, so that no text is embedded twice. In memory a
vector consists of whole numbers from -32,767 to 32,767 and one factor. That takes half of the memory; a product differs
by at most 0.00001 from that of the vector itself and takes a fifth more time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index import store
from stentor.domains.memory.index.model import PendingDocument, SearchFilters, VectorHit
from stentor_vault.text.markdown import Chunk

FREE_ROW = -1
INITIAL_ROWS = 1024
LOADED_DOCUMENTS = 1000
"""Documents whose vectors are read by one statement when all are loaded."""
Vector = NDArray[np.float32]

_LIST_PENDING = Sql(
    """select doc_id, path, title, body, weight, created_at, modified_at, raw_hash from documents
    where model is null order by size, doc_id limit :limit"""
)
_INVALIDATE_OTHER_MODELS = Sql("update documents set model = null where model <> :model")
_SELECT_VECTORS = """select d.doc_id, d.weight, d.created_at, v.vector from documents d
    join chunks c on c.doc_id = d.doc_id join vectors v on v.model = d.model and v.hash = c.hash"""
_LIST_IDS = Sql("select doc_id from documents where model = :model and doc_id > :after order by doc_id limit :limit")
_LIST_VECTORS = Sql(
    f"""{_SELECT_VECTORS} where d.model = :model and d.doc_id > :after and d.doc_id <= :last
    order by d.doc_id, c.ordinal"""
)
_LIST_DOCUMENT_VECTORS = Sql(f"{_SELECT_VECTORS} where d.model = :model and d.doc_id = :doc_id order by c.ordinal")
_INSERT_CHUNK = Sql("insert into chunks (doc_id, ordinal, heading, hash) values (:doc_id, :ordinal, :heading, :hash)")
_INSERT_VECTOR = Sql("insert into vectors (model, hash, vector) values (:model, :hash, :vector) on conflict do nothing")
_FIND_VECTOR = Sql("select vector from vectors where model = :model and hash = :hash")
_MARK_EMBEDDED = Sql("update documents set model = :model where doc_id = :doc_id and raw_hash = :raw_hash")
_DELETE_ORPHANS = Sql("delete from vectors where model <> :model or hash not in (select hash from chunks)")
BLOCK_ROWS = 2048
"""Vectors in one piece of memory. Pieces are added, so that growing copies nothing and wastes at most one of them."""
LARGEST = 32_767


class PackedVectors:
    """Vectors by row number. Not thread-safe."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._blocks: list[NDArray[np.int16]] = []
        self._factors: list[Vector] = []
        self._unpacked = np.zeros((BLOCK_ROWS, dimensions), np.float32)

    def set(self, rows: Sequence[int], vectors: Vector) -> None:
        """Set these rows; the memory for new ones is added."""
        largest = np.abs(vectors).max(axis=1, initial=0)
        # A vector of zeros stays one.
        whole = np.rint(vectors * (LARGEST / np.where(largest, largest, 1))[:, None]).astype(np.int16)
        # Of the same length as before: the product of two vectors of length 1 is never more than 1.
        lengths = np.linalg.norm(whole.astype(np.float32), axis=1)
        factors = np.linalg.norm(vectors, axis=1) / np.where(lengths, lengths, 1)
        for row, numbers, factor in zip(rows, whole, factors, strict=True):
            while row >= BLOCK_ROWS * len(self._blocks):
                self._blocks.append(np.zeros((BLOCK_ROWS, self._dimensions), np.int16))
                self._factors.append(np.zeros(BLOCK_ROWS, np.float32))
            block, place = divmod(row, BLOCK_ROWS)
            self._blocks[block][place] = numbers
            self._factors[block][place] = factor

    def multiply(self, query: Vector, count: int) -> Vector:
        """Return the products of the first `count` rows with a query."""
        products = np.empty(count, np.float32)
        for number in range(-(-count // BLOCK_ROWS)):
            part = products[number * BLOCK_ROWS : (number + 1) * BLOCK_ROWS]
            # Reuses the same memory for each block, so that it stays in the processor's cache.
            np.copyto(self._unpacked[: len(part)], self._blocks[number][: len(part)])
            np.dot(self._unpacked[: len(part)], query, out=part)
            part *= self._factors[number][: len(part)]
        return products

    def multiply_rows(self, query: Vector, rows: Sequence[int]) -> Vector:
        """Return the products of some rows with a query."""
        places = [divmod(row, BLOCK_ROWS) for row in rows]
        numbers = np.array([self._blocks[block][place] for block, place in places], np.float32)
        factors = np.array([self._factors[block][place] for block, place in places], np.float32)
        return numbers.reshape(-1, self._dimensions) @ query * factors


class VectorMatrix:
    """One row per chunk, with the weight (NaN for none) and creation time of its document. Thread-safe."""

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self._lock = threading.Lock()
        self._rows: dict[int, list[int]] = {}
        self._free: list[int] = []
        self._used = 0
        self._vectors = PackedVectors(dimensions)
        self._doc = np.full(INITIAL_ROWS, FREE_ROW, np.int64)
        self._ordinal = np.zeros(INITIAL_ROWS, np.int32)
        self._first = np.zeros(INITIAL_ROWS, np.int64)
        """The row of the document's first chunk, which stands for the document."""
        self._weight = np.full(INITIAL_ROWS, np.nan, np.float64)
        self._created = np.zeros(INITIAL_ROWS, np.int64)

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self._rows)

    def upsert(self, doc_id: int, vectors: NDArray[np.float32], weight: float | None, created_at: int) -> None:
        """Set the vectors of a document's chunks, in their order."""
        with self._lock:
            self._upsert(doc_id, vectors, weight, created_at)

    def add(self, chunks: Sequence[ChunkVector]) -> None:
        """Add documents that the matrix does not have: all their chunks, in the order of documents and chunks."""
        if not chunks:
            return
        with self._lock:
            rows = [self._allocate_row() for _ in chunks]
            ordinals = []
            for row, chunk in zip(rows, chunks, strict=True):
                own = self._rows.setdefault(chunk.doc_id, [])
                ordinals.append(len(own))
                own.append(row)
            self._vectors.set(rows, np.stack([chunk.vector for chunk in chunks]))
            self._doc[rows] = [chunk.doc_id for chunk in chunks]
            self._ordinal[rows] = ordinals
            self._first[rows] = [self._rows[chunk.doc_id][0] for chunk in chunks]
            self._weight[rows] = [np.nan if chunk.weight is None else chunk.weight for chunk in chunks]
            self._created[rows] = [chunk.created_at for chunk in chunks]

    def delete(self, doc_id: int) -> None:
        with self._lock:
            self._delete(doc_id)

    def nearest(
        self,
        query: NDArray[np.float32],
        limit: int,
        filters: SearchFilters,
        doc_ids: Sequence[int] | None = None,
    ) -> tuple[list[VectorHit], int]:
        """Return the nearest documents (of `doc_ids`, if given), best first, and how many pass the filters.

        The folders of the filters are not checked: `doc_ids` are the documents in them.
        """
        with self._lock:
            rows = self._filter_rows(filters.weight_min, filters.created_after)
            if doc_ids is not None:
                rows = rows[np.isin(self._doc[rows], doc_ids)]
            if filters.excluded:
                rows = rows[~np.isin(self._doc[rows], filters.excluded)]
            return self._nearest(query, limit, rows, filters.similarity_min)

    def similarities(self, query: NDArray[np.float32], doc_ids: Iterable[int]) -> dict[int, float]:
        """Return the similarity of each document's nearest chunk; unknown documents are left out."""
        with self._lock:
            known = {doc_id: rows for doc_id in doc_ids if (rows := self._rows.get(doc_id))}
            scores = self._vectors.multiply_rows(query, [row for rows in known.values() for row in rows])
            starts = np.cumsum([0, *(len(rows) for rows in known.values())])[:-1]
            best = np.maximum.reduceat(scores, starts) if known else scores
            return dict(zip(known, best.tolist(), strict=True))

    def _upsert(self, doc_id: int, vectors: NDArray[np.float32], weight: float | None, created_at: int) -> None:
        self._delete(doc_id)
        rows = [self._allocate_row() for _ in range(len(vectors))]
        self._rows[doc_id] = rows
        if not rows:
            return
        self._vectors.set(rows, vectors)
        self._doc[rows] = doc_id
        self._ordinal[rows] = np.arange(len(rows))
        self._first[rows] = rows[0]
        self._weight[rows] = np.nan if weight is None else weight
        self._created[rows] = created_at

    def _delete(self, doc_id: int) -> None:
        rows = self._rows.pop(doc_id, [])
        self._doc[rows] = FREE_ROW
        self._free.extend(rows)

    def _nearest(
        self, query: NDArray[np.float32], limit: int, rows: NDArray[np.int64], similarity_min: float | None
    ) -> tuple[list[VectorHit], int]:
        # Over all rows, because selecting those that pass the filters first would copy them.
        scores = self._vectors.multiply(query, self._used)
        if similarity_min is not None:
            rows = rows[scores[rows] >= similarity_min]
        found = np.zeros(self._used, np.bool_)
        found[self._first[rows]] = True
        best = self._best_chunks(scores, rows, limit)
        return [VectorHit(int(self._doc[r]), float(scores[r]), int(self._ordinal[r])) for r in best], int(found.sum())

    def _best_chunks(self, scores: NDArray[np.float32], rows: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        """Return the best row of each of the best documents, best first."""
        wanted = 2 * limit
        while True:
            best = _highest(scores, rows, wanted)
            # `unique` returns the first position of each document: its best chunk. Keeping their order sorts them by
            # similarity again.
            _, first = np.unique(self._first[best], return_index=True)
            if len(first) >= limit or len(best) == len(rows):
                return best[np.sort(first)[:limit]]
            # Long documents displaced others.
            wanted *= 4

    def _filter_rows(self, weight_min: float | None, created_after: int | None) -> NDArray[np.int64]:
        passes = self._doc[: self._used] != FREE_ROW
        if weight_min is not None:
            passes &= self._weight[: self._used] >= weight_min  # false for NaN: a document without weight never passes
        if created_after is not None:
            passes &= self._created[: self._used] > created_after
        return np.flatnonzero(passes)

    def _allocate_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._doc):
            self._grow()
        self._used += 1
        return self._used - 1

    def _grow(self) -> None:
        size = len(self._doc)
        # Doubled each time, so that all the copying together costs no more than the rows themselves.
        self._doc = np.concatenate([self._doc, np.full(size, FREE_ROW, np.int64)])
        self._ordinal = np.concatenate([self._ordinal, np.zeros(size, np.int32)])
        self._first = np.concatenate([self._first, np.zeros(size, np.int64)])
        self._weight = np.concatenate([self._weight, np.full(size, np.nan)])
        self._created = np.concatenate([self._created, np.zeros(size, np.int64)])


def _highest(scores: NDArray[np.float32], rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at least `count` of the rows, those with the highest scores, the highest first."""
    found = scores[rows]
    if count < len(rows):
        least = np.partition(found, len(rows) - count)[len(rows) - count]
        rows = rows[found >= least]
    return rows[np.argsort(-scores[rows], kind="stable")]


class ChunkVector(msgspec.Struct, frozen=True):
    """The vector of a chunk, with the columns that its document is filtered by."""

    doc_id: int
    weight: float | None
    created_at: int
    vector: Vector


def list_pending(tx: Tx, limit: int) -> list[PendingDocument]:
    """Return documents that are not embedded yet, shortest first. Uses a partial index, so it scans no others."""
    return [PendingDocument(*row) for row in tx.rows(_LIST_PENDING, limit=limit)]


def invalidate_other_models(tx: Tx, model: str) -> int:
    """Make documents with vectors of another model pending; return how many. Scans all documents."""
    return tx.run(_INVALIDATE_OTHER_MODELS, model=model)


def iter_vectors(tx: Tx, model: str) -> Iterator[ChunkVector]:
    """Yield the vectors of all embedded documents, in the order of documents and chunks."""
    after = -1
    # A few documents at a time: all vectors as rows would take twice the memory of the matrix.
    while ids := tx.rows(_LIST_IDS, model=model, after=after, limit=LOADED_DOCUMENTS):
        last = int(ids[-1][0])
        yield from map(_chunk_vector, tx.rows(_LIST_VECTORS, model=model, after=after, last=last))
        after = last


def list_document_vectors(tx: Tx, model: str, doc_id: int) -> list[ChunkVector]:
    """Return the vectors of one document, in the order of its chunks."""
    return [_chunk_vector(row) for row in tx.rows(_LIST_DOCUMENT_VECTORS, model=model, doc_id=doc_id)]


def _chunk_vector(row: tuple[int, float | None, int, bytes]) -> ChunkVector:
    doc_id, weight, created_at, raw = row
    return ChunkVector(doc_id, weight, created_at, np.frombuffer(raw, np.float32))


def find_by_hash(tx: Tx, model: str, hashes: Sequence[str]) -> dict[str, Vector]:
    """Return the stored vectors of these chunk texts, by hash."""
    rows = ((text_hash, tx.row(_FIND_VECTOR, model=model, hash=text_hash)) for text_hash in dict.fromkeys(hashes))
    return {text_hash: np.frombuffer(row[0], np.float32) for text_hash, row in rows if row is not None}


def save_vectors(tx: Tx, model: str, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vector) -> bool:
    """Store the chunks and vectors of a document; return False and store nothing if it has changed."""
    # The condition on `raw_hash` detects a document that changed while it was embedded.
    if not tx.run(_MARK_EMBEDDED, model=model, doc_id=document.doc_id, raw_hash=document.raw_hash):
        return False
    store.delete_chunks(tx, document.doc_id)
    for chunk, vector in zip(chunks, vectors, strict=True):
        tx.run(_INSERT_CHUNK, doc_id=document.doc_id, ordinal=chunk.ordinal, heading=chunk.heading, hash=chunk.hash)
        tx.run(_INSERT_VECTOR, model=model, hash=chunk.hash, vector=vector.tobytes())
    return True


def delete_orphans(tx: Tx, model: str) -> int:
    """Delete vectors that no chunk uses any more; return how many. Scans all vectors."""
    return tx.run(_DELETE_ORPHANS, model=model)
