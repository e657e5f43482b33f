"""One connection to PostgreSQL, on psycopg 3 and synchronous, because it runs in the threads of `database`.

A lost connection fails the open transaction; the next one reconnects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg.pq import TransactionStatus

from stentor.core.clock import Clock
from stentor.core.db.driver import Locks, StatementFailed
from stentor.core.db.locks import locks as advisory
from stentor.core.db.postgres.pipeline import MAX_PREPARED, Pipeline, PipelineError
from stentor.core.db.postgres.server_waits import (
    ConnectPause,
    LimitedConnection,
    NoAnswer,
    SilenceLimit,
    connect_options,
)
from stentor.core.db.rows_sql import Insert, RowUpdate, joint_insert_statements
from stentor.core.db.sql import Params, Read, Row, Sql, Statement, as_literal
from stentor.core.errors import StoreConflict, StoreUnavailable

_TIME = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
_NOW = f"select {_TIME}"
# Not the database's default isolation level: what is read under a lock must be newer than the lock.
_BEGIN = "begin isolation level read committed"
_BEGIN_SNAPSHOT = "begin isolation level repeatable read read only"
_RETRYABLE = frozenset(("40001", "40P01", "55P03", "25P03"))
"""Serialization failure, deadlock, lock not available, idle in transaction timeout: nothing was committed."""
_CALLS_AT_ONCE = 64
"""Locks that one statement takes. PostgreSQL limits a select list to 1,664."""
# Without its own session, a writer announces in each transaction that it serves, and checks whether it may.
_NOW_SERVING = f"{_NOW}, pg_try_advisory_xact_lock_shared({advisory.SERVING_LOCK_ID})"
_COPY_RUNS = "The database is being copied (`stentor db copy`). No other process may write to it until the copy ends."
_MISSING_RIGHT = "The service's role must own the tables of its database, or have all rights on them"
_OUTCOME_UNKNOWN = (
    "The connection to the database was lost during the commit, so the change may have been made. Check before you "
    "repeat it, or repeat it with the same Idempotency-Key."
)
_TRY_NAMED_LOCK = as_literal(f"select pg_try_advisory_xact_lock({advisory.NAMED_LOCKS}, $1)")


class TableMissing(StoreUnavailable):
    """A table was dropped while the service ran."""


class PostgresConnection:
    """One connection that reconnects at the next `begin` after it was lost."""

    def __init__(
        self,
        url: str,
        clock: Clock | None,
        settings: Mapping[str, str],
        lock_space: int,
        pause: ConnectPause,
        limit: SilenceLimit,
        setting: str,
        *,
        read_only: bool,
        pooled: bool = False,
    ) -> None:
        """`setting` is the one that holds `url`, for messages."""
        self._url = url
        self._setting = setting
        self._clock = clock
        self._settings = settings
        self._lock_space = lock_space
        self._pause = pause
        self._limit = limit
        self._read_only = read_only
        self._pooled = pooled
        # Behind a pooler each transaction may run on another server session, with the settings of other clients.
        self._locally = _set_statements(settings, "set local") if pooled else ""
        self._held_locks: set[int] | None = set()
        self._held_at_savepoints: list[set[int]] = []
        self._open()

    def _open(self) -> None:
        self._raw = self._connect()
        self._cursor = self._raw.cursor()
        # Behind a pooler a prepared statement is not available to the next transaction.
        self._pipeline = None if self._pooled or self._read_only else Pipeline(self._raw)
        self._at_commit: list[Statement] = []

    def _connect(self) -> LimitedConnection:
        try:
            with self._pause.observe():
                raw = LimitedConnection.connect(
                    self._url,
                    autocommit=True,
                    # With numbers in place of names, because psycopg would parse each long statement again.
                    cursor_factory=psycopg.RawCursor,
                    **connect_options(self._url, "primary" if self._read_only else "read-write"),
                )
            raw.limit = self._limit
            if self._pooled:
                raw.prepare_threshold = None
            else:
                raw.execute(as_literal(_set_statements(self._settings, "set")))
                if not self._read_only:
                    _take_serving_lock(raw)
        except psycopg.OperationalError as error:
            unavailable = StoreUnavailable.of_driver(
                f"The database of {self._setting} cannot be used: {_reason(error).removeprefix('connection failed: ')}"
            )
            unavailable.is_silent = self._pause.is_on
            raise unavailable from error
        except psycopg.ProgrammingError as error:
            # Without the client's message, which may contain the password.
            raise StoreUnavailable(
                f"PostgreSQL's client cannot parse {self._setting}. Check its form and the names of its options."
            ) from error
        return raw

    def begin(self, locks: Locks = ()) -> int:
        self._reopen()
        if self._pipeline is not None:
            now, _ = self.begin_reading(locks, ())
            return now
        begin, locking, now = _BEGIN_SNAPSHOT, "", _NOW
        if not self._read_only:
            taking = (f"select {call.format(number)}; " for call, number in self._note_locks(locks))
            begin, locking, now = _BEGIN, "".join(taking), _NOW_SERVING
        with self._store_errors():
            # Not prepared, as psycopg would after five executions: several statements in one message cannot be.
            statements = f"{begin}; {self._locally}{locking}{now}"
            cursor = self._cursor.execute(as_literal(statements), prepare=False)
            # The last statement returns the time.
            while cursor.nextset():
                pass
            row = cursor.fetchone()
        assert row is not None
        if row[1:] == (False,):
            self.rollback()
            raise StoreUnavailable(_COPY_RUNS)
        return int(row[0]) if self._clock is None else self._clock.now()

    def begin_reading(self, locks: Locks, reads: Sequence[Read]) -> tuple[int, list[list[Row]]]:
        if self._pipeline is None:
            now = self.begin(locks)
            try:
                return now, [self.rows(sql, params) for sql, params in reads]
            except Exception as error:
                raise StatementFailed from error
        self._reopen()
        calls = self._note_locks(locks)
        begin: list[Statement] = [(_BEGIN, ())]
        for start in range(0, len(calls), _CALLS_AT_ONCE):
            some = calls[start : start + _CALLS_AT_ONCE]
            taking = ", ".join([call.format(f"${place}") for place, (call, _) in enumerate(some, 1)])
            # A select list is evaluated from left to right: the last column is the time at which all locks are held.
            begin.append((f"select {taking}, {_TIME}", [number for _, number in some]))
        statements = [*begin, *((sql.numbered, sql.numbered_values(params)) for sql, params in reads)]
        with self._store_errors():
            try:
                results = self._run_first(self._pipeline, statements)
            except PipelineError as failed:
                if failed.place < len(begin):
                    raise failed.error from None
                raise StatementFailed from failed.error
        ((*_, now),) = results[len(begin) - 1]
        return int(now) if self._clock is None else self._clock.now(), results[len(begin) :]

    def _run_first(self, pipeline: Pipeline, statements: list[Statement]) -> list[list[Row]]:
        """Run the first statements of a transaction, again if what is prepared has become outdated."""
        try:
            return pipeline.run(statements)
        except PipelineError as failed:
            if not failed.is_outdated:
                raise
        self.rollback()
        return pipeline.run(statements)

    def _reopen(self) -> None:
        self._at_commit = []
        if self._raw.closed or self._raw.broken:
            self._open()

    def _note_locks(self, locks: Locks) -> list[tuple[str, int]]:
        """Return the calls that take the locks of a transaction which has just begun, as `lock_calls` does."""
        self._held_locks = None if locks is None else {advisory.to_number(name) for name in locks}
        self._held_at_savepoints = []
        return advisory.lock_calls(self._lock_space, self._held_locks)

    def lock(self, name: str) -> bool:
        number = advisory.to_number(name)
        if self._held_locks is None or number in self._held_locks:
            return True
        with self._store_errors():
            row = self._cursor.execute(_TRY_NAMED_LOCK, (number,)).fetchone()
        if row is None or not row[0]:
            return False
        self._held_locks.add(number)
        return True

    def commit(self) -> None:
        """Commit. Raises StoreConflict only if certainly nothing was committed, so that the transaction may run again.

        If the connection is lost during the commit, its outcome is unknown: that is StoreUnavailable with a message
        that says so, not a retry.
        """
        try:
            self._commit()
        except psycopg.Error as error:
            if _is_retryable(error):
                raise StoreConflict.of_driver(_outage_text(error)) from error
            failure = StoreUnavailable.of_driver(_outage_text(error))
            if self._raw.closed:
                failure.message = _OUTCOME_UNKNOWN
                failure.is_repeatable = False
            raise failure from error

    def _commit(self) -> None:
        """Commit. Raises psycopg.Error, and StatementFailed if one of the last statements fails by itself."""
        if self._pipeline is None or not self._at_commit:
            self._cursor.execute("commit", prepare=False)
            return
        statements, self._at_commit = [*self._at_commit, ("commit", ())], []
        try:
            self._pipeline.run(statements)
        except PipelineError as failed:
            if failed.place == len(statements) - 1 or _is_retryable(failed.error):
                raise failed.error from None
            raise StatementFailed from failed.error

    def rollback(self) -> None:
        self._at_commit = []
        if not self.in_transaction():
            return
        try:
            self._control("rollback")
        except psycopg.Error:
            # It cannot be used any more; `begin` opens another one.
            self._raw.close()

    def in_transaction(self) -> bool:
        return not self._raw.closed and self._raw.info.transaction_status in (
            TransactionStatus.INTRANS,
            TransactionStatus.INERROR,
            TransactionStatus.ACTIVE,
        )

    def control(self, text: str) -> None:
        with self._store_errors():
            self._control(text)
        # A rollback to a savepoint releases the locks that were taken after it, too.
        if self._held_locks is None:
            return
        if text.startswith("savepoint "):
            self._held_at_savepoints.append(set(self._held_locks))
        elif text.startswith("rollback to savepoint "):
            self._held_locks = set(self._held_at_savepoints[-1])
        elif text.startswith("release savepoint "):
            self._held_at_savepoints.pop()

    def _control(self, text: str) -> None:
        if self._pipeline is None:
            self._raw.execute(as_literal(text))
            return
        # Not by psycopg, which takes a rollback as a reason to forget all prepared statements, also of the pipeline.
        self._send(self._pipeline, [(text, ())])

    def _send(self, pipeline: Pipeline, statements: Sequence[Statement]) -> None:
        try:
            for start in range(0, len(statements), MAX_PREPARED):
                pipeline.run(statements[start : start + MAX_PREPARED])
        except PipelineError as failed:
            raise failed.error from None

    def run(self, sql: Sql, params: Params) -> int:
        with self._store_errors():
            return self._cursor.execute(sql.numbered, sql.numbered_values(params)).rowcount

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        statements: list[Statement] = [(sql.numbered, sql.numbered_values(row)) for row in rows]
        with self._store_errors():
            if self._pipeline is None:
                for text, values in statements:
                    self._cursor.execute(as_literal(text), values)
                return
            self._send(self._pipeline, statements)

    def add(self, inserts: list[Insert]) -> None:
        statements = list(joint_insert_statements(inserts))
        with self._store_errors():
            if self._pipeline is not None:
                self._send(self._pipeline, statements)
                return
            for text, values in statements:
                self._cursor.execute(as_literal(text), values)

    def add_at_commit(self, inserts: list[Insert]) -> None:
        if self._pipeline is None:
            self.add(inserts)
        else:
            self._at_commit += joint_insert_statements(inserts)

    def update_at_commit(self, update: RowUpdate, rows: list[Params]) -> None:
        if self._pipeline is not None:
            self._at_commit += update.statements(rows)
        elif not all(self.run(update.one, params) for params in rows):
            raise StatementFailed

    def run_at_commit(self, sql: Sql, params: Params) -> None:
        if self._pipeline is None:
            self.run(sql, params)
        else:
            self._at_commit.append((sql.numbered, sql.numbered_values(params)))

    def rows(self, sql: Sql, params: Params) -> list[Row]:
        with self._store_errors():
            return self._cursor.execute(sql.numbered, sql.numbered_values(params)).fetchall()

    def close(self) -> None:
        self._raw.close()

    @contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Translate outages and conflicts; constraint and programming errors are bugs or races and pass unchanged."""
        try:
            yield
        except psycopg.Error as error:
            # A connection that was lost before the commit has committed nothing, so the transaction may run again. Not
            # after a long wait, which the next server may repeat.
            is_lost = self._raw.closed and not isinstance(error, NoAnswer)
            if _is_retryable(error) or is_lost:
                raise StoreConflict.of_driver(_outage_text(error)) from error
            if isinstance(error, psycopg.OperationalError):
                raise StoreUnavailable.of_driver(_outage_text(error)) from error
            if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
                raise TableMissing.of_driver(f"A table is missing in the database: {error}.") from error
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                raise StoreUnavailable.of_driver(f"{_MISSING_RIGHT}: {_reason(error)}") from error
            if isinstance(error, psycopg.errors.ReadOnlySqlTransaction) and not self._read_only:
                # No longer the primary. `begin` looks for it with another connection.
                self._raw.close()
                raise StoreUnavailable.of_driver(_outage_text(error)) from error
            raise


def _is_retryable(error: Exception) -> bool:
    return isinstance(error, psycopg.Error) and error.sqlstate in _RETRYABLE


def _outage_text(error: psycopg.Error) -> str:
    return f"The database cannot be used: {_reason(error)}"


def _reason(error: psycopg.Error) -> str:
    """Return the message of the client or the server as a sentence on one line."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return " ".join(line if line.endswith(("?", ".", ":")) else f"{line}." for line in lines if line)


def _set_statements(settings: Mapping[str, str], how: str) -> str:
    return "".join(f"{how} {name} = {value}; " for name, value in settings.items())


def _take_serving_lock(raw: psycopg.Connection[Row]) -> None:
    """Mark the session as a writer, so that no copy of the database starts; fails while a copy is running."""
    row = raw.execute("select pg_try_advisory_lock_shared($1)", (advisory.SERVING_LOCK_ID,)).fetchone()
    if row is None or not row[0]:
        raw.close()
        raise StoreUnavailable(_COPY_RUNS)
