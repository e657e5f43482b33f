"""The vector store of a single process: tables for the vectors, and all of them in memory for the search.

The matrix and the SQL are in `vector_matrix`, which is imported late: it loads NumPy.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from stentor.core.db import RowsSql, Tx
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index import store
from stentor.domains.memory.index.model import (
    EmbeddingModel,
    Folders,
    PendingDocument,
    SearchFilters,
    VectorHit,
    folder_list,
)
from stentor.domains.memory.index.protocols import IndexDatabase
from stentor_vault.text.markdown import Chunk

if TYPE_CHECKING:
    from stentor.domains.memory.index.sqlite import vector_matrix
    from stentor.domains.memory.index.sqlite.vector_matrix import ChunkVector, VectorMatrix
else:
    # Only needed when there is an embedding model.
    vector_matrix = lazy_module("stentor.domains.memory.index.sqlite.vector_matrix")

ADDED_CHUNKS = 1_000
"""Vectors that are put into memory together: one by one they take three times as long."""
_IDS_IN_FOLDERS = RowsSql(("folder",), "select doc_id from given join documents on documents.folder = given.folder")


class InMemoryVectorStore:
    """Implements `VectorStore` with exact search."""

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database
        self._model: EmbeddingModel | None = None
        self._matrix: VectorMatrix | None = None

    @property
    def _current_model(self) -> EmbeddingModel:
        assert self._model is not None, "use_model must be called first"
        return self._model

    @property
    def _identity(self) -> str:
        return self._current_model.identity

    async def use_model(self, model: EmbeddingModel) -> None:
        self._model = model
        await self._database.write(self._invalidate)
        await self._reload()

    def _invalidate(self, tx: Tx) -> None:
        vector_matrix.invalidate_other_models(tx, self._identity)

    async def _reload(self) -> None:
        self._matrix = await self._database.read(self._load)

    def _load(self, tx: Tx) -> VectorMatrix:
        return _build_matrix(vector_matrix.iter_vectors(tx, self._identity), self._current_model.dimensions)

    async def next_pending(self, limit: int) -> list[PendingDocument]:
        return await self._database.read(lambda tx: vector_matrix.list_pending(tx, limit))

    async def find_by_hash(self, hashes: Sequence[str]) -> Mapping[str, Vectors]:
        return await self._database.read(lambda tx: vector_matrix.find_by_hash(tx, self._identity, hashes))

    async def save(self, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        saved = await self._database.write(lambda tx: self._save(tx, document, chunks, vectors))
        if saved:  # after the commit, so that the matrix never has what the tables lack
            self._loaded_matrix.upsert(document.doc_id, vectors, document.weight, document.created_at)
        return saved

    def _save(self, tx: Tx, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        return vector_matrix.save_vectors(tx, self._identity, document, chunks, vectors)

    async def nearest(self, vector: Vectors, limit: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        matrix, folder = self._loaded_matrix, filters.folder
        doc_ids = None if folder is None else await self._database.read(lambda tx: _ids_in_folders(tx, folder))
        return await asyncio.to_thread(matrix.nearest, vector, limit, filters, doc_ids)

    async def similarities(self, vector: Vectors, doc_ids: Iterable[int]) -> dict[int, float]:
        return self._loaded_matrix.similarities(vector, doc_ids)

    async def delete_orphans(self) -> None:
        await self._database.write(lambda tx: vector_matrix.delete_orphans(tx, self._identity))

    def delete(self, tx: Tx, doc_id: int) -> None:
        store.delete_chunks(tx, doc_id)

    def withdraw(self, tx: Tx, doc_id: int) -> None:
        self.delete(tx, doc_id)

    def on_deleted(self, doc_ids: Iterable[int]) -> None:
        if self._matrix is not None:  # notes may be deleted before a model is loaded
            for doc_id in doc_ids:
                self._matrix.delete(doc_id)

    @property
    def _loaded_matrix(self) -> VectorMatrix:
        assert self._matrix is not None, "use_model must be called first"
        return self._matrix


def _build_matrix(rows: Iterable[ChunkVector], dimensions: int) -> VectorMatrix:
    matrix = vector_matrix.VectorMatrix(dimensions)
    batch: list[ChunkVector] = []
    for _, document_rows in itertools.groupby(rows, key=lambda row: row.doc_id):
        batch += document_rows
        if len(batch) >= ADDED_CHUNKS:
            matrix.add(batch)
            batch = []
    matrix.add(batch)
    return matrix


def _ids_in_folders(tx: Tx, folders: Folders) -> list[int]:
    return [doc_id for (doc_id,) in tx.rows_for(_IDS_IN_FOLDERS, [(folder,) for folder in folder_list(folders)])]
