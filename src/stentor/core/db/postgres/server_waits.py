"""Limits on how long a process waits for a PostgreSQL server: to connect, and for the answer to a statement.

TCP does not show that a server is lost: a pooler or a proxy before it, or a server that is frozen, keeps the
connection open and says nothing.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import psycopg

from stentor.core.db.sql import Row
from stentor.core.errors import StoreUnavailable

T = TypeVar("T")
log = logging.getLogger(__name__)

LONG_CONNECT_SECONDS, PAUSE_SECONDS = 1.0, 1.0
"""A connect that failed after as long a wait is followed by a pause in which all others fail at once."""
STATEMENT_SECONDS = 60
"""After as long the server itself ends a statement."""
SILENCE_SECONDS, SILENCE_AT_STOP_SECONDS = STATEMENT_SECONDS + 10.0, 15.0
"""How long a server may send nothing during a statement, usually and while the process stops."""


_CONNECT = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    # In milliseconds, unlike its neighbours.
    "tcp_user_timeout": 30_000,
    "application_name": "stentor",
}


class NoAnswer(psycopg.OperationalError):
    """The server sent nothing for too long, so the connection was closed."""


def connect_options(url: str, server: str) -> dict[str, Any]:
    """Return our connection options, without those that the URL sets. `server` is the kind of server to accept."""
    in_url = psycopg.conninfo.conninfo_to_dict(url)
    # A standby accepts connections and transactions too, and its locks do not exclude users of the primary.
    options = {**_CONNECT, "target_session_attrs": server}
    return {name: value for name, value in options.items() if name not in in_url}


class ConnectPause:
    """Makes callers fail at once instead of waiting in turn for a server that does not answer; shared by a driver."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        return time.monotonic() < self._until

    @contextmanager
    def observe(self) -> Iterator[None]:
        """Try to connect in this block. Raises StoreUnavailable in the pause."""
        began = time.monotonic()
        if self.is_on:
            error = StoreUnavailable("The database did not answer a moment ago.")
            error.is_silent = True
            raise error
        try:
            yield
        except psycopg.OperationalError:
            now = time.monotonic()
            if now - began >= LONG_CONNECT_SECONDS:
                self._until = now + PAUSE_SECONDS
            raise


class SilenceLimit:
    """How long a server may send nothing during a statement; shared by a driver's connections."""

    def __init__(self) -> None:
        self._is_stopping = False

    def stop(self) -> None:
        """Wait less from now on, also for the statements that are running."""
        self._is_stopping = True

    @property
    def seconds(self) -> float:
        return SILENCE_AT_STOP_SECONDS if self._is_stopping else SILENCE_SECONDS


CHECK_MS = 100
"""How often a wait for the server looks at the limit."""


class LimitedConnection(psycopg.Connection[Row]):
    """A connection whose statements raise NoAnswer at the `limit`."""

    limit = SilenceLimit()

    def wait_ready(self, events: int) -> int:
        """Wait until the socket is ready for some of these events of `select.poll`, and return for which.

        For callers that use libpq directly: psycopg's own wait, with its generators, takes twice as long.
        """
        poll, waited_for = self._poll
        if events != waited_for:
            poll.register(self.pgconn.socket, events)
            self._poll = poll, events
        since = time.monotonic()
        while not (ready := poll.poll(CHECK_MS)):
            if (silent := time.monotonic() - since) >= self.limit.seconds:
                self._give_up(silent)
        return ready[0][1]

    @cached_property
    def _poll(self) -> tuple[select.poll, int]:
        return select.poll(), 0

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._limited(gen), *args, **kwargs)

    def _limited(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run psycopg's generator, which is sent what the socket is ready for: ten times a second it is sent 0."""
        heard_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                if ready := (yield wanted):
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at >= self.limit.seconds:
                    self._give_up(time.monotonic() - heard_at)
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result

    def _give_up(self, seconds: float) -> None:
        self.close()
        # Logged here too, because the outage log omits a statement that succeeds at the second attempt.
        log.error("database: connection closed, the server does not answer seconds=%.0f", seconds)
        raise NoAnswer(f"the server sent nothing for {seconds:.0f} seconds")
