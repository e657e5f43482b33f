"""The PostgreSQL driver, which opens connections to one database (`connection`).

If a process hangs in a transaction, the server terminates its connection, so that other processes wait a few seconds at
most for its locks.

With `session_url`, `url` may lead to a pooler in transaction mode (PgBouncer): then a transaction may rely on nothing
that an earlier one left on its connection, and locks that outlive a transaction are taken at `session_url`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import psycopg

from stentor.core.clock import Clock
from stentor.core.db.locks import locks as advisory
from stentor.core.db.locks.session import LockSession
from stentor.core.db.postgres.connection import PostgresConnection
from stentor.core.db.postgres.server_waits import STATEMENT_SECONDS, ConnectPause, SilenceLimit, connect_options

IDLE_IN_TRANSACTION_SECONDS = 10
"""How long a transaction may be idle before the server terminates its connection."""
# No sequential scans: a plan made while a table was empty would read the complete table until the next ANALYZE.
_SETTINGS = {
    "synchronous_commit": "on",
    "statement_timeout": f"'{STATEMENT_SECONDS}s'",
    "enable_seqscan": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": f"'{IDLE_IN_TRANSACTION_SECONDS}s'",
}


class PostgresDriver:
    """Opens connections to one PostgreSQL database.

    `session_url` leads to the same database without a pooler; empty if `url` does. `settings` are added to those that
    every connection gets. `lock_space` is the key of the lock that excludes all other writers: tables that are never
    changed in one transaction with others, such as those of the search index, may have their own.
    """

    name = "postgresql"
    shared = True

    def __init__(
        self,
        url: str,
        clock: Clock | None = None,
        settings: Mapping[str, str] | None = None,
        lock_space: int = advisory.EVERYTHING_LOCK,
        session_url: str = "",
    ) -> None:
        self.url = url
        self._clock = clock
        self._settings = {**_SETTINGS, **(settings or {})}
        self._lock_space = lock_space
        self._session_url = session_url
        self._pause, self._limit = ConnectPause(), SilenceLimit()
        self._lock_session: LockSession | None = None
        self._mutex = threading.Lock()

    @property
    def is_pooled(self) -> bool:
        return bool(self._session_url)

    @property
    def session_url(self) -> str:
        """The address without a pooler."""
        return self._session_url or self.url

    def with_settings(self, settings: Mapping[str, str], lock_space: int) -> PostgresDriver:
        """Return a driver for the same database whose connections use these settings too."""
        driver = PostgresDriver(self.url, None, settings, lock_space, self._session_url)
        driver._limit = self._limit
        return driver

    def connect(self, server: str = "read-write") -> psycopg.Connection[Any]:
        """Connect without the pooler and the settings. `server` is the kind of server to accept.

        Raises psycopg.Error.
        """
        return psycopg.connect(self.session_url, **connect_options(self.session_url, server))

    def writer(self) -> PostgresConnection:
        return self._open(read_only=False)

    def reader(self, *, may_idle: bool = False) -> PostgresConnection:
        return self._open(read_only=True, may_idle=may_idle)

    def lock_session(self) -> LockSession:
        """Return the session for locks that outlive a transaction: one for all of them in a process."""
        with self._mutex:
            if self._lock_session is None or not self._lock_session.is_usable:
                self._lock_session = LockSession(self._open_session)
            return self._lock_session

    def shorten_timeouts(self) -> None:
        self._limit.stop()

    def _open(self, *, read_only: bool, may_idle: bool = False) -> PostgresConnection:
        settings = self._settings | ({"idle_in_transaction_session_timeout": "0"} if may_idle else {})
        return self._connection(self.url, settings, self._pause, read_only=read_only, pooled=self.is_pooled)

    def _open_session(self) -> PostgresConnection:
        # A writer's connection marks the process as one that serves. With a pooler no other connection can.
        setting = "SERVICE_DATABASE_SESSION_URL" if self._session_url else "SERVICE_DATABASE_URL"
        return self._connection(self.session_url, self._settings, ConnectPause(), setting, read_only=not self.is_pooled)

    def _connection(
        self,
        url: str,
        settings: Mapping[str, str],
        pause: ConnectPause,
        setting: str = "SERVICE_DATABASE_URL",
        *,
        read_only: bool,
        pooled: bool = False,
    ) -> PostgresConnection:
        return PostgresConnection(
            url,
            self._clock,
            settings,
            self._lock_space,
            pause,
            self._limit,
            setting,
            read_only=read_only,
            pooled=pooled,
        )
