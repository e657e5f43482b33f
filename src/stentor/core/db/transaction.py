"""`Tx`, the transaction that functions given to `Database.write` and `Database.read` receive.

`group_commit` runs the functions and interprets the two control-flow exceptions below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stentor.core.db.counters import CounterIncrement, CounterTable
from stentor.core.db.driver import DbConnection
from stentor.core.db.prefetch import PrefetchedReads
from stentor.core.db.rows_sql import AppendOnlyTable, PendingRows, RowsSql, RowUpdate
from stentor.core.db.sql import Params, Row, Sql


class RetryWithSavepoints(BaseException):
    """Part of a group failed and must be undone without the rest: run the group again, with savepoints.

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
    `prefetched` is what was read for all of them.
    """

    __slots__ = ("_connection", "_pending", "_prefetched", "_shared", "added", "hooks", "now", "wrote")

    def __init__(
        self,
        connection: DbConnection,
        now: int,
        pending: PendingRows | None = None,
        prefetched: PrefetchedReads | None = None,
    ) -> None:
        self._connection = connection
        self._prefetched = prefetched
        self._shared = pending is not None
        self._pending = pending or PendingRows()
        self.hooks: list[Callable[[], None]] = []
        self.added: list[CounterIncrement] = []
        self.now = now
        self.wrote = False

    def run(self, sql: Sql, **params: Any) -> int:
        """Execute a statement; returns the number of affected rows."""
        self._prepare(sql)
        return self._connection.run(sql, params)

    def many(self, sql: Sql, rows: Iterable[Params]) -> None:
        """Execute a statement once for each set of parameters."""
        self._prepare(sql)
        self._connection.many(sql, rows)

    def rows(self, sql: Sql, **params: Any) -> list[Row]:
        """Execute a statement and return all its rows."""
        self._prepare(sql)
        return self._connection.rows(sql, params)

    def row(self, sql: Sql, **params: Any) -> Row | None:
        """Execute a statement and return its first row, or None."""
        rows = self.rows(sql, **params)
        return rows[0] if rows else None

    def iter_distinct(self, next_value: Sql, **params: str) -> Iterator[str]:
        """Yield the distinct values of a column in their order, read one by one through an index.

        Fast however many rows there are. `next_value` selects the least value that is greater than `:after`.
        """
        value = ""
        while (row := self.row(next_value, after=value, **params)) and row[0] is not None:
            value = str(row[0])
            yield value

    def rows_for(self, sql: RowsSql, given: Sequence[Row], **params: Any) -> list[Row]:
        """Execute a statement for all given rows, in as few parts as possible; return the rows of its result."""
        return [row for part, values in sql.chunks(given) for row in self.rows(part, **values, **params)]

    def prefetched_rows(self, sql: RowsSql, given: Row) -> list[Row]:
        """Return the rows of a statement for one given row, read before if it was named to `Database.write`."""
        found = None if self._prefetched is None else self._prefetched.take(sql, given)
        return self.rows_for(sql, [given]) if found is None else found

    def rows_once(self, sql: Sql, **params: Any) -> list[Row]:
        """Return the rows of a statement, read once for all functions of the group that give it these parameters.

        It is read again after a write to its tables by anything but `insert_new`. What other processes commit meanwhile
        may be missed, as after any read without a lock.
        """
        if self._prefetched is None:
            return self.rows(sql, **params)
        key = repr(params)  # a list is no key
        found = self._prefetched.find_kept(sql, key)
        if found is None:
            found = self.rows(sql, **params)
            self._prefetched.keep(sql, key, found)
        return found

    def append(self, table: AppendOnlyTable, *rows: Row) -> None:
        """Insert rows at the commit, or earlier if a statement uses their table."""
        self.wrote = True
        if self._prefetched is not None:
            self._prefetched.forget({table.table})
        self._pending.add(table, rows)

    def insert_new(self, table: AppendOnlyTable, row: Row) -> bool:
        """Insert a row, like `append`, unless its key is there already; returns whether it was inserted.

        At first the answer is always True. If that proves wrong at the commit, the whole group runs again, and each of
        its functions then gets the true answer. So if the row often exists, check first. What was prefetched for other
        functions stays: it must not depend on this row.
        """
        if not self._shared:
            return bool(self.run(table.insert_new, **dict(zip(table.columns, row, strict=True))))
        self.wrote = True
        self._pending.add(table, (row,))
        return True

    def update_row(self, update: RowUpdate, **params: Any) -> bool:
        """Update a row that has its key and is as expected; returns whether there was one.

        Like `insert_new`: it is done at the commit, the answer is True at first, and if that proves wrong, the whole
        group runs again. So do not use it for rows that often change in the meantime.
        """
        if not self._shared:
            return self.run(update.one, **params) > 0
        self._note_write(update.one)
        self._pending.update(update, [params])
        return True

    def put(self, sql: Sql, key: Row, **params: Any) -> None:
        """Write a row at the commit, or earlier if a statement uses its table; of several with one key the last one.

        `sql` must set the whole row that `key` identifies, whatever it was. Transactions that share a commit and read
        it with `find_put` first need one statement for all their changes of it.
        """
        self._note_write(sql)
        self._pending.put(sql, key, params)

    def find_put(self, sql: Sql, key: Row) -> Params | None:
        """Return the parameters of the last `put` for the key, None if its row is to be read from the table."""
        return self._pending.find_put(sql, key)

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

    def flush(self, used: Collection[str] | None = None, *, at_commit: bool = False) -> None:
        """Write the pending rows; with `at_commit` now or with the commit, as nothing but counters follows.

        With `used`, updates may stay pending that have none of these tables.
        """
        inserts, updates, puts = self._pending.take(used)
        if at_commit:
            if inserts:
                self._connection.add_at_commit(inserts)
            for update, changes in updates.items():
                self._connection.update_at_commit(update, changes)
            for sql, rows in puts:
                for params in rows:
                    self._connection.run_at_commit(sql, params)
            return
        if inserts:
            self._connection.add(inserts)
        for update, changes in updates.items():
            if not all(self._connection.run(update.one, params) for params in changes):
                raise RetryWithSavepoints
        for sql, rows in puts:
            self._connection.many(sql, rows)

    def _note_write(self, sql: Sql) -> None:
        self.wrote = True
        if self._prefetched is not None:
            self._prefetched.forget(sql.tables)

    def _prepare(self, sql: Sql) -> None:
        # An update with `returning` gives rows too.
        if sql.writes:
            self._note_write(sql)
        # A statement must see the rows that were appended before it.
        if not self._pending.tables.isdisjoint(sql.tables):
            self.flush(sql.tables)

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
