"""The read-only connections of a process: usually one, more while reads are slow, so that they delay no others."""

from __future__ import annotations

import queue
import threading
import time

from stentor.core.db.driver import DbConnection, Driver
from stentor.core.errors import StoreUnavailable

OPEN_AFTER_SECONDS = 0.1
"""How long a read of a shared database waits for a connection that is open before it opens another one."""
WAIT_SECONDS = 5.0
"""How long a read waits for an open connection if no other one can be opened."""
IDLE_SECONDS = 30.0
"""How long a connection may be unused, except the last one."""


class Readers:
    """Connections that are taken and given back by any thread; as many are open as reads run at a time, or fewer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        # Last in, first out: those that are not needed stay unused and are closed.
        self._idle: queue.LifoQueue[tuple[DbConnection, float]] = queue.LifoQueue()
        # The first one is opened at once. With a file all of them are, because such a connection costs next to nothing.
        self._wait_seconds = 0.0
        self._open = 0
        self._mutex = threading.Lock()

    def take(self) -> DbConnection:
        """Return a connection for one read. Raises StoreUnavailable."""
        try:
            # The polls of a tick start together and are short: they do not each need a connection.
            return self._idle.get(block=self._wait_seconds > 0, timeout=self._wait_seconds)[0]
        except queue.Empty:
            if self._driver.shared:
                self._wait_seconds = OPEN_AFTER_SECONDS
            return self._open_another()

    def _open_another(self) -> DbConnection:
        try:
            connection = self._driver.reader()
        except StoreUnavailable as error:
            # A server that takes no more connections still answers on those that are open.
            if not self._open or error.is_silent:
                raise
            try:
                return self._idle.get(timeout=WAIT_SECONDS)[0]
            except queue.Empty:
                pass
            raise
        self._count(1)
        return connection

    def drop(self, connection: DbConnection) -> None:
        """Close a taken connection instead of giving it back."""
        self._count(-1)
        connection.close()

    def _count(self, more: int) -> None:
        with self._mutex:
            self._open += more

    def give_back(self, connection: DbConnection) -> None:
        """Give back a connection, which has no open transaction; close those that have become idle."""
        now = time.monotonic()
        kept = [(connection, now)]
        # There is at least one read a second, so idle connections are always closed in the end.
        while (older := self._take_idle()) is not None:
            kept.append(older)
        for one, since in reversed(kept):
            if one is not connection and now - since >= IDLE_SECONDS:
                self.drop(one)
            else:
                self._idle.put((one, since))

    def close(self) -> None:
        """Close all connections; no read runs any more."""
        while (idle := self._take_idle()) is not None:
            self.drop(idle[0])

    def _take_idle(self) -> tuple[DbConnection, float] | None:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return None
