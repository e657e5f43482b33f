"""The vector store of a shared index with pgvector: an HNSW graph for large vaults, exact search for few documents.

Without the extension `shared_vectors` is used instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Params
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index import store
from stentor.domains.memory.index.model import EmbeddingModel, PendingDocument, SearchFilters, VectorHit, folder_list
from stentor.domains.memory.index.postgres import embedding_state
from stentor.domains.memory.index.postgres.embedding_state import EmbeddingClaims
from stentor.domains.memory.index.protocols import IndexDatabase
from stentor_vault.text.markdown import Chunk

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")

EXACT_MAX_DOCUMENTS = 2_000
"""Up to this many documents all are compared: no slower than the graph, and exact."""
MIN_EF_SEARCH, MAX_EF_SEARCH = 100, 1_000
"""Candidates that a graph search considers (hnsw.ef_search); 1,000 is pgvector's maximum."""
MAX_GRAPH_CHUNKS = 8_000
"""Chunks that are requested from the graph before the search falls back to comparing all documents."""
MAX_VECTOR_DIMENSIONS, MAX_HALFVEC_DIMENSIONS = 2_000, 4_000
"""pgvector's limits for a graph over 32-bit and over 16-bit numbers."""
Conditions = tuple[bool, bool, bool, bool]
"""Whether a search has a least weight, a time of creation, folders, and excluded documents."""

_FIND_BY_HASH = Sql("select distinct on (hash) hash, embedding::real[] from chunks where hash = any(:hashes)")
_MARK_EMBEDDED = Sql(
    """update documents set model = :identity, pieces = :pieces
    where doc_id = :doc_id and raw_hash = :raw_hash and model is null"""
)
_LIST_CHUNKS = Sql("select ordinal, heading, hash from chunks where doc_id = :doc_id")
_SET_NO_PIECES = Sql("update documents set pieces = 0 where doc_id = :doc_id and pieces > 0")
_DELETE_CHUNK = Sql("delete from chunks where doc_id = :doc_id and ordinal = :ordinal")
_INSERT_CHUNK = Sql(
    """insert into chunks (doc_id, ordinal, heading, hash, embedding)
    values (:doc_id, :ordinal, :heading, :hash, :embedding::vector)"""
)
_DELETE_ORPHANS = Sql("delete from chunks c where not exists (select 1 from documents d where d.doc_id = c.doc_id)")
_SIMILARITIES = Sql(
    """select doc_id, max(-(embedding <#> :vector::vector)) from chunks
    where doc_id in (select value::integer from json_array_elements_text(:ids::json)) group by doc_id"""
)
# `true` limits the setting to the transaction.
_SET_EF_SEARCH = Sql("select set_config('hnsw.ef_search', :ef_search, true)")


class PgvectorStore:
    """Implements `VectorStore`. Vectors have length 1, so their inner product is the cosine similarity."""

    TABLES = embedding_state.MODEL_TABLE

    def __init__(self, database: IndexDatabase) -> None:
        self._database = database
        self._claims = EmbeddingClaims()
        self._model: EmbeddingModel | None = None

    async def use_model(self, model: EmbeddingModel) -> None:
        self._model = model
        await self._database.write(self._switch_model)

    async def next_pending(self, limit: int) -> list[PendingDocument]:
        def work(tx: Tx) -> list[PendingDocument]:
            if embedding_state.read_model(tx) is None:
                self._switch_model(tx)  # the schema was dropped and created again while this process ran
            return self._claims.claim(self._check_model(tx), limit)

        return await self._database.write(work)

    async def find_by_hash(self, hashes: Sequence[str]) -> Mapping[str, Vectors]:
        rows = await self._database.read(lambda tx: self._check_model(tx).rows(_FIND_BY_HASH, hashes=list(hashes)))
        return {text_hash: np.asarray(numbers, np.float32) for text_hash, numbers in rows}

    async def save(self, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        rows = [
            {"ordinal": chunk.ordinal, "heading": chunk.heading, "hash": chunk.hash, "embedding": _vector_text(vector)}
            for chunk, vector in zip(chunks, vectors, strict=True)
        ]
        return await self._database.write(lambda tx: self._save(self._check_model(tx), document, rows))

    async def nearest(self, vector: Vectors, limit: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        parameters = {**_filter_parameters(filters), "vector": _vector_text(vector), "limit": limit}
        return await self._database.read(
            lambda tx: _nearest(self._check_model(tx), self._current_model.dimensions, filters, parameters)
        )

    async def similarities(self, vector: Vectors, doc_ids: Iterable[int]) -> dict[int, float]:
        parameters = {"vector": _vector_text(vector), "ids": jsontext.dump(list(doc_ids))}
        return dict(await self._database.read(lambda tx: self._check_model(tx).rows(_SIMILARITIES, **parameters)))

    async def delete_orphans(self) -> None:
        def work(tx: Tx) -> None:
            self._check_model(tx).run(_DELETE_ORPHANS)
            self._claims.delete_expired(tx)

        await self._database.write(work)

    def delete(self, tx: Tx, doc_id: int) -> None:
        """Leave the chunks until `delete_orphans`: equal texts reuse them, so a moved note is not embedded again."""

    def withdraw(self, tx: Tx, doc_id: int) -> None:
        # First the mark: without pieces there may be no table of chunks yet, as no process has had a model.
        if tx.run(_SET_NO_PIECES, doc_id=doc_id):
            store.delete_chunks(tx, doc_id)

    def on_deleted(self, doc_ids: Iterable[int]) -> None:
        """Do nothing: no vectors are held in memory."""

    def _switch_model(self, tx: Tx) -> None:
        if embedding_state.switch_model(tx, self._current_model):
            for statement in _table_statements(self._current_model.dimensions):
                tx.run(Sql(statement))

    def _save(self, tx: Tx, document: PendingDocument, rows: Sequence[Params]) -> bool:
        self._claims.release(tx, document.doc_id)
        state = {"doc_id": document.doc_id, "raw_hash": document.raw_hash}
        # No row: the document was changed, deleted, or embedded by another process whose claim followed an expired one.
        if not tx.run(_MARK_EMBEDDED, identity=self._current_model.identity, pieces=len(rows), **state):
            return False
        _replace_chunks(tx, document.doc_id, rows)
        return True

    @property
    def _current_model(self) -> EmbeddingModel:
        assert self._model is not None, "use_model must be called first"
        return self._model

    def _check_model(self, tx: Tx) -> Tx:
        return embedding_state.require_model(tx, self._current_model)


def _table_statements(dimensions: int) -> list[str]:
    """Return the statements that create the chunk table; it has a graph only if pgvector can index the dimensions."""
    statements = [
        "drop table if exists chunks",
        f"""create table chunks (doc_id integer not null, ordinal integer not null, heading text not null,
            hash text not null, embedding vector({dimensions}) not null, primary key (doc_id, ordinal))""",
        "create index chunks_of_text on chunks (hash)",
    ]
    if dimensions <= MAX_HALFVEC_DIMENSIONS:
        kind = "vector" if dimensions <= MAX_VECTOR_DIMENSIONS else "halfvec"
        statements.append(
            f"create index chunks_near on chunks using hnsw (({_indexed_expression(dimensions)}) {kind}_ip_ops)"
        )
    return statements


def _indexed_expression(dimensions: int) -> str:
    """Return the indexed expression, which a query must repeat literally to use the graph."""
    return "embedding" if dimensions <= MAX_VECTOR_DIMENSIONS else f"embedding::halfvec({dimensions})"


def _replace_chunks(tx: Tx, doc_id: int, rows: Sequence[Params]) -> None:
    """Replace only the chunks that differ: inserting a row into the graph is expensive."""
    new_rows = {(row["ordinal"], row["heading"], row["hash"]): row for row in rows}
    existing = set(tx.rows(_LIST_CHUNKS, doc_id=doc_id))
    for ordinal, _, _ in existing - new_rows.keys():
        tx.run(_DELETE_CHUNK, doc_id=doc_id, ordinal=ordinal)
    tx.many(_INSERT_CHUNK, [{"doc_id": doc_id, **row} for key, row in new_rows.items() if key not in existing])


def _nearest(tx: Tx, dimensions: int, filters: SearchFilters, parameters: Params) -> tuple[list[VectorHit], int]:
    conditions = (
        filters.weight_min is not None,
        filters.created_after is not None,
        filters.folder is not None,
        bool(filters.excluded),
    )
    total = int(tx.rows(_count_statement(*conditions), **parameters)[0][0])
    if filters.similarity_min is not None:
        # If all documents are compared, all are counted; otherwise one more than requested shows whether there are
        # more.
        more = {**parameters, "limit": total if total <= EXACT_MAX_DOCUMENTS else parameters["limit"] + 1}
        hits = [
            hit for hit in _best(tx, dimensions, conditions, more, total) if hit.similarity >= filters.similarity_min
        ]
        return hits[: parameters["limit"]], len(hits)
    return _best(tx, dimensions, conditions, parameters, total), total


def _best(tx: Tx, dimensions: int, conditions: Conditions, parameters: Params, total: int) -> list[VectorHit]:
    """Return the nearest documents; `total` is the number of those that pass the conditions."""
    count = min(total, parameters["limit"])
    # The graph is approximate: if it returns too few documents, all are compared.
    if (
        total > EXACT_MAX_DOCUMENTS
        and dimensions <= MAX_HALFVEC_DIMENSIONS
        and len(hits := _search_graph(tx, dimensions, conditions, parameters, count)) == count
    ):
        return hits
    rows = tx.rows(_exact_statement(*conditions), **parameters)
    return [VectorHit(doc_id, similarity, ordinal) for doc_id, similarity, ordinal in rows]


def _search_graph(tx: Tx, dimensions: int, conditions: Conditions, parameters: Params, count: int) -> list[VectorHit]:
    """Return up to `count` documents, fewer if the graph returns no more.

    Several chunks may belong to one document, so more and more chunks are requested until there are enough documents.
    """
    chunks = 2 * count
    while True:
        tx.row(_SET_EF_SEARCH, ef_search=str(min(MAX_EF_SEARCH, max(MIN_EF_SEARCH, chunks))))
        rows = tx.rows(_graph_statement(dimensions, *conditions), **parameters, chunks=chunks)
        hits: dict[int, VectorHit] = {}
        for doc_id, similarity, ordinal in rows:
            hits.setdefault(doc_id, VectorHit(doc_id, similarity, ordinal))
        if len(hits) >= count or len(rows) < chunks or chunks >= MAX_GRAPH_CHUNKS:
            return list(hits.values())[:count]
        # Each round reads all chunks of the last one again, so few large rounds cost less than many small ones.
        chunks *= 4


def _filter_parameters(filters: SearchFilters) -> Params:
    folders = [] if filters.folder is None else folder_list(filters.folder)
    return {
        "weight": filters.weight_min,
        "after": filters.created_after,
        "folders": folders,
        "excluded": list(filters.excluded),
    }


def _where(weight: bool, after: bool, folder: bool, excluded: bool) -> str:
    """Return the condition for embedded documents that pass the filters that are set."""
    conditions = {
        "d.weight >= :weight": weight,
        "d.created_at > :after": after,
        "d.folder = any(:folders::text[])": folder,
        "d.doc_id not in (select unnest(:excluded::int[]))": excluded,
    }
    return " and ".join(["d.pieces > 0", *(text for text, is_set in conditions.items() if is_set)])


@cache
def _count_statement(weight: bool, after: bool, folder: bool, excluded: bool) -> Sql:
    return Sql(f"select count(*) from documents d where {_where(weight, after, folder, excluded)}")


@cache
def _exact_statement(weight: bool, after: bool, folder: bool, excluded: bool) -> Sql:
    return Sql(
        f"""select doc_id, similarity, ordinal from (
            select distinct on (c.doc_id) c.doc_id, -(c.embedding <#> :vector::vector) as similarity, c.ordinal
            from documents d join chunks c on c.doc_id = d.doc_id where {_where(weight, after, folder, excluded)}
            order by c.doc_id, similarity desc, c.ordinal
        ) best order by similarity desc, doc_id limit :limit"""
    )


@cache
def _graph_statement(dimensions: int, weight: bool, after: bool, folder: bool, excluded: bool) -> Sql:
    kind = "vector" if dimensions <= MAX_VECTOR_DIMENSIONS else f"halfvec({dimensions})"
    distance = f"c.{_indexed_expression(dimensions)} <#> :vector::{kind}"
    return Sql(
        f"""select c.doc_id, -(c.embedding <#> :vector::vector), c.ordinal
        from chunks c join documents d on d.doc_id = c.doc_id where {_where(weight, after, folder, excluded)}
        order by {distance} limit :chunks"""
    )


def _vector_text(vector: Vectors) -> str:
    """Return the vector in pgvector's syntax; nine digits preserve every 32-bit float exactly."""
    return f"[{','.join(f'{number:.9g}' for number in vector.tolist())}]"
