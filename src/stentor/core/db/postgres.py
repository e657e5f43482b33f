"""PostgreSQL through psycopg 3, synchronous: the same transactions as plain functions.

A broken connection fails the open work and is opened anew for the next. A process that stands still in the middle of a
transaction is thrown out by the server, so that nobody waits for its locks for longer than a few seconds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from stentor.core.clock import Clock
from stentor.core.db import locks as advisory
from stentor.core.db.driver import AppendOnlyTable, Locks, Params, Row, Sql, insert_statements
from stentor.core.errors import StoreConflict, StoreUnavailable

IDLE_IN_TRANSACTION_SECONDS = 10
"""How long a transaction may wait for its own process."""

_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
_VIEW = f"begin isolation level repeatable read read only; {_NOW}"
_CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "stentor",
}
# A statement that is planned while its table is empty would read all of it later, until somebody analyzes it.
_SESSION = (
    "set synchronous_commit = on; set statement_timeout = '60s'; set enable_seqscan = off; set jit = off; "
    f"set idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_SECONDS}s'"
)
_AGAIN = frozenset(("40001", "40P01", "55P03", "25P03"))
"""Serialization failure, deadlock, lock not to be had, thrown out for standing still: nothing was written."""
_SPACE, _NAMES = 7_305_000, 7_305_002
"""Advisory locks of ours: one for everything, and one for each name."""


class TableMissing(StoreUnavailable):
    """A table was dropped while the service ran."""


class PostgresConnection:
    def __init__(
        self,
        url: str,
        clock: Clock | None,
        session_statements: Sequence[str] = (),
        lock_space: int = _SPACE,
        *,
        read_only: bool,
    ) -> None:
        self._url = url
        self._clock = clock
        self._session = session_statements
        self._space = lock_space
        self._read_only = read_only
        self._raw = self._connect()
        self._held: set[int] | None = set()

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            raw = psycopg.connect(self._url, autocommit=True, **_options(self._url))
            raw.execute(_SESSION)
            for statement in self._session:
                raw.execute(statement)
            if not self._read_only:
                _serve(raw)
        except psycopg.OperationalError as error:
            raise _unavailable(error) from error
        except psycopg.ProgrammingError as error:
            # Its words may repeat the address.
            raise StoreUnavailable("The address of the database cannot be read by PostgreSQL's client.") from error
        return raw

    def begin(self, locks: Locks = ()) -> int:
        if self._raw.closed or self._raw.broken:
            self._raw = self._connect()
        with self._store_errors():
            cursor = self._raw.execute(_VIEW if self._read_only else self._beginning(locks), prepare=False)
            while cursor.nextset():
                pass
            row = cursor.fetchone()
        assert row is not None
        return int(row[0]) if self._clock is None else self._clock.now()

    def _beginning(self, locks: Locks) -> str:
        """All or nothing is shared; names in the order of their numbers, so that nobody waits in a circle. One message
        and no pipeline: after one, PostgreSQL does not throw out who stands still.
        """
        self._held = None if locks is None else {_number(name) for name in locks}
        if self._held is None:
            return f"begin; select pg_advisory_xact_lock({self._space}); {_NOW}"
        every = "".join(f"select pg_advisory_xact_lock({_NAMES}, {number}); " for number in sorted(self._held))
        return f"begin; select pg_advisory_xact_lock_shared({self._space}); {every}{_NOW}"

    def lock(self, name: str) -> bool:
        number = _number(name)
        if self._held is None or number in self._held:
            return True
        with self._store_errors():
            row = self._raw.execute(f"select pg_try_advisory_xact_lock({_NAMES}, %s)", (number,)).fetchone()
        if row is None or not row[0]:
            return False
        self._held.add(number)
        return True

    def commit(self) -> None:
        """What became of a commit whose connection broke cannot be known, so that is no StoreConflict."""
        try:
            self._raw.execute("commit")
        except psycopg.Error as error:
            if error.sqlstate in _AGAIN:
                raise StoreConflict(_unavailable(error).message) from error
            raise _unavailable(error) from error

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
        with self._store_errors():
            self._raw.execute(text)

    def run(self, sql: Sql, params: Params) -> int:
        with self._store_errors():
            return self._raw.execute(sql.pyformat, params).rowcount

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        """One after the other: psycopg's executemany is a pipeline, for which see `_beginning`."""
        with self._store_errors():
            for row in rows:
                self._raw.execute(sql.pyformat, row)

    def add(self, journal: AppendOnlyTable, rows: list[Row]) -> None:
        with self._store_errors():
            for text, values in insert_statements(journal, rows, "%s"):
                self._raw.execute(text, values)

    def rows(self, sql: Sql, params: Params) -> list[Row]:
        with self._store_errors():
            cursor: psycopg.Cursor[Any] = self._raw.execute(sql.pyformat, params)
            return cursor.fetchall()

    def close(self) -> None:
        self._raw.close()

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Constraint and programming errors stay what they are: they are bugs or races, not outages."""
        try:
            yield
        except psycopg.Error as error:
            if error.sqlstate in _AGAIN or self._raw.closed:
                raise StoreConflict(_unavailable(error).message) from error
            if isinstance(error, psycopg.OperationalError):
                raise _unavailable(error) from error
            if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
                raise TableMissing(f"The database lacks a table: {error}.") from error
            raise


def _number(name: str) -> int:
    return zlib.crc32(name.encode()) - 2**31


def _unavailable(error: psycopg.Error) -> StoreUnavailable:
    return StoreUnavailable(f"The database cannot be used: {str(error).rstrip('.')}.")


def _options(url: str) -> dict[str, Any]:
    """Ours, unless the address says otherwise."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    return {name: value for name, value in _CONNECT.items() if name not in given}


def _serve(raw: psycopg.Connection[Row]) -> None:
    """Whoever writes is known to a copy of the database, and comes in only when none is under way."""
    row = raw.execute("select pg_try_advisory_lock_shared(%s)", (advisory.SERVING_LOCK_ID,)).fetchone()
    if row is None or not row[0]:
        raw.close()
        raise StoreUnavailable(
            "The database is being copied (`stentor db copy`): nobody else may write to it meanwhile."
        )


class PostgresDriver:
    """`session` are statements that each new connection begins with; `space` is the lock of a transaction that is
    alone: tables that nobody changes together with others have one of their own.
    """

    name = "postgresql"
    shared = True

    def __init__(
        self, url: str, clock: Clock | None = None, session_statements: Sequence[str] = (), lock_space: int = _SPACE
    ) -> None:
        self.url = url
        self._clock = clock
        self._session = session_statements
        self._space = lock_space

    def writer(self) -> PostgresConnection:
        return PostgresConnection(self.url, self._clock, self._session, self._space, read_only=False)

    def reader(self) -> PostgresConnection:
        return PostgresConnection(self.url, self._clock, self._session, self._space, read_only=True)
