"""Transactions as plain functions, run by one writer thread with group commit.

`write` queues a function for the writer thread. The thread runs all queued functions in one transaction, commits once,
and only then resolves the callers: a failing function does not fail the others (see `group_commit`), and no result is
visible before its commit. The function is not a coroutine, so nothing can await inside a transaction. Fails closed: a
failed commit fails every function of the group.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client.core import Metric

from stentor.core.db import group_commit
from stentor.core.db.driver import DbConnection, Driver, Locks
from stentor.core.db.group_commit import WriteUnit
from stentor.core.db.polling import PollBatch
from stentor.core.db.prefetch import Prefetch
from stentor.core.db.readers import Readers
from stentor.core.db.transaction import Tx
from stentor.core.errors import CorruptRow, StoreConflict, StoreUnavailable
from stentor.core.metrics import (
    REQUEST_BUCKETS_S,
    Histogram,
    labeled_counter_family,
    labeled_gauge_family,
)

T = TypeVar("T")
SetAside = Callable[[CorruptRow], Awaitable[object]]
"""Moves a malformed row where no job reads it; does nothing if that was done already."""
log = logging.getLogger(__name__)

MAX_GROUP_SIZE = 128
"""Maximum number of units that share one commit; bounds the wait of the first one."""

READER_THREADS = 3
"""Reads at a time: a slow list must not delay polls, pages and the health check."""
REMINDER_SECONDS = 30
"""Interval of the log lines during an outage."""
_GROUP_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, MAX_GROUP_SIZE)


class Database:
    """One writer thread and a few read-only connections over a driver, opened when they are needed."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._queue: queue.SimpleQueue[list[WriteUnit] | None] = queue.SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[WriteUnit]] = {}
        """Units by event loop, for the writer thread at the end of the iteration. Almost always there is one loop."""
        # A daemon: Python waits for other threads at its exit, so a program that forgot `close` would hang.
        self._writer = threading.Thread(target=self._write_loop, name="stentor-db-writer", daemon=True)
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="stentor-db-reader")
        self._poll_batch = PollBatch(self.read)
        self._connections = Readers(driver)
        self._write_outages, self._read_outages = OutageLog("write"), OutageLog("read")
        self._write_durations = Histogram(
            "stentor_database_write_duration_seconds",
            "Time from handing in a transaction to its commit.",
            REQUEST_BUCKETS_S,
        )
        self._group_sizes = Histogram(
            "stentor_database_commit_group_size", "Transactions that shared a commit.", _GROUP_SIZE_BUCKETS
        )
        self.set_aside: dict[str, SetAside] = {}
        """Handlers by table, called with a malformed row that a write or a poll read. Set by `bootstrap`."""
        self._closed = False
        self.commits, self.write_event = 0, asyncio.Event()
        """Count of this process's writes, and an event set by each: pollers skip a poll when nothing was written."""
        self._writer.start()

    async def write(
        self,
        fn: Callable[[Tx], T],
        locks: Locks = None,
        prefetch: Sequence[Prefetch] = (),
        on_end: Callable[[], None] | None = None,
    ) -> T:
        """Run `fn` in a transaction and return its result after the commit. An error of `fn` undoes only `fn`.

        `fn` may run several times, so it must change nothing but what its `Tx` can undo; everything else goes into
        `tx.after_commit`. On a shared database no other process writes at the same time, unless `locks` is given: then
        only transactions with a common name exclude each other. With empty `locks`, every statement of `fn` must be
        correct whatever other processes write between two of them.

        `prefetch` names the rows that `fn` reads first, with `Tx.prefetched_rows`: one statement reads them for all
        functions that share the commit. If `fn` reads a malformed row and the table has a handler in `set_aside`, the
        handler moves the row out of the way and `fn` runs again.
        `on_end` is called once on the event loop, after the commit and its hooks or after the failure, also if the
        caller was cancelled in the meantime.
        """
        if self._closed:
            if on_end is not None:
                on_end()
            raise StoreUnavailable("The service is shutting down.")
        loop = asyncio.get_running_loop()
        met: list[CorruptRow] = []
        while True:
            unit = WriteUnit(fn, locks, loop, loop.create_future(), prefetch=prefetch, on_end=on_end)
            self._enqueue(unit)
            try:
                result: T = await unit.future
                break
            except CorruptRow as error:
                # Not again with `on_end`, which is called only once.
                if on_end is not None or not await self._set_row_aside(error, met):
                    raise
            finally:
                del unit  # the error's traceback refers to this frame, and the unit's future to the error
        # On the event loop, after the commit: a caller that reads the count before the rows misses nothing.
        self.commits += 1
        self.write_event.set()
        return result

    def _enqueue(self, unit: WriteUnit) -> None:
        """Queue a unit, together with those of the same iteration of the event loop.

        The writer thread is then woken once for all of them, when the event loop is about to wait and releases Python's
        lock, and gets them as one group.
        """
        units = self._gathered.setdefault(unit.loop, [])
        units.append(unit)
        if len(units) == 1:
            unit.loop.call_soon(self._send_gathered, unit.loop)

    def _send_gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        if units := self._gathered.pop(loop, None):
            self._queue.put(units)

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` on a read-only connection, in one snapshot of the data."""
        if self._closed:
            raise StoreUnavailable("The service is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, fn)

    async def poll(self, fn: Callable[[Tx], T]) -> T:
        """Like `read`, for periodic polls: all polls of the same tick share one transaction."""
        met: list[CorruptRow] = []
        while True:
            try:
                result: T = await self._poll_batch.poll(fn)
                return result
            except CorruptRow as error:
                if not await self._set_row_aside(error, met):
                    raise

    def close(self) -> None:
        """Finish the queued transactions, then close. Blocks until they are done."""
        self._closed = True
        self.driver.shorten_timeouts()
        self._readers.shutdown()
        self._connections.close()
        for loop in list(self._gathered):
            self._send_gathered(loop)
        # The writer closes last: the last connection moves SQLite's WAL into the file, which a reader cannot.
        self._queue.put(None)
        self._writer.join()

    async def _set_row_aside(self, error: CorruptRow, met: list[CorruptRow]) -> bool:
        """Set a malformed row aside. Return whether to run the transaction again: not if it met the row before."""
        set_aside = self.set_aside.get(error.table)
        if set_aside is None or any(error.key == other.key for other in met):
            return False
        met.append(error)
        await set_aside(error)
        return True

    def _read(self, fn: Callable[[Tx], T]) -> T:
        try:
            try:
                result = self._read_once(fn)
            except StoreConflict:
                result = self._read_once(fn)  # the connection was lost: try once with a new one
        except StoreUnavailable as error:
            self._read_outages.record_failure(str(error))
            raise
        self._read_outages.record_success()
        return result

    def _read_once(self, fn: Callable[[Tx], T]) -> T:
        connection = self._connections.take()
        try:
            now = connection.begin()
        except StoreConflict:
            self._connections.give_back(connection)  # it was lost, and the next `begin` opens it again
            raise
        except BaseException:
            # Without this, other readers would wait for a connection that cannot be opened again.
            self._connections.drop(connection)
            raise
        try:
            return fn(Tx(connection, now))
        finally:
            # An open snapshot would keep SQLite from truncating its WAL and PostgreSQL from vacuuming.
            connection.rollback()
            self._connections.give_back(connection)

    def _write_loop(self) -> None:
        connection: DbConnection | None = None
        left: list[WriteUnit] = []
        while units := self._next_group(left):
            try:
                # Opened here and not at the start, so that a database that is down fails these units and not the
                # thread.
                connection = connection or self.driver.writer()
                group_commit.run_group(connection, units)
                self._observe(units)
            except StoreUnavailable as error:
                self._write_outages.record_failure(str(error))
                group_commit.fail_group(units, error)
            except Exception as error:
                # Nothing was committed. The thread must survive: without it no write would ever complete.
                log.exception("database: writer failed unexpectedly")
                group_commit.fail_group(units, StoreUnavailable(f"The database failed ({type(error).__name__})."))
            group_commit.resolve_group(units)
        if connection is not None:
            connection.close()

    def _observe(self, units: list[WriteUnit]) -> None:
        # A single statement may fail on a full disk, where others need no new page.
        failed = next((unit.error for unit in units if isinstance(unit.error, StoreUnavailable)), None)
        if failed is None:
            self._write_outages.record_success()
        else:
            self._write_outages.record_failure(str(failed))
        now = time.perf_counter()
        self._group_sizes.observe(len(units))
        for unit in units:
            self._write_durations.observe(now - unit.queued_at)

    def collect_metrics(self) -> Iterable[Metric]:
        """Return the metrics of this database from memory."""
        operations = {"write": self._write_outages, "read": self._read_outages}
        yield from self._write_durations.collect()
        yield from self._group_sizes.collect()
        outages = {operation: float(outage.is_ongoing) for operation, outage in operations.items()}
        yield labeled_gauge_family(
            "stentor_database_outage", "Whether the last try failed, by operation.", "operation", outages
        )
        failures = {(operation,): float(outage.total_failures) for operation, outage in operations.items()}
        text = "Tries that failed because the store could not be used."
        yield labeled_counter_family("stentor_database_failures", text, ("operation",), failures)

    def _next_group(self, left: list[WriteUnit]) -> list[WriteUnit]:
        """Take the queued units, or wait for some; `left` keeps those that exceed one group.

        Returns an empty group after `close`.
        """
        # Only this thread takes from the queue, so after `empty` said no, `get` cannot block.
        while not left or (len(left) < MAX_GROUP_SIZE and not self._queue.empty()):
            units = self._queue.get()
            if units is None:
                self._queue.put(None)  # finish these first; the next call finds the end marker again
                break
            left += units
        group = left[:MAX_GROUP_SIZE]
        del left[:MAX_GROUP_SIZE]
        return group


class OutageLog:
    """Logs the start, a periodic reminder and the end of an outage; there may be thousands of failures a second."""

    def __init__(self, operation: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._operation = operation
        self._clock = clock
        # The threads of all readers report to one log.
        self._lock = threading.Lock()
        self._began_at: float | None = None
        self._logged_at = 0.0
        self._failures = 0
        self.total_failures = 0
        """Failures since the start."""

    @property
    def is_ongoing(self) -> bool:
        return self._began_at is not None

    def record_failure(self, reason: str) -> None:
        with self._lock:
            now = self._clock()
            self._failures += 1
            self.total_failures += 1
            if self._began_at is None:
                self._began_at = self._logged_at = now
                log.error("database: unavailable operation=%s error=%s", self._operation, reason)
            elif now - self._logged_at >= REMINDER_SECONDS:
                self._logged_at = now
                text = "database: still unavailable operation=%s seconds=%.0f failures=%d error=%s"
                log.error(text, self._operation, now - self._began_at, self._failures, reason)

    def record_success(self) -> None:
        # Without the lock: this runs after every transaction, and almost always there is no outage.
        if self._began_at is None:
            return
        with self._lock:
            if self._began_at is not None:
                text = "database: recovered operation=%s seconds=%.1f failures=%d"
                log.warning(text, self._operation, self._clock() - self._began_at, self._failures)
            self._began_at, self._failures = None, 0
