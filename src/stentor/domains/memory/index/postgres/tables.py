"""Transactions over the index's schema, one writer at a time among all processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.leader import INDEX_LOCK_ID
from stentor.core.db.postgres import TableMissing

T = TypeVar("T")
log = logging.getLogger(__name__)

LOCK = Sql("select pg_advisory_xact_lock(:lock)")


class SharedTables:
    """Implements the port `Store`. A schema that was dropped is made anew, empty, by whoever misses it first.

    Writes wait for each other, as they do in one process. They are short, and two processes that index the same
    notes at the same time can neither deadlock nor insert a note twice.
    """

    def __init__(self, database: Database, make: Callable[[Tx], None]) -> None:
        self._database = database
        self._make = make

    async def read(self, fn: Callable[[Tx], T]) -> T:
        try:
            return await self._database.read(fn)
        except TableMissing:
            await self._make_anew()
            raise

    async def write(self, fn: Callable[[Tx], T]) -> T:
        try:
            return await self._database.write(lambda tx: _locked(tx, fn))
        except TableMissing:
            await self._make_anew()
            raise

    async def _make_anew(self) -> None:
        log.warning("the tables of the search index are gone: they are made anew")
        await self._database.write(lambda tx: _locked(tx, self._make))

    def close(self) -> None:
        self._database.close()


def _locked(tx: Tx, fn: Callable[[Tx], T]) -> T:
    tx.row(LOCK, lock=INDEX_LOCK_ID)
    return fn(tx)
