"""What may be presented once is remembered until nobody would take it any more, in the database."""

from __future__ import annotations

from stentor.auth.authority.claims import LEEWAY
from stentor.auth.authority.compact import digest
from stentor.auth.authority.flaw import Flaw
from stentor.core.clock import HOUR, SECOND
from stentor.core.db import Database, Sql, Tx

KEPT_LONGER = HOUR
"""Beyond its end: another process over the same database may have a clock that is behind."""
PURGE_EVERY = 60 * SECOND

_REMEMBER = Sql(
    "insert into authority_uses (use_hash, expires_at) values (:use_hash, :expires_at) "
    "on conflict (use_hash) do nothing"
)
_KNOWN = Sql("select 1 from authority_uses where use_hash = :use_hash")
_FORGET = Sql("delete from authority_uses where expires_at <= :before")


class Replay:
    """Remembers hashes, so that the table tells nothing about receipts."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._purged_at = 0

    async def use(self, kind: str, owner: str, jti: str, until: int, now: int, session: str | None = None) -> None:
        """Count the one use of an id, durably. `until` in seconds, `now` in microseconds of the verifier's clock.

        The id is its owner's, so that nobody uses up another's. With a `session` the first use opens it, and further
        uses in the same session count as that one. Raises Flaw for any other second use, StoreUnavailable when it
        cannot be told.
        """
        use_hash = _hash(kind, owner, jti)
        opened = None if session is None else _hash(f"{kind} in a session", owner, f"{len(jti)}\n{jti}\n{session}")
        expires_at = (until + LEEWAY) * SECOND

        def write(tx: Tx) -> bool:
            if now - self._purged_at >= PURGE_EVERY:
                tx.run(_FORGET, before=now - KEPT_LONGER)
                tx.after_commit(lambda: self._mark(now))
            if tx.run(_REMEMBER, use_hash=use_hash, expires_at=expires_at) == 1:
                if opened is not None:
                    tx.run(_REMEMBER, use_hash=opened, expires_at=expires_at)
                return True
            return opened is not None and tx.row(_KNOWN, use_hash=opened) is not None

        if not await self._db.write(write):
            raise Flaw("it was presented before")

    def _mark(self, now: int) -> None:
        self._purged_at = now


def _hash(kind: str, owner: str, jti: str) -> str:
    return digest(f"{kind}\n{len(owner)}\n{owner}\n{jti}")
