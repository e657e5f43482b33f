"""Two tables that the processes of a shared index coordinate embedding with.

`model`: the one embedding model whose vectors the index holds; the process that started last decides. `claims`: which
process is embedding which document, as a lease, so that no document is embedded twice.
"""

from __future__ import annotations

from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable
from stentor.domains.memory.index.model import EmbeddingModel, PendingDocument

CLAIM_TTL_US = 60 * SECOND
"""Lease of a claim: after it others may embed the document, because the process was killed or its model failed."""
MODEL_TABLE = "create table model (identity text not null, dimensions integer not null)"

_READ_MODEL = Sql("select identity, dimensions from model")
_DELETE_MODEL = Sql("delete from model")
_INSERT_MODEL = Sql("insert into model (identity, dimensions) values (:identity, :dimensions)")
_INVALIDATE_ALL = Sql("update documents set model = null, pieces = 0 where model is not null or pieces > 0")
_INVALIDATE_OTHER_MODELS = Sql("update documents set model = null, pieces = 0 where model <> :identity")
# A process may take its own claims again: otherwise it would wait for them to expire after a failed batch.
_LIST_UNCLAIMED = Sql(
    """select d.doc_id, d.path, d.title, d.body, d.weight, d.created_at, d.modified_at, d.raw_hash from documents d
    where d.model is null and not exists (
        select 1 from claims c
        where c.doc_id = d.doc_id and c.raw_hash = d.raw_hash and c.holder <> :holder and c.until > :now)
    order by d.size, d.doc_id limit :limit"""
)
_CLAIM = Sql(
    """insert into claims (doc_id, raw_hash, holder, until) values (:doc_id, :raw_hash, :holder, :until)
    on conflict (doc_id) do update
    set raw_hash = excluded.raw_hash, holder = excluded.holder, until = excluded.until"""
)
_RELEASE = Sql("delete from claims where doc_id = :doc_id")
_DELETE_EXPIRED = Sql("delete from claims where until <= :now")


def read_model(tx: Tx) -> EmbeddingModel | None:
    row = tx.row(_READ_MODEL)
    return EmbeddingModel(*row) if row else None


def switch_model(tx: Tx, model: EmbeddingModel) -> bool:
    """Make documents with vectors of another model pending; return whether the index had another model, or none."""
    if read_model(tx) == model:
        tx.run(_INVALIDATE_OTHER_MODELS, identity=model.identity)
        return False
    tx.run(_INVALIDATE_ALL)
    tx.run(_DELETE_MODEL)
    tx.run(_INSERT_MODEL, identity=model.identity, dimensions=model.dimensions)
    return True


def require_model(tx: Tx, model: EmbeddingModel) -> Tx:
    """Return the transaction if the index has this model's vectors, else raise EmbeddingUnavailable.

    Call it in each transaction that reads or writes vectors: another process may have switched the model since.
    """
    indexed_model = read_model(tx)
    if indexed_model != model:
        content = f"vectors of the model {indexed_model.identity}" if indexed_model else "no vectors yet"
        raise EmbeddingUnavailable(
            f"The shared index holds {content}, but this process uses the model {model.identity}. All processes must"
            " use the same model: restart this one with it."
        )
    return tx


class EmbeddingClaims:
    """The claims of one process. A claim covers one version of a document: a newer version is free."""

    def __init__(self) -> None:
        self._holder = ids.new_id()

    def claim(self, tx: Tx, limit: int) -> list[PendingDocument]:
        """Claim and return pending documents that no other process is embedding, shortest first."""
        rows = tx.rows(_LIST_UNCLAIMED, holder=self._holder, now=tx.now, limit=limit)
        pending = [PendingDocument(*row) for row in rows]
        until = tx.now + CLAIM_TTL_US
        tx.many(
            _CLAIM,
            (
                {"doc_id": document.doc_id, "raw_hash": document.raw_hash, "holder": self._holder, "until": until}
                for document in pending
            ),
        )
        return pending

    def release(self, tx: Tx, doc_id: int) -> None:
        tx.run(_RELEASE, doc_id=doc_id)

    def delete_expired(self, tx: Tx) -> None:
        """Delete expired claims, which remain when their documents were deleted."""
        tx.run(_DELETE_EXPIRED, now=tx.now)
