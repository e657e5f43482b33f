"""Implements the port `VectorStore` with all vectors in memory. NumPy is loaded with the first of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stentor.core.db import Sql, Tx
from stentor.domains.memory.embedding.model import Vectors
from stentor.domains.memory.index.model import Filters, Folders, Model, Near, Waiting, listed
from stentor.domains.memory.index.port import Store
from stentor.domains.memory.text.chunks import Chunk

if TYPE_CHECKING:  # 20 MB and 0.1 s
    from stentor.domains.memory.index.dense.matrix import Matrix
    from stentor.domains.memory.index.dense.store import Ready

FORGET = Sql("delete from chunks where doc_id = :doc_id")
"""The chunks of a document; their vectors stay for texts like them, until they are swept."""
_OF_FOLDER = Sql("select doc_id from documents where folder = :folder")


class MatrixVectors:
    def __init__(self, tables: Store) -> None:
        self._tables = tables
        self._model: Model | None = None
        self._matrix: Matrix | None = None

    @property
    def _adopted(self) -> Model:
        assert self._model is not None, "a model is adopted first"
        return self._model

    @property
    def _identity(self) -> str:
        return self._adopted.identity

    async def adopt(self, model: Model) -> None:
        self._model = model
        await self._tables.write(self._outdate)
        self._matrix = await self._tables.read(self._load)

    def _outdate(self, tx: Tx) -> None:
        from stentor.domains.memory.index.dense import store

        store.outdate(tx, self._identity)

    def _load(self, tx: Tx) -> Matrix:
        from stentor.domains.memory.index.dense import store

        return _matrix(store.ready(tx, self._identity), self._adopted.dimensions)

    async def waiting(self, most: int) -> list[Waiting]:
        from stentor.domains.memory.index.dense import store

        return await self._tables.read(lambda tx: store.waiting(tx, most))

    async def known(self, hashes: Sequence[str]) -> Mapping[str, Vectors]:
        from stentor.domains.memory.index.dense import store

        return await self._tables.read(lambda tx: store.known(tx, self._identity, hashes))

    async def keep(self, document: Waiting, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        kept = await self._tables.write(lambda tx: self._keep(tx, document, chunks, vectors))
        if kept:
            self._held.put(document.doc_id, vectors, document.weight, document.created_at)
        return kept

    def _keep(self, tx: Tx, document: Waiting, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        from stentor.domains.memory.index.dense import store

        return store.keep(tx, self._identity, document, chunks, vectors)

    async def nearest(self, vector: Vectors, most: int, filters: Filters) -> tuple[list[Near], int]:
        matrix, folder = self._held, filters.folder
        among = None if folder is None else await self._tables.read(lambda tx: _of_folders(tx, folder))
        return await asyncio.to_thread(matrix.nearest, vector, most, filters.weight_min, filters.created_after, among)

    async def similarities(self, vector: Vectors, doc_ids: Iterable[int]) -> dict[int, float]:
        return self._held.similarities(vector, doc_ids)

    async def sweep(self) -> None:
        from stentor.domains.memory.index.dense import store

        await self._tables.write(lambda tx: store.sweep(tx, self._identity))

    def forget(self, tx: Tx, doc_id: int) -> None:
        tx.run(FORGET, doc_id=doc_id)

    def forgotten(self, doc_ids: Iterable[int]) -> None:
        if self._matrix is not None:
            for doc_id in doc_ids:
                self._matrix.forget(doc_id)

    @property
    def _held(self) -> Matrix:
        assert self._matrix is not None, "a model is adopted first"
        return self._matrix


def _matrix(rows: Iterable[Ready], dimensions: int) -> Matrix:
    from stentor.domains.memory.index.dense.matrix import Matrix

    matrix = Matrix(dimensions)
    for _, found in itertools.groupby(rows, key=lambda row: row.doc_id):
        put(matrix, list(found))
    return matrix


def put(matrix: Matrix, rows: Sequence[Ready]) -> None:
    """All chunks of one document."""
    import numpy as np

    matrix.put(rows[0].doc_id, np.stack([row.vector for row in rows]), rows[0].weight, rows[0].created_at)


def _of_folders(tx: Tx, folders: Folders) -> list[int]:
    return [row[0] for folder in listed(folders) for row in tx.rows(_OF_FOLDER, folder=folder)]
