"""One connection of a process for the locks that outlive a transaction; the jobs of `leader.py` share it.

It never reconnects, because a lock lasts as long as its connection: after a failure the driver makes another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stentor.core.db.driver import DbConnection
from stentor.core.db.sql import Sql
from stentor.core.errors import StoreUnavailable

WAIT_SECONDS = 5.0
"""How long a lock is waited for to be given back; after it the connection is closed, which frees all of them."""
_TRY_LOCK = Sql("select pg_try_advisory_lock(:lock)")
_UNLOCK = Sql("select pg_advisory_unlock(:lock)")
_PING = Sql("select 1")
# Have the server notice within about ten seconds that our machine is gone. By default it takes two hours, during which
# no other process could take over.
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
        self._users: set[object] = set()
        self._holders: dict[int, object] = {}
        """Who in this process has a lock: the server would give it to the same session again."""
        self.is_usable = True

    def hold(self, user: object, lock: int) -> bool:
        """Take a lock for a user if it is free; one that the user has is only checked. Raises StoreUnavailable."""
        with self._mutex:
            holder = self._holders.get(lock)
            try:
                # A held lock lasts as long as its connection, so a ping is enough. Trying again would nest the lock.
                rows = self._open(user).rows(_TRY_LOCK if holder is None else _PING, {"lock": lock})
            except StoreUnavailable:
                self.abandon()
                if self._connection is not None:
                    self._connection.close()
                raise
            if holder is None and rows[0][0]:
                self._holders[lock] = holder = user
            return holder is user

    def leave(self, user: object, lock: int) -> None:
        """Give a lock back if the user has it. The last one that leaves closes the connection."""
        has_mutex = self._mutex.acquire(timeout=WAIT_SECONDS)
        try:
            self._users.discard(user)
            if self._connection is None or not self.is_usable:
                return
            if not has_mutex or not self._users:
                self.abandon()
                self._connection.close()
            elif self._holders.get(lock) is user:
                del self._holders[lock]
                self._connection.rows(_UNLOCK, {"lock": lock})
        except StoreUnavailable:
            self.abandon()
        finally:
            if has_mutex:
                self._mutex.release()

    def abandon(self) -> None:
        """Give up a connection that does not answer; a thread may still be using it."""
        self.is_usable = False

    def _open(self, user: object) -> DbConnection:
        if not self.is_usable:
            raise StoreUnavailable("The session was given up.")
        if self._connection is None:
            self._connection = self._connect()
            self._connection.rows(_SET_KEEPALIVE, {})
        self._users.add(user)
        return self._connection
