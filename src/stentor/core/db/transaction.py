"""What a transaction function is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from stentor.core.db.driver import AppendOnlyTable, DbConnection, PendingRows, Row, Sql


class CounterTable:
    """Counters kept in rows. What units add is summed up and written once, just before their commit.

    `sql` adds the parameters that `counts` names to the row that the others, named by `key`, stand for.
    """

    def __init__(self, key: tuple[str, ...], sql: Sql, counts: tuple[str, ...] = ("n",)) -> None:
        self.sql = sql
        self._names = (*key, *counts)

    def params(self, key: tuple[Any, ...], amounts: tuple[int, ...]) -> dict[str, Any]:
        return dict(zip(self._names, (*key, *amounts), strict=True))


CounterIncrement = tuple[CounterTable, tuple[Any, ...], tuple[int, ...]]


class RetryWithSavepoints(BaseException):
    """Something failed half-way and has to be undone alone: run the group again, with savepoints."""


class LockContended(BaseException):
    """Another process holds a lock of this name: run the group again, with the lock from its beginning."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Tx:
    """`now` is the store's time in microseconds; `wrote` tells whether a statement may have changed something.

    `pending` is given when the caller writes its rows before the commit, and nothing is undone alone.
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
        """Execute; answers the number of rows touched."""
        self.wrote = True
        self._settle(sql)
        return self._connection.run(sql, params)

    def many(self, sql: Sql, rows: Iterable[dict[str, Any]]) -> None:
        self.wrote = True
        self._settle(sql)
        self._connection.many(sql, rows)

    def rows(self, sql: Sql, **params: Any) -> list[Row]:
        self.wrote = self.wrote or sql.writes
        self._settle(sql)
        return self._connection.rows(sql, params)

    def row(self, sql: Sql, **params: Any) -> Row | None:
        rows = self.rows(sql, **params)
        return rows[0] if rows else None

    def append(self, journal: AppendOnlyTable, row: Row) -> None:
        """Add a row at the commit, or before a statement names its table."""
        self.wrote = True
        self._pending.add(journal, row)

    def increment(self, tally: CounterTable, key: tuple[Any, ...], *amounts: int) -> None:
        """Add to counters at the commit; this transaction does not see it."""
        self.added.append((tally, key, amounts))

    def lock(self, name: str) -> None:
        """From here on no other process is in a transaction that locked the same name, or everything.

        For what is read, changed here and written back: without it a change of another process could be lost.
        """
        if not self._connection.lock(name):
            raise LockContended(name)

    def flush(self) -> None:
        """Write the rows that wait."""
        for journal, rows in self._pending.take():
            self._connection.add(journal, rows)

    def _settle(self, sql: Sql) -> None:
        if self._pending.touches(sql.tables):
            self.flush()

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Have `hook` called on the event loop once this unit is durable, even if its caller has left."""
        self.hooks.append(hook)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part that may fail on its own: all that it did is undone, and the error goes on."""
        if self._shared:
            try:
                yield
            except LockContended:
                raise
            except BaseException:  # noqa: BLE001 - whatever a part raises undoes it
                raise RetryWithSavepoints from None
            return
        self.flush()
        hooks, added = len(self.hooks), len(self.added)
        self._connection.control("savepoint part")
        try:
            yield
            self.flush()
        except BaseException:
            self._pending.take()
            del self.hooks[hooks:], self.added[added:]
            self._connection.control("rollback to savepoint part")
            self._connection.control("release savepoint part")
            raise
        self._connection.control("release savepoint part")
