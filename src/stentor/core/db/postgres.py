"""PostgreSQL through psycopg 3, synchronous: the same transactions as plain functions.

A broken connection fails the open work with StoreUnavailable and is opened anew for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from stentor.core.clock import Clock
from stentor.core.db import advisory
from stentor.core.db.driver import Params, Row
from stentor.core.db.journal import Journal, statements
from stentor.core.db.sql import Sql
from stentor.core.errors import StoreUnavailable

_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"The database cannot be used: {error}.") from error


class PostgresConnection:
    def __init__(self, url: str, clock: Clock | None, *, read_only: bool) -> None:
        self._url = url
        self._clock = clock
        self._read_only = read_only
        self._raw = self._connect()

    def _connect(self) -> psycopg.Connection[Row]:
        with _store_errors():
            raw = _connected(self._url)
            raw.execute("set synchronous_commit = on")
            raw.execute("set statement_timeout = '60s'")
            if not self._read_only:
                _serve(raw)
            return raw

    def begin(self) -> int:
        if self._raw.closed or self._raw.broken:
            self._raw = self._connect()
        self.control("begin isolation level repeatable read read only" if self._read_only else "begin")
        if self._clock is not None:
            return self._clock.now()
        with _store_errors():
            row = self._raw.execute(_NOW).fetchone()
        assert row is not None
        return int(row[0])

    def commit(self) -> None:
        self.control("commit")

    def rollback(self) -> None:
        if not self.in_transaction():
            return
        try:
            self._raw.execute("rollback")
        except psycopg.Error:
            self._raw.close()

    def in_transaction(self) -> bool:
        return not self._raw.closed and self._raw.info.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
            TransactionStatus.ACTIVE,
        )

    def control(self, text: str) -> None:
        with _store_errors():
            self._raw.execute(text)

    def run(self, sql: Sql, params: Params) -> int:
        with _store_errors():
            return self._raw.execute(sql.pyformat, params).rowcount

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        with _store_errors(), self._raw.cursor() as cursor:
            cursor.executemany(sql.pyformat, rows)

    def add(self, journal: Journal, rows: list[Row]) -> None:
        with _store_errors():
            for text, values in statements(journal, rows, "%s"):
                self._raw.execute(text, values)

    def rows(self, sql: Sql, params: Params) -> list[Row]:
        with _store_errors():
            cursor: psycopg.Cursor[Any] = self._raw.execute(sql.pyformat, params)
            return cursor.fetchall()

    def close(self) -> None:
        self._raw.close()


def _connected(url: str) -> psycopg.Connection[Row]:
    try:
        return psycopg.connect(url, autocommit=True, connect_timeout=10, fallback_application_name="stentor")
    except psycopg.ProgrammingError as error:
        # Its words may repeat the address.
        raise StoreUnavailable("The address of the database cannot be read by PostgreSQL's client.") from error


def _serve(raw: psycopg.Connection[Row]) -> None:
    """Whoever writes is known to a copy of the database, and comes in only when none is under way."""
    row = raw.execute("select pg_try_advisory_lock_shared(%s)", (advisory.SERVING,)).fetchone()
    if row is None or not row[0]:
        raw.close()
        raise StoreUnavailable(
            "The database is being copied (`stentor db copy`): nobody else may write to it meanwhile."
        )


class PostgresDriver:
    name = "postgresql"
    shared = True

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        self._clock = clock

    def writer(self) -> PostgresConnection:
        return PostgresConnection(self.url, self._clock, read_only=False)

    def reader(self) -> PostgresConnection:
        return PostgresConnection(self.url, self._clock, read_only=True)
