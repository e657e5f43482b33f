"""`Tx`, the transaction that functions given to `Database.write` and `Database.read` receive.

`group_commit` runs the functions and interprets the two control-flow exceptions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stentor.core.db.driver import AppendOnlyTable, DbConnection, PendingRows, Row, Sql
from stentor.core.db.rows_sql import RowsSql


class CounterTable:
    """Counters stored in rows. The increments of a group of transactions are summed and written once, at the commit.

    `sql` adds the parameters named in `counts` to the row identified by the parameters named in `key`.
    """

    def __init__(self, key: tuple[str, ...], sql: Sql, counts: tuple[str, ...] = ("n",)) -> None:
        self.sql = sql
        self._names = (*key, *counts)

    def params(self, key: tuple[Any, ...], amounts: tuple[int, ...]) -> dict[str, Any]:
        """Return the parameters of `sql` for one row."""
        return dict(zip(self._names, (*key, *amounts), strict=True))


CounterIncrement = tuple[CounterTable, tuple[Any, ...], tuple[int, ...]]


class RetryWithSavepoints(BaseException):
    """Part of a group failed and must be undone alone: run the group again, with savepoints.

    Like LockContended a BaseException, so that no `except Exception` of a transaction function swallows it.
    """


class LockContended(BaseException):
    """Another process holds the lock: run the group again, with this lock taken at the beginning."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Tx:
    """An open transaction; ends by itself when its function returns or raises.

    `now` is the database's time in microseconds; `wrote` is whether a statement may have changed something. With
    `pending`, several functions share the transaction: the caller flushes the rows, and no part can be undone alone.
    """

    __slots__ = ("_connection", "_pending", "_shared", "added", "hooks", "now", "wrote")

    def __init__(self, connection: DbConnection, now: int, pending: PendingRows | None = None) -> None:
        self._connection = connection
        self._shared = pending is not None
        self._pending = pending or PendingRows()
        self.hooks: list[Callable[[], None]] = []
        self.added: list[CounterIncrement] = []
        self.now = now
        self.wrote = False

    def run(self, sql: Sql, **params: Any) -> int:
        """Execute a statement; returns the number of affected rows."""
        self.wrote = True
        self._flush_before(sql)
        return self._connection.run(sql, params)

    def many(self, sql: Sql, rows: Iterable[dict[str, Any]]) -> None:
        """Execute a statement once for each set of parameters."""
        self.wrote = True
        self._flush_before(sql)
        self._connection.many(sql, rows)

    def rows(self, sql: Sql, **params: Any) -> list[Row]:
        """Execute a statement and return all its rows."""
        # An update with `returning` gives rows too.
        self.wrote = self.wrote or sql.writes
        self._flush_before(sql)
        return self._connection.rows(sql, params)

    def row(self, sql: Sql, **params: Any) -> Row | None:
        """Execute a statement and return its first row, or None."""
        rows = self.rows(sql, **params)
        return rows[0] if rows else None

    def rows_for(self, sql: RowsSql, given: Sequence[Row], **params: Any) -> list[Row]:
        """Execute a statement for all given rows, in as few parts as possible; return the rows of its result."""
        return [row for part, values in sql.chunks(given) for row in self.rows(part, **values, **params)]

    def append(self, table: AppendOnlyTable, row: Row) -> None:
        """Insert a row at the commit, or earlier if a statement uses its table."""
        self.wrote = True
        self._pending.add(table, row)

    def increment(self, counters: CounterTable, key: tuple[Any, ...], *amounts: int) -> None:
        """Add to counters at the commit; this transaction does not see the new values."""
        self.added.append((counters, key, amounts))

    def lock(self, name: str) -> None:
        """Exclude, until the end, transactions of other processes that lock the same name or everything.

        Needed to read, change and write back a row: without the lock, a change of another process could be lost.
        """
        # Never waits: two transactions that take locks half-way could wait for each other. Instead the group restarts
        # with this lock, and `begin` takes all locks in one order.
        if not self._connection.lock(name):
            raise LockContended(name)

    def flush(self) -> None:
        """Insert the pending rows."""
        for table, rows in self._pending.take():
            self._connection.add(table, rows)

    def _flush_before(self, sql: Sql) -> None:
        # A statement must see the rows that were appended before it.
        if self._pending.touches(sql.tables):
            self.flush()

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Call `hook` on the event loop after the commit, even if the caller was cancelled.

        For everything that a rollback cannot undo: waking workers, updating caches, notifying watchers. Done inside
        the function, it would announce changes that may never be committed, and again on each retry.
        """
        self.hooks.append(hook)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what the block did if it raises; the error propagates."""
        if self._shared:
            # The fast path has no savepoints, so the whole group runs again with them.
            try:
                yield
            except LockContended:
                raise
            except BaseException:  # noqa: BLE001 - every error undoes the block
                raise RetryWithSavepoints from None
            return
        self.flush()
        hooks, added = len(self.hooks), len(self.added)
        self._connection.control("savepoint part")
        try:
            yield
            self.flush()
        except BaseException:
            # What a rollback of the database does not undo: rows that the block appended, its hooks and its increments.
            # Rows from before the block are in the database since the flush above.
            self._pending.take()
            del self.hooks[hooks:], self.added[added:]
            self._connection.control("rollback to savepoint part")
            self._connection.control("release savepoint part")
            raise
        self._connection.control("release savepoint part")
