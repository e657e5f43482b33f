"""Which model's vectors the shared index holds. All processes must have the same one; the last that starts decides."""

from __future__ import annotations

from stentor.core.db import Sql, Tx
from stentor.domains.memory.embedding.model import EmbeddingUnavailable
from stentor.domains.memory.index.model import Model

TABLE = "create table model (identity text not null, dimensions integer not null)"
_MODEL = Sql("select identity, dimensions from model")
_FORGET = Sql("delete from model")
_SET = Sql("insert into model (identity, dimensions) values (:identity, :dimensions)")
_OUTDATE_ALL = Sql("update documents set model = null, pieces = 0 where model is not null or pieces > 0")
_OUTDATE = Sql("update documents set model = null, pieces = 0 where model <> :identity")


def held(tx: Tx) -> Model | None:
    row = tx.row(_MODEL)
    return Model(*row) if row else None


def adopt(tx: Tx, model: Model) -> bool:
    """Documents with vectors of another model wait for new ones; answers whether the index held another, or none."""
    if held(tx) == model:
        tx.run(_OUTDATE, identity=model.identity)
        return False
    tx.run(_OUTDATE_ALL)
    tx.run(_FORGET)
    tx.run(_SET, identity=model.identity, dimensions=model.dimensions)
    return True


def check(tx: Tx, model: Model) -> Tx:
    """Raises EmbeddingUnavailable when the vectors are not this model's."""
    found = held(tx)
    if found != model:
        theirs = f"vectors of the model {found.identity}" if found else "no vectors yet"
        raise EmbeddingUnavailable(
            f"The shared index holds {theirs}, and this process has the model {model.identity}. All processes must have"
            " the same one: start this one again with it."
        )
    return tx
