"""Vectors in pgvector: HNSW for the many, exact search where the filters leave few."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.index.model import EmbeddingModel, PendingDocument, SearchFilters, VectorHit, folder_list
from stentor.domains.memory.index.postgres import embedding_state
from stentor.domains.memory.index.postgres.embedding_state import EmbeddingClaims
from stentor.domains.memory.index.protocols import IndexDatabase
from stentor.domains.memory.text.markdown import Chunk

EXACT_MAX_DOCUMENTS = 2_000
"""Documents up to which all are compared: that takes no longer than the graph, and misses none."""
MIN_EF_SEARCH, MAX_EF_SEARCH = 100, 1_000
"""Candidates that a search of the graph holds; pgvector allows no more."""
MAX_GRAPH_CHUNKS = 8_000
"""Asked of the graph at most, before all documents are compared instead."""

_KNOWN = Sql("select distinct on (hash) hash, embedding::real[] from chunks where hash = any(:hashes)")
_DONE = Sql(
    """update documents set model = :identity, pieces = :pieces
    where doc_id = :doc_id and raw_hash = :raw_hash and model is null"""
)
_HELD = Sql("select ordinal, heading, hash from chunks where doc_id = :doc_id")
_DROP = Sql("delete from chunks where doc_id = :doc_id and ordinal = :ordinal")
_ADD = Sql(
    """insert into chunks (doc_id, ordinal, heading, hash, embedding)
    values (:doc_id, :ordinal, :heading, :hash, :embedding::vector)"""
)
_SWEEP = Sql("delete from chunks c where not exists (select 1 from documents d where d.doc_id = c.doc_id)")
_ALIKE = Sql(
    """select doc_id, max(-(embedding <#> :vector::vector)) from chunks
    where doc_id in (select value::integer from json_array_elements_text(:ids::json)) group by doc_id"""
)
_BREADTH = Sql("select set_config('hnsw.ef_search', :breadth, true)")


class PgvectorStore:
    """Implements the port `VectorStore`. Vectors have length 1, so their inner product is their cosine."""

    TABLES = embedding_state.MODEL_TABLE

    def __init__(self, tables: IndexDatabase) -> None:
        self._database = tables
        self._claims = EmbeddingClaims()
        self._model: EmbeddingModel | None = None

    async def use_model(self, model: EmbeddingModel) -> None:
        self._model = model
        await self._database.write(self._adopt)

    def _adopt(self, tx: Tx) -> None:
        if embedding_state.switch_model(tx, self._current_model):
            for statement in _tables(self._current_model.dimensions):
                tx.run(Sql(statement))

    async def next_pending(self, most: int) -> list[PendingDocument]:
        def work(tx: Tx) -> list[PendingDocument]:
            if embedding_state.read_model(tx) is None:
                self._adopt(tx)  # the schema was dropped meanwhile
            return self._claims.claim(self._check(tx), most)

        return await self._database.write(work)

    async def find_by_hash(self, hashes: Sequence[str]) -> Mapping[str, Vectors]:
        import numpy as np

        rows = await self._database.read(lambda tx: self._check(tx).rows(_KNOWN, hashes=list(hashes)))
        return {found: np.asarray(numbers, np.float32) for found, numbers in rows}

    async def save(self, document: PendingDocument, chunks: Sequence[Chunk], vectors: Vectors) -> bool:
        rows = [
            {"ordinal": chunk.ordinal, "heading": chunk.heading, "hash": chunk.hash, "embedding": _text(vector)}
            for chunk, vector in zip(chunks, vectors, strict=True)
        ]
        return await self._database.write(lambda tx: self._save(self._check(tx), document, rows))

    def _save(self, tx: Tx, document: PendingDocument, rows: list[dict[str, Any]]) -> bool:
        self._claims.release(tx, document.doc_id)
        done = {"doc_id": document.doc_id, "raw_hash": document.raw_hash}
        if not tx.run(_DONE, identity=self._current_model.identity, pieces=len(rows), **done):
            return False
        _replace(tx, document.doc_id, rows)
        return True

    async def nearest(self, vector: Vectors, most: int, filters: SearchFilters) -> tuple[list[VectorHit], int]:
        asked = {**_asked(filters), "vector": _text(vector), "most": most}
        return await self._database.read(
            lambda tx: _nearest(self._check(tx), self._current_model.dimensions, filters, asked)
        )

    async def similarities(self, vector: Vectors, doc_ids: Iterable[int]) -> dict[int, float]:
        asked = {"vector": _text(vector), "ids": jsontext.dump(list(doc_ids))}
        return dict(await self._database.read(lambda tx: self._check(tx).rows(_ALIKE, **asked)))

    async def delete_orphans(self) -> None:
        def work(tx: Tx) -> None:
            self._check(tx).run(_SWEEP)
            self._claims.delete_expired(tx)

        await self._database.write(work)

    def delete(self, tx: Tx, doc_id: int) -> None:
        """Chunks stay for texts like theirs until they are swept: a note that is moved needs no new vectors."""

    def on_deleted(self, doc_ids: Iterable[int]) -> None:
        pass

    @property
    def _current_model(self) -> EmbeddingModel:
        assert self._model is not None, "a model is adopted first"
        return self._model

    def _check(self, tx: Tx) -> Tx:
        return embedding_state.require_model(tx, self._current_model)


def _tables(dimensions: int) -> list[str]:
    """A graph takes 2,000 numbers of 32 bits, or 4,000 of 16; above that there is none, and all are compared."""
    made = [
        "drop table if exists chunks",
        f"""create table chunks (doc_id integer not null, ordinal integer not null, heading text not null,
            hash text not null, embedding vector({dimensions}) not null, primary key (doc_id, ordinal))""",
        "create index chunks_of_text on chunks (hash)",
    ]
    if dimensions <= 4_000:
        kind = "vector" if dimensions <= 2_000 else "halfvec"
        made.append(f"create index chunks_near on chunks using hnsw (({_graph(dimensions)}) {kind}_ip_ops)")
    return made


def _graph(dimensions: int) -> str:
    return "embedding" if dimensions <= 2_000 else f"embedding::halfvec({dimensions})"


def _replace(tx: Tx, doc_id: int, rows: list[dict[str, Any]]) -> None:
    """What is as it was stays: every row that is written has to find its place in the graph."""
    wanted = {(row["ordinal"], row["heading"], row["hash"]): row for row in rows}
    held = set(tx.rows(_HELD, doc_id=doc_id))
    for ordinal, _, _ in held - wanted.keys():
        tx.run(_DROP, doc_id=doc_id, ordinal=ordinal)
    tx.many(_ADD, [{"doc_id": doc_id, **row} for key, row in wanted.items() if key not in held])


def _nearest(tx: Tx, dimensions: int, filters: SearchFilters, asked: dict[str, Any]) -> tuple[list[VectorHit], int]:
    kind = (filters.weight_min is not None, filters.created_after is not None, filters.folder is not None)
    total = int(tx.rows(_count(*kind), **asked)[0][0])
    wanted = min(total, asked["most"])
    if (
        total > EXACT_MAX_DOCUMENTS
        and dimensions <= 4_000
        and len(found := _by_graph(tx, dimensions, kind, asked, wanted)) == wanted
    ):
        return found, total
    return [VectorHit(n, s, o) for n, s, o in tx.rows(_exact(*kind), **asked)], total


def _by_graph(
    tx: Tx, dimensions: int, kind: tuple[bool, bool, bool], asked: dict[str, Any], wanted: int
) -> list[VectorHit]:
    """Asks for more chunks until they are of enough documents; fewer when the graph gives no more."""
    chunks = 2 * wanted
    while True:
        tx.row(_BREADTH, breadth=str(min(MAX_EF_SEARCH, max(MIN_EF_SEARCH, chunks))))
        rows = tx.rows(_graphed(dimensions, *kind), **asked, chunks=chunks)
        found: dict[int, VectorHit] = {}
        for doc_id, similarity, ordinal in rows:
            found.setdefault(doc_id, VectorHit(doc_id, similarity, ordinal))
        if len(found) >= wanted or len(rows) < chunks or chunks >= MAX_GRAPH_CHUNKS:
            return list(found.values())[:wanted]
        chunks *= 4


def _asked(filters: SearchFilters) -> dict[str, Any]:
    folders = [] if filters.folder is None else folder_list(filters.folder)
    return {"weight": filters.weight_min, "after": filters.created_after, "folders": folders}


def _passing(weight: bool, after: bool, folder: bool) -> str:
    conditions = {
        "d.weight >= :weight": weight,
        "d.created_at > :after": after,
        "d.folder = any(:folders::text[])": folder,
    }
    return " and ".join(["d.pieces > 0", *(text for text, given in conditions.items() if given)])


@cache
def _count(weight: bool, after: bool, folder: bool) -> Sql:
    return Sql(f"select count(*) from documents d where {_passing(weight, after, folder)}")


@cache
def _exact(weight: bool, after: bool, folder: bool) -> Sql:
    return Sql(
        f"""select doc_id, similarity, ordinal from (
            select distinct on (c.doc_id) c.doc_id, -(c.embedding <#> :vector::vector) as similarity, c.ordinal
            from documents d join chunks c on c.doc_id = d.doc_id where {_passing(weight, after, folder)}
            order by c.doc_id, similarity desc, c.ordinal
        ) best order by similarity desc, doc_id limit :most"""
    )


@cache
def _graphed(dimensions: int, weight: bool, after: bool, folder: bool) -> Sql:
    kind = "vector" if dimensions <= 2_000 else f"halfvec({dimensions})"
    distance = f"c.{_graph(dimensions)} <#> :vector::{kind}"
    return Sql(
        f"""select c.doc_id, -(c.embedding <#> :vector::vector), c.ordinal
        from chunks c join documents d on d.doc_id = c.doc_id where {_passing(weight, after, folder)}
        order by {distance} limit :chunks"""
    )


def _text(vector: Vectors) -> str:
    """As pgvector reads it, every bit of it."""
    return f"[{','.join(f'{number:.9g}' for number in vector.tolist())}]"
