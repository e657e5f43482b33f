"""Which process makes the vectors of which document: each takes some of those that wait, for a while."""

from __future__ import annotations

from stentor.core import ids
from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.model import Waiting

HELD = 60 * SECOND
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


class Claims:
    """Of one process. A claim is for one state of a document: a newer state is free."""

    def __init__(self) -> None:
        self._holder = ids.new_id()

    def take(self, tx: Tx, most: int) -> list[Waiting]:
        """Documents that nobody else is at, now this process's."""
        found = [Waiting(*row) for row in tx.rows(_FREE, holder=self._holder, now=tx.now, most=most)]
        claims = [(one.doc_id, one.raw_hash) for one in found]
        until = tx.now + HELD
        tx.many(
            _TAKE, ({"doc_id": n, "raw_hash": state, "holder": self._holder, "until": until} for n, state in claims)
        )
        return found

    def end(self, tx: Tx, doc_id: int) -> None:
        tx.run(_END, doc_id=doc_id)

    def sweep(self, tx: Tx) -> None:
        """Forget those that are over, whose documents are gone."""
        tx.run(_SWEEP, now=tx.now)
