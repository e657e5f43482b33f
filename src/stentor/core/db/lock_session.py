"""One connection of a process for the locks that outlive a transaction; the jobs of `leader.py` share it.

It never reconnects, because a lock lasts as long as its connection: after a failure the driver makes another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stentor.core.db.driver import DbConnection, Sql
from stentor.core.errors import StoreUnavailable

WAIT_SECONDS = 5.0
"""How long a lock is waited for to be given back; after it the connection is closed, which frees all of them."""
_TRY_LOCK = Sql("select pg_try_advisory_lock(:lock)")
_UNLOCK = Sql("select pg_advisory_unlock(:lock)")
_PING = Sql("select 1")
# Have the server notice within about ten seconds that our machine is gone. By default it takes two hours, and for all
# that time no other process could take over.
_SET_KEEPALIVE = Sql(
    """select set_config('tcp_keepalives_idle', '4', false), set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false)"""
)


class LockSession:
    """The locks of one session, used from any thread. After an error it is unusable."""

    def __init__(self, connect: Callable[[], DbConnection]) -> None:
        self._connect = connect
        self._connection: DbConnection | None = None
        self._mutex = threading.Lock()
        self._users: set[int] = set()
        self.is_usable = True

    def hold(self, lock: int, *, held: bool) -> bool:
        """Take a lock if it is free; with `held` only check that the connection, and so the lock, is still there.

        Raises StoreUnavailable.
        """
        with self._mutex:
            try:
                # A held lock lasts as long as its connection, so a ping is enough. Trying again would nest the lock.
                rows = self._open(lock).rows(_PING if held else _TRY_LOCK, {"lock": lock})
            except StoreUnavailable:
                self.abandon()
                if self._connection is not None:
                    self._connection.close()
                raise
            return bool(rows[0][0])

    def leave(self, lock: int) -> None:
        """Give a lock back. The last one that leaves closes the connection."""
        has_mutex = self._mutex.acquire(timeout=WAIT_SECONDS)
        try:
            self._users.discard(lock)
            if self._connection is None or not self.is_usable:
                return
            if not has_mutex or not self._users:
                self.abandon()
                self._connection.close()
            else:
                self._connection.rows(_UNLOCK, {"lock": lock})
        except StoreUnavailable:
            self.abandon()
        finally:
            if has_mutex:
                self._mutex.release()

    def abandon(self) -> None:
        """Give up a connection that does not answer; a thread may still be using it."""
        self.is_usable = False

    def _open(self, lock: int) -> DbConnection:
        if not self.is_usable:
            raise StoreUnavailable("The session was given up.")
        if self._connection is None:
            self._connection = self._connect()
            self._connection.rows(_SET_KEEPALIVE, {})
        self._users.add(lock)
        return self._connection
