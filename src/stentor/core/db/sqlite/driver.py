"""The SQLite driver: WAL, synchronous=FULL, exactly one connection that writes and checkpoints.

SQLite before 3.51.3 can corrupt a WAL database when two connections write or checkpoint at the same
time, so every other connection is opened with `mode=ro`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stentor.core.clock import Clock, SystemClock
from stentor.core.db.driver import Locks, StatementFailed
from stentor.core.db.locks.session import LockSession
from stentor.core.db.rows_sql import Insert, RowUpdate, insert_statements
from stentor.core.db.sql import Params, Read, Row, Sql
from stentor.core.errors import StoreUnavailable

BUSY_MS = 5_000
RESTORE = "Restore a backup."
REBUILD = "Stop the service, delete this file, and start the service: it rebuilds the file."
"""What to do about a damaged file: the database, or one that can be rebuilt from it."""


@contextmanager
def _store_errors(path: Path, remedy: str = RESTORE) -> Iterator[None]:
    """Translate outages to StoreUnavailable; constraint and programming errors are bugs or races and pass unchanged."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except (sqlite3.OperationalError, sqlite3.InternalError) as error:
        raise StoreUnavailable.of_driver(f"The database cannot be used: {error}.") from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.DataError):
            raise
        raise StoreUnavailable.of_driver(f"{path} is damaged: {error}. {remedy}") from error


class SqliteConnection:
    """One connection; `begin` is the statement that opens its transactions, `path` is the file, and `remedy`
    says what to do if it is damaged.

    `require_same_file` raises StoreUnavailable when the file is no longer the one that was opened.
    """

    def __init__(
        self,
        raw: sqlite3.Connection,
        clock: Clock,
        begin: str,
        path: Path,
        require_same_file: Callable[[], None] = lambda: None,
        remedy: str = RESTORE,
    ) -> None:
        self._raw = raw
        self._path, self._remedy = path, remedy
        self._clock = clock
        self._begin = begin
        self._require_same_file = require_same_file

    def begin(self, locks: Locks = ()) -> int:
        """Open a transaction. There is one writer, so it holds every lock already."""
        self._require_same_file()
        self.control(self._begin)
        return self._clock.now()

    def begin_reading(self, locks: Locks, reads: Sequence[Read]) -> tuple[int, list[list[Row]]]:
        now = self.begin(locks)
        try:
            return now, [self.rows(sql, params) for sql, params in reads]
        except Exception as error:
            raise StatementFailed from error

    def lock(self, name: str) -> bool:
        return True

    def commit(self) -> None:
        self.control("commit")

    def rollback(self) -> None:
        if self._raw.in_transaction:
            try:
                self._raw.execute("rollback")
            except sqlite3.Error:
                return  # SQLite has already rolled back, for example because the disk is full

    def in_transaction(self) -> bool:
        return self._raw.in_transaction

    def control(self, text: str) -> None:
        with _store_errors(self._path, self._remedy):
            self._raw.execute(text)

    def run(self, sql: Sql, params: Params) -> int:
        # Here and in `rows`, the context manager is entered only on errors: it costs more than a small statement.
        try:
            return self._raw.execute(sql.qmark, sql.values(params)).rowcount
        except sqlite3.Error:
            with _store_errors(self._path, self._remedy):
                raise

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        with _store_errors(self._path, self._remedy):
            self._raw.executemany(sql.qmark, map(sql.values, rows))

    def add(self, inserts: list[Insert]) -> None:
        with _store_errors(self._path, self._remedy):
            for table, rows in inserts:
                for text, values in insert_statements(table, rows):
                    self._raw.execute(text, values)

    def add_at_commit(self, inserts: list[Insert]) -> None:
        self.add(inserts)

    def update_at_commit(self, update: RowUpdate, rows: list[Params]) -> None:
        if not all(self.run(update.one, params) for params in rows):
            raise StatementFailed

    def run_at_commit(self, sql: Sql, params: Params) -> None:
        self.run(sql, params)

    def rows(self, sql: Sql, params: Params) -> list[Row]:
        try:
            return self._raw.execute(sql.qmark, sql.values(params)).fetchall()
        except sqlite3.Error:
            with _store_errors(self._path, self._remedy):
                raise

    def allow_invalid_utf8(self) -> None:
        """Return texts that are not UTF-8 with unpaired surrogates instead of raising an error."""
        self._raw.text_factory = lambda data: data.decode("utf-8", "surrogateescape")

    def close(self) -> None:
        self._raw.close()


class SqliteDriver:
    """Opens connections to a SQLite file.

    Without `durable`, a power cut may lose the last commits: for data that can be rebuilt, such as the search index.
    """

    name = "sqlite"
    shared = False

    def __init__(self, path: Path, clock: Clock | None = None, *, durable: bool = True) -> None:
        self.path = path
        self._synchronous = "full" if durable else "normal"
        self._is_durable, self._remedy = durable, RESTORE if durable else REBUILD
        self._inode: int | None = None
        """Of the file that the writer has open. SQLite compares it too, but not in WAL mode."""
        self._clock = clock or SystemClock()

    def writer(self) -> SqliteConnection:
        with _store_errors(self.path, self._remedy):
            raw = sqlite3.connect(
                self.path,
                isolation_level=None,
                check_same_thread=False,
                timeout=BUSY_MS / 1000,
                # The stores have more statements than the default of 128; the others would be parsed again each time.
                cached_statements=512,
            )
            for pragma in (
                "journal_mode=wal",
                f"synchronous={self._synchronous}",
                # Off unless each connection sets it.
                "foreign_keys=on",
                # In KiB, because it is negative.
                "cache_size=-16384",
                # Keeps the undo data of a statement in memory: otherwise it goes to a new file beyond 64 KiB.
                "temp_store=memory",
            ):
                raw.execute(f"pragma {pragma}")
        # Takes the write lock at once: a transaction that began with a read fails at its first write, without waiting,
        # if another connection has written in the meantime.
        self._inode = _find_inode(self.path) if self._is_durable else None
        return SqliteConnection(raw, self._clock, "begin immediate", self.path, self._require_same_file, self._remedy)

    def reader(self, *, may_idle: bool = False) -> SqliteConnection:
        with _store_errors(self.path, self._remedy):
            raw = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                timeout=BUSY_MS / 1000,
                cached_statements=256,
            )
            raw.execute("pragma cache_size=-4096")
        try:
            self._require_same_file()
        except StoreUnavailable:
            raw.close()
            raise
        return SqliteConnection(raw, self._clock, "begin", self.path, remedy=self._remedy)

    def _require_same_file(self) -> None:
        """Raise StoreUnavailable if the file was replaced or deleted since the writer opened it.

        The writer would go on in a file without a name, and lose everything at the next start; readers would see the
        other file.
        """
        if self._inode is not None and self._inode != _find_inode(self.path):
            raise StoreUnavailable.of_driver(
                f"{self.path} was replaced or deleted while the service uses it. Nothing more is written. Stop the "
                "service, and put the right file in place before you start it."
            )

    def lock_session(self) -> LockSession:
        raise NotImplementedError("One process has the database to itself, so nothing is elected.")

    def shorten_timeouts(self) -> None:
        """Do nothing: there is no server."""


def _find_inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
