"""Which model's vectors the shared index holds. All processes must have the same one; the last that starts decides.

Which process makes the vectors of which document: each takes some of those that wait, for a while.
"""

from __future__ import annotations

from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable
from stentor.domains.memory.index.model import EmbeddingModel, PendingDocument

MODEL_TABLE = "create table model (identity text not null, dimensions integer not null)"
_MODEL = Sql("select identity, dimensions from model")
_FORGET = Sql("delete from model")
_SET = Sql("insert into model (identity, dimensions) values (:identity, :dimensions)")
_OUTDATE_ALL = Sql("update documents set model = null, pieces = 0 where model is not null or pieces > 0")
_OUTDATE = Sql("update documents set model = null, pieces = 0 where model <> :identity")


def read_model(tx: Tx) -> EmbeddingModel | None:
    row = tx.row(_MODEL)
    return EmbeddingModel(*row) if row else None


def switch_model(tx: Tx, model: EmbeddingModel) -> bool:
    """Documents with vectors of another model wait for new ones; answers whether the index held another, or none."""
    if read_model(tx) == model:
        tx.run(_OUTDATE, identity=model.identity)
        return False
    tx.run(_OUTDATE_ALL)
    tx.run(_FORGET)
    tx.run(_SET, identity=model.identity, dimensions=model.dimensions)
    return True


def require_model(tx: Tx, model: EmbeddingModel) -> Tx:
    """Raises EmbeddingUnavailable when the vectors are not this model's."""
    found = read_model(tx)
    if found != model:
        theirs = f"vectors of the model {found.identity}" if found else "no vectors yet"
        raise EmbeddingUnavailable(
            f"The shared index holds {theirs}, and this process has the model {model.identity}. All processes must have"
            " the same one: start this one again with it."
        )
    return tx


CLAIM_TTL_US = 60 * SECOND
"""After which a document is free again whose process made no vectors: it was killed, or its model is away."""

_FREE = Sql(
    """select d.doc_id, d.path, d.title, d.body, d.weight, d.created_at, d.modified_at, d.raw_hash from documents d
    where d.model is null and not exists (
        select 1 from claims c
        where c.doc_id = d.doc_id and c.raw_hash = d.raw_hash and c.holder <> :holder and c.until > :now)
    order by d.size, d.doc_id limit :most"""
)
_TAKE = Sql(
    """insert into claims (doc_id, raw_hash, holder, until) values (:doc_id, :raw_hash, :holder, :until)
    on conflict (doc_id) do update
    set raw_hash = excluded.raw_hash, holder = excluded.holder, until = excluded.until"""
)
_END = Sql("delete from claims where doc_id = :doc_id")
_SWEEP = Sql("delete from claims where until <= :now")


class EmbeddingClaims:
    """Of one process. A claim is for one state of a document: a newer state is free."""

    def __init__(self) -> None:
        self._holder = ids.new_id()

    def claim(self, tx: Tx, most: int) -> list[PendingDocument]:
        """Documents that nobody else is at, now this process's."""
        found = [PendingDocument(*row) for row in tx.rows(_FREE, holder=self._holder, now=tx.now, most=most)]
        claims = [(one.doc_id, one.raw_hash) for one in found]
        until = tx.now + CLAIM_TTL_US
        tx.many(
            _TAKE, ({"doc_id": n, "raw_hash": state, "holder": self._holder, "until": until} for n, state in claims)
        )
        return found

    def release(self, tx: Tx, doc_id: int) -> None:
        tx.run(_END, doc_id=doc_id)

    def delete_expired(self, tx: Tx) -> None:
        """Forget those that are over, whose documents are gone."""
        tx.run(_SWEEP, now=tx.now)
