"""Transactions as plain functions, and group commit.

`write` hands a function to the one writer thread. The thread takes all functions that have come
meanwhile, runs each in a savepoint of one transaction, commits once, and only then answers: a
failing unit takes down no other, and no answer leaves before its commit. Nobody can await inside a
transaction, because the function is not a coroutine. Fail-closed: a failed commit fails every unit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stentor.core.db.driver import Connection, Driver, Row
from stentor.core.db.sql import Sql
from stentor.core.errors import StoreUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_GROUP = 128
"""Units that share one commit at most: bounds the wait of the first one."""

READERS = 3


class Tx:
    """What a transaction function gets. `now` is the store's time in microseconds."""

    __slots__ = ("_connection", "_hooks", "now")

    def __init__(self, connection: Connection, now: int) -> None:
        self._connection = connection
        self._hooks: list[Callable[[], None]] = []
        self.now = now

    def run(self, sql: Sql, **params: Any) -> int:
        return self._connection.run(sql, params)

    def many(self, sql: Sql, rows: Iterable[dict[str, Any]]) -> None:
        self._connection.many(sql, rows)

    def rows(self, sql: Sql, **params: Any) -> list[Row]:
        return self._connection.rows(sql, params)

    def row(self, sql: Sql, **params: Any) -> Row | None:
        rows = self._connection.rows(sql, params)
        return rows[0] if rows else None

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Have `hook` called on the event loop once this unit is durable, even if its caller has left."""
        self._hooks.append(hook)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A part that may fail on its own: its statements and hooks are undone, the error goes on."""
        hooks = len(self._hooks)
        self._connection.control("savepoint part")
        try:
            yield
        except BaseException:
            del self._hooks[hooks:]
            self._connection.control("rollback to savepoint part")
            self._connection.control("release savepoint part")
            raise
        self._connection.control("release savepoint part")


@dataclass(slots=True)
class _Unit:
    fn: Callable[[Tx], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None
    hooks: list[Callable[[], None]] = field(default_factory=list)


class Database:
    """One writer thread and a few read-only connections over a driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._queue: queue.SimpleQueue[_Unit | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="stentor-db-writer", daemon=True)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="stentor-db-reader")
        self._local = threading.local()
        self._open_readers: list[Connection] = []
        self._closed = False
        self._writer.start()

    async def write(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` in a transaction; returns after the commit. Errors of `fn` undo only `fn`."""
        if self._closed:
            raise StoreUnavailable("The service is shutting down.")
        loop = asyncio.get_running_loop()
        unit = _Unit(fn, loop, loop.create_future())
        self._queue.put(unit)
        result: T = await unit.future
        return result

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` on a read-only connection, in one consistent view of the data."""
        if self._closed:
            raise StoreUnavailable("The service is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, fn)

    def close(self) -> None:
        """Finish what was handed in, then close. Blocks for at most the open work."""
        self._closed = True
        self._readers.shutdown()
        for connection in self._open_readers:
            connection.close()
        # The writer goes last, because SQLite folds its log into the file when the last connection closes.
        self._queue.put(None)
        self._writer.join()

    def _read(self, fn: Callable[[Tx], T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.driver.reader()
            self._open_readers.append(connection)
        try:
            return fn(Tx(connection, connection.begin()))
        finally:
            connection.rollback()

    def _write_loop(self) -> None:
        connection: Connection | None = None
        while group := self._next_group():
            try:
                connection = connection or self.driver.writer()
                _run_group(connection, group)
            except StoreUnavailable as error:
                _fail_all(group, error)
            except Exception as error:
                # Nothing was committed, and the one writer must outlive whatever broke.
                log.exception("the writer failed in a way it did not foresee")
                _fail_all(group, StoreUnavailable(f"The database failed ({type(error).__name__})."))
            _answer(group)
        if connection is not None:
            connection.close()

    def _next_group(self) -> list[_Unit]:
        """Wait for one unit, take what else is there. Empty at the end."""
        first = self._queue.get()
        group: list[_Unit] = []
        while first is not None:
            group.append(first)
            if len(group) == MAX_GROUP or self._queue.empty():
                return group
            first = self._queue.get()
        self._queue.put(None)  # seen the end: finish this group, then meet the end again
        return group


def _run_group(connection: Connection, group: list[_Unit]) -> None:
    """One transaction for all units. Raises StoreUnavailable when nothing was committed."""
    try:
        now = connection.begin()
        for unit in group:
            _run_unit(connection, unit, now, alone=len(group) == 1)
        if connection.in_transaction():
            connection.commit()
    except BaseException:
        connection.rollback()
        raise


def _run_unit(connection: Connection, unit: _Unit, now: int, *, alone: bool) -> None:
    tx = Tx(connection, now)
    if not alone:
        connection.control("savepoint unit")
    try:
        unit.result = unit.fn(tx)
        unit.hooks = tx._hooks
    except StoreUnavailable as error:
        if not connection.in_transaction():
            raise  # the store gave up the whole transaction
        _undo(connection, unit, error, alone=alone)
        return
    except BaseException as error:  # noqa: BLE001 - whatever a unit raises is its caller's
        _undo(connection, unit, error, alone=alone)
        return
    if not alone:
        connection.control("release savepoint unit")


def _undo(connection: Connection, unit: _Unit, error: BaseException, *, alone: bool) -> None:
    unit.error = error
    if alone:
        connection.rollback()
    else:
        connection.control("rollback to savepoint unit")
        connection.control("release savepoint unit")


def _fail_all(group: list[_Unit], error: StoreUnavailable) -> None:
    log.error("no commit: %s", error.message)
    for unit in group:
        unit.error = unit.error or StoreUnavailable(error.message)
        unit.hooks = []


def _answer(group: list[_Unit]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Unit]] = {}
    for unit in group:
        by_loop.setdefault(unit.loop, []).append(unit)
    for loop, units in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, units)
        except RuntimeError:
            log.warning("%d answers of the database had no loop to go to", len(units))


def _resolve(units: list[_Unit]) -> None:
    for unit in units:
        for hook in unit.hooks:
            try:
                hook()
            except Exception:
                # The commit stands whatever a hook does; the reconciler repairs what it missed.
                log.exception("a hook after the commit failed")
        if unit.future.cancelled():
            continue
        if unit.error is None:
            unit.future.set_result(unit.result)
        else:
            unit.future.set_exception(unit.error)
