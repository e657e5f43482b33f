"""SQL of chunks and vectors. A vector is kept by model and hash of its text, so that no text is embedded twice."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.dense.vectors import FORGET
from stentor.domains.memory.index.model import Waiting
from stentor.domains.memory.text.chunks import Chunk

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


class Ready(msgspec.Struct, frozen=True):
    """The vector of one chunk, with what its document is filtered by."""

    doc_id: int
    weight: float | None
    created_at: int
    vector: Vector


def waiting(tx: Tx, limit: int) -> list[Waiting]:
    """Documents without vectors: found by an index, however many have theirs."""
    return [Waiting(*row) for row in tx.rows(_WAITING, limit=limit)]


def outdate(tx: Tx, model: str) -> int:
    """Documents with vectors of another model wait for new ones; answers how many. Looks at all documents."""
    return tx.run(_OUTDATE, model=model)


def ready(tx: Tx, model: str) -> list[Ready]:
    """Every chunk that has its vector, in the order of documents and chunks."""
    return [_ready(row) for row in tx.rows(_READY, model=model)]


def ready_of(tx: Tx, model: str, doc_id: int) -> list[Ready]:
    """The same of one document."""
    return [_ready(row) for row in tx.rows(_READY_OF, model=model, doc_id=doc_id)]


def _ready(row: tuple[int, float | None, int, bytes]) -> Ready:
    doc_id, weight, at, raw = row
    return Ready(doc_id, weight, at, np.frombuffer(raw, np.float32))


def known(tx: Tx, model: str, hashes: Sequence[str]) -> dict[str, Vector]:
    found = ((one, tx.row(_KNOWN, model=model, hash=one)) for one in dict.fromkeys(hashes))
    return {one: np.frombuffer(row[0], np.float32) for one, row in found if row is not None}


def keep(tx: Tx, model: str, document: Waiting, chunks: Sequence[Chunk], vectors: Vector) -> bool:
    """The chunks and vectors of a document; False, and nothing kept, when it was changed meanwhile."""
    if not tx.run(_DONE, model=model, doc_id=document.doc_id, raw_hash=document.raw_hash):
        return False
    tx.run(FORGET, doc_id=document.doc_id)
    for chunk, vector in zip(chunks, vectors, strict=True):
        tx.run(_CHUNK, doc_id=document.doc_id, ordinal=chunk.ordinal, heading=chunk.heading, hash=chunk.hash)
        tx.run(_VECTOR, model=model, hash=chunk.hash, vector=vector.tobytes())
    return True


def sweep(tx: Tx, model: str) -> int:
    """Forget vectors that no chunk has any more; answers how many. Looks at all vectors."""
    return tx.run(_SWEEP, model=model)
