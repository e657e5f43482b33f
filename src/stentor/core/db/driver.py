"""The interface of a database driver, which takes the statements of `sql` and `rows_sql`.

The implementations are `sqlite` and `postgres`; one conformance suite runs against both. Transactions are in
`transaction` and `group_commit`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from stentor.core.db.rows_sql import Insert, RowUpdate
from stentor.core.db.sql import Params, Read, Row, Sql
from stentor.core.errors import StoreUnavailable

if TYPE_CHECKING:
    from stentor.core.db.locks.session import LockSession

Locks = Collection[str] | None
"""Locks that a transaction holds against other processes: names, or None for all of them."""
NO_LOCKS: Locks = ()
"""For a transaction whose statements are all safe against concurrent writers."""


class StatementFailed(Exception):
    """A statement failed that was sent together with others. Nothing was committed."""


class DbConnection(Protocol):
    """One connection, used by one thread at a time. Database failures raise StoreUnavailable."""

    def begin(self, locks: Locks = ()) -> int:
        """Open a transaction and wait for the locks; returns the database's time (microseconds) after that.

        The time is read under the locks, so that it increases from one holder of a lock to the next.
        """
        ...

    def begin_reading(self, locks: Locks, reads: Sequence[Read]) -> tuple[int, list[list[Row]]]:
        """Open a transaction like `begin`, and return also what these statements read in it.

        Raises StatementFailed if one of them fails.
        """
        ...

    def lock(self, name: str) -> bool:
        """Take one more lock until the end of the transaction; False if another process has it. Never waits."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """End the open transaction, if any. Never raises."""
        ...

    def in_transaction(self) -> bool: ...

    def control(self, text: str) -> None:
        """Run a statement of transaction control: SAVEPOINT, RELEASE, ROLLBACK TO."""
        ...

    def run(self, sql: Sql, params: Params) -> int:
        """Execute a statement; returns the number of affected rows."""
        ...

    def many(self, sql: Sql, rows: Iterable[Params]) -> None: ...

    def add(self, inserts: list[Insert]) -> None:
        """Insert rows, those of a table in their order."""
        ...

    def add_at_commit(self, inserts: list[Insert]) -> None:
        """Insert rows like `add`, now or with the commit, which raises StatementFailed if that fails."""
        ...

    def update_at_commit(self, update: RowUpdate, rows: list[Params]) -> None:
        """Update rows now or with the commit. Raises StatementFailed, or the commit does, if one is not as expected."""
        ...

    def run_at_commit(self, sql: Sql, params: Params) -> None:
        """Execute a statement now or with the commit, which raises StatementFailed if that fails."""
        ...

    def rows(self, sql: Sql, params: Params) -> list[Row]: ...

    def close(self) -> None: ...


class Driver(Protocol):
    """Opens connections to one database."""

    name: str
    shared: bool
    """Whether other processes may write to the same database."""

    def writer(self) -> DbConnection: ...

    def reader(self, *, may_idle: bool = False) -> DbConnection:
        """Open a connection that only reads; with `may_idle` there is no limit of time between its statements."""
        ...

    def lock_session(self) -> LockSession:
        """Return the session for locks that outlive a transaction; only of a shared database."""
        ...

    def shorten_timeouts(self) -> None:
        """Give up sooner on a server that does not answer, even in running statements, because the process stops."""
        ...


class ReadOnlyDriver:
    """A driver that cannot write: its readers work, and opening a writer raises StoreUnavailable.

    For a process that reads the database of a running service. Without a writer it cannot checkpoint SQLite's WAL
    either, which a second process must never do.
    """

    shared = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.name = driver.name

    def writer(self) -> DbConnection:
        raise StoreUnavailable("This process has opened the database read-only.")

    def reader(self, *, may_idle: bool = False) -> DbConnection:
        return self._driver.reader(may_idle=may_idle)

    def lock_session(self) -> LockSession:
        raise StoreUnavailable("This process has opened the database read-only.")

    def shorten_timeouts(self) -> None:
        self._driver.shorten_timeouts()
