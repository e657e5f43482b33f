"""Transactions as plain functions, and group commit.

`write` hands a function to the one writer thread. The thread takes all functions that have come
meanwhile, runs them in one transaction, commits once, and only then answers: a failing unit takes
down no other, and no answer leaves before its commit. Nobody can await inside a transaction, because
the function is not a coroutine. Fail-closed: a failed commit fails every unit.

What the log says while the store cannot be used: the beginning, a reminder now and then, the end.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client.core import Metric

from stentor.core.db import group_commit
from stentor.core.db.driver import DbConnection, Driver, Locks
from stentor.core.db.group_commit import WriteUnit
from stentor.core.db.polling import PollBatch
from stentor.core.db.transaction import Tx
from stentor.core.errors import StoreConflict, StoreUnavailable
from stentor.core.metrics import (
    REQUEST_BUCKETS_S,
    Histogram,
    histogram_family,
    labeled_counter_family,
    labeled_gauge_family,
)

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_GROUP_SIZE = 128
"""Units that share one commit at most: bounds the wait of the first one."""

READER_THREADS = 3
_GROUPS = (1, 2, 4, 8, 16, 32, 64, MAX_GROUP_SIZE)


class Database:
    """One writer thread and a few read-only connections over a driver."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._queue: queue.SimpleQueue[WriteUnit | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_loop, name="stentor-db-writer", daemon=True)
        self._readers = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="stentor-db-reader")
        self._local = threading.local()
        self._looks = PollBatch(self.read)
        self._open_readers: list[DbConnection] = []
        self._writing, self._reading = OutageLog("written"), OutageLog("read")
        self._waits, self._groups = Histogram(REQUEST_BUCKETS_S), Histogram(_GROUPS)
        self._closed = False
        self.commits, self.write_event = 0, asyncio.Event()
        """How often this process wrote, and that it did: who looks for what is new need not look while it did not."""
        self._writer.start()

    async def write(self, fn: Callable[[Tx], T], locks: Locks = None) -> T:
        """Run `fn` in a transaction; returns after the commit. Errors of `fn` undo only `fn`.

        `fn` may run several times, so it changes nothing but what its `Tx` can undo. On a shared database no other
        process writes meanwhile, unless `locks` names what must stand still for `fn`: then only those wait that name
        the same. An empty one says that every statement of `fn` is right whatever others do between two of them.
        """
        if self._closed:
            raise StoreUnavailable("The service is shutting down.")
        loop = asyncio.get_running_loop()
        unit = WriteUnit(fn, locks, loop, loop.create_future())
        self._queue.put(unit)
        result: T = await unit.future
        self.commits += 1
        self.write_event.set()
        return result

    async def read(self, fn: Callable[[Tx], T]) -> T:
        """Run `fn` on a read-only connection, in one consistent view of the data."""
        if self._closed:
            raise StoreUnavailable("The service is shutting down.")
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, fn)

    async def poll(self, fn: Callable[[Tx], T]) -> T:
        """Like `read`, for those who look again and again: all who do so at the same pulse share one view."""
        result: T = await self._looks.poll(fn)
        return result

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
        try:
            try:
                result = self._read_once(fn)
            except StoreConflict:
                result = self._read_once(fn)  # the connection broke: a new one may do
        except StoreUnavailable as error:
            self._reading.record_failure(error.message)
            raise
        self._reading.record_success()
        return result

    def _read_once(self, fn: Callable[[Tx], T]) -> T:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self.driver.reader()
            self._open_readers.append(connection)
        try:
            return fn(Tx(connection, connection.begin()))
        finally:
            connection.rollback()

    def _write_loop(self) -> None:
        connection: DbConnection | None = None
        while units := self._next_group():
            try:
                connection = connection or self.driver.writer()
                group_commit.run_group(connection, units)
                self._writing.record_success()
                self._observe(units)
            except StoreUnavailable as error:
                self._writing.record_failure(error.message)
                group_commit.fail_group(units, error)
            except Exception as error:
                # Nothing was committed, and the one writer must outlive whatever broke.
                log.exception("the writer failed in a way it did not foresee")
                group_commit.fail_group(units, StoreUnavailable(f"The database failed ({type(error).__name__})."))
            group_commit.resolve_group(units)
        if connection is not None:
            connection.close()

    def _observe(self, units: list[WriteUnit]) -> None:
        now = time.perf_counter()
        self._groups.observe(len(units))
        self._waits.observe_all([now - unit.queued_at for unit in units])

    def collect_metrics(self) -> Iterable[Metric]:
        """For /metrics, from memory alone."""
        ways = {"write": self._writing, "read": self._reading}
        text = "Time from handing in a transaction to its commit."
        yield histogram_family("stentor_database_write_duration_seconds", text, self._waits)
        yield histogram_family("stentor_database_commit_group_size", "Transactions that shared a commit.", self._groups)
        outages = {way: float(outage.is_ongoing) for way, outage in ways.items()}
        yield labeled_gauge_family(
            "stentor_database_outage", "Whether the last try failed, by operation.", "operation", outages
        )
        failures = {(way,): float(outage.total_failures) for way, outage in ways.items()}
        text = "Tries that failed because the store could not be used."
        yield labeled_counter_family("stentor_database_failures", text, ("operation",), failures)

    def _next_group(self) -> list[WriteUnit]:
        """Wait for one unit, take what else is there. Empty at the end."""
        first = self._queue.get()
        group: list[WriteUnit] = []
        while first is not None:
            group.append(first)
            if len(group) == MAX_GROUP_SIZE or self._queue.empty():
                return group
            first = self._queue.get()
        self._queue.put(None)  # seen the end: finish this group, then meet the end again
        return group


REMINDER_SECONDS = 30
logger = logging.getLogger(__name__)


class OutageLog:
    """Told of every failure and success; silent about most of them, because thousands may come a second."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._said = 0.0
        self._failures = 0
        self.total_failures = 0
        """Failures since the start."""

    @property
    def is_ongoing(self) -> bool:
        return self._began is not None

    def record_failure(self, reason: str) -> None:
        with self._lock:
            now = self._clock()
            self._failures += 1
            self.total_failures += 1
            if self._began is None:
                self._began = self._said = now
                logger.error("the database cannot be %s: %s", self._what, reason)
            elif now - self._said >= REMINDER_SECONDS:
                self._said = now
                text = "for %.0f s the database cannot be %s (%d tries): %s"
                logger.error(text, now - self._began, self._what, self._failures, reason)

    def record_success(self) -> None:
        if self._began is None:
            return
        with self._lock:
            if self._began is not None:
                text = "the database can be %s again after %.1f s (%d tries failed)"
                logger.warning(text, self._what, self._clock() - self._began, self._failures)
            self._began, self._failures = None, 0
