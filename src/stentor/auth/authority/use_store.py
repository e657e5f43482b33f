"""SQL of the uses of receipts and proofs, by which a second use is recognized."""

from __future__ import annotations

from stentor.core.db import Sql, Tx

_INSERT = Sql(
    "insert into authority_uses (use_hash, expires_at) values (:use_hash, :expires_at) "
    "on conflict (use_hash) do nothing"
)
_FIND = Sql("select 1 from authority_uses where use_hash = :use_hash")
_DELETE_EXPIRED = Sql("delete from authority_uses where expires_at <= :before")


def insert_use(tx: Tx, use_hash: str, expires_at: int) -> bool:
    """Store a use until `expires_at` (microseconds); False if it is stored already."""
    return tx.run(_INSERT, use_hash=use_hash, expires_at=expires_at) == 1


def has_use(tx: Tx, use_hash: str) -> bool:
    return tx.row(_FIND, use_hash=use_hash) is not None


def delete_expired(tx: Tx, before: int) -> None:
    """Delete the uses that expired before a time in microseconds."""
    tx.run(_DELETE_EXPIRED, before=before)
