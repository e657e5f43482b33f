"""The fan-out transport over PostgreSQL's NOTIFY.

On connections of its own: a commit with NOTIFY takes a lock of the complete server, which must not delay the service's
transactions.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from stentor.core.fanout.fanout import Address

CHANNEL = "stentor"
"""For all processes; each has one of its own besides, see `channel_of`."""
_OPTIONS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "stentor messages",
    # A standby takes no LISTEN and no NOTIFY.
    "target_session_attrs": "primary",
    # A pooler would send the next transaction to a server that has not prepared it.
    "prepare_threshold": None,
}

_NOTIFY = sql.SQL("select pg_notify(channel, text) from unnest(%s::text[], %s::text[]) as payload (channel, text)")
QUIET_SECONDS, ANSWER_SECONDS = 30.0, 30.0
"""After as long without a payload the server is asked whether it is there; and how long a statement may take."""


def channel_of(process: Address) -> str:
    """Return the channel on which only this process listens."""
    return CHANNEL if process is None else f"{CHANNEL}_{process}"


@contextmanager
def _readable(fd: int) -> Iterator[asyncio.Event]:
    """Yield an event that is set when the descriptor is readable, and once at the start."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    # Data may have arrived before the reader was added.
    event.set()
    loop.add_reader(fd, event.set)
    try:
        yield event
    finally:
        loop.remove_reader(fd)


async def _receive(connection: psycopg.AsyncConnection[Any], receive: Callable[[bytes | str], None]) -> None:
    """Receive payloads until none has come for a while. Raises if the connection is lost; `Fanout` connects again."""
    # psycopg's own generator polls ten times a second; this loop wakes only when data arrives.
    with _readable(connection.fileno()) as readable, suppress(TimeoutError):
        while True:
            async with asyncio.timeout(QUIET_SECONDS):
                await readable.wait()
            readable.clear()
            connection.pgconn.consume_input()
            while message := connection.pgconn.notifies():
                receive(message.extra)


async def _execute(
    connection: psycopg.AsyncConnection[Any], statement: sql.SQL | sql.Composed, params: Any = None
) -> None:
    """Execute a statement, whose connection is lost if the server does not answer it in time. Raises psycopg.Error."""
    timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, _shut_down, connection.fileno())
    try:
        await connection.execute(statement, params)
    finally:
        timer.cancel()


def _shut_down(fd: int) -> None:
    # To cancel the statement instead, psycopg would ask the server.
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


class PostgresTransport:
    """A `FanoutTransport`; one connection listens, another one sends.

    `session_url` is the address to listen at if `url` leads to a pooler, where a session is gone with its transaction.
    """

    limit = 7_900
    """PostgreSQL accepts up to 7,999 bytes."""

    def __init__(self, url: str, session_url: str = "") -> None:
        self._url = url
        self._session_url = session_url or url
        self._sender: psycopg.AsyncConnection[Any] | None = None

    async def listen(self, own_id: str, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        async with await _connect(self._session_url) as connection:
            for process in (None, own_id):
                await _execute(connection, sql.SQL("listen {}").format(sql.Identifier(channel_of(process))))
            ready()
            connection.add_notify_handler(lambda notify: receive(notify.payload))
            while True:
                await _receive(connection, receive)
                # A server that is lost need not close the connection. What arrives now goes to the handler.
                await _execute(connection, sql.SQL("select 1"))

    async def publish(self, payloads: list[tuple[Address, bytes]]) -> None:
        # One statement for all payloads, because each commit with NOTIFY takes the lock again.
        if self._sender is None or self._sender.closed:
            self._sender = await _connect(self._url)
        channels = [channel_of(to) for to, _ in payloads]
        texts = [payload.decode() for _, payload in payloads]
        await _execute(self._sender, _NOTIFY, (channels, texts))

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()


async def _connect(url: str) -> psycopg.AsyncConnection[Any]:
    in_url = psycopg.conninfo.conninfo_to_dict(url)
    options = {name: value for name, value in _OPTIONS.items() if name not in in_url}
    # In a transaction LISTEN and NOTIFY would take effect only at its commit.
    return await psycopg.AsyncConnection.connect(url, autocommit=True, **options)
