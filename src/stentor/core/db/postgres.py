"""PostgreSQL through psycopg 3, synchronous: the same transactions as plain functions.

A broken connection fails the open work with StoreUnavailable and is opened anew for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from stentor.core.clock import Clock
from stentor.core.db.driver import Params, Row
from stentor.core.db.journal import Journal, statements
from stentor.core.db.sql import Sql
from stentor.core.errors import StoreUnavailable

_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"


class TableMissing(StoreUnavailable):
    """A table was dropped while the service ran."""


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"The database cannot be used: {error}.") from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise TableMissing(f"The database lacks a table: {error}.") from error


class PostgresConnection:
    def __init__(self, url: str, clock: Clock | None, session: Sequence[str], *, read_only: bool) -> None:
        self._url = url
        self._clock = clock
        self._session = session
        self._read_only = read_only
        self._raw = self._connect()

    def _connect(self) -> psycopg.Connection[Row]:
        with _store_errors():
            raw = psycopg.connect(self._url, autocommit=True, connect_timeout=10)
            raw.execute("set synchronous_commit = on")
            raw.execute("set statement_timeout = '60s'")
            for statement in self._session:
                raw.execute(statement)
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


class PostgresDriver:
    """`session` are statements that each new connection begins with."""

    name = "postgresql"
    shared = True

    def __init__(self, url: str, clock: Clock | None = None, session: Sequence[str] = ()) -> None:
        self.url = url
        self._clock = clock
        self._session = session

    def writer(self) -> PostgresConnection:
        return PostgresConnection(self.url, self._clock, self._session, read_only=False)

    def reader(self) -> PostgresConnection:
        return PostgresConnection(self.url, self._clock, self._session, read_only=True)
