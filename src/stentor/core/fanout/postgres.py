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
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from stentor.core.db.postgres.pipeline import take_results
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
    "prepare_threshold": None,
}

_NOTIFY = b"select pg_notify($1::text, $2::text)"
_PREPARED = b"stentor_notify"
QUIET_SECONDS, ANSWER_SECONDS = 30.0, 30.0
"""After as long without a payload the server is asked whether it is there; and how long a statement may take."""


def channel_of(process: Address) -> str:
    """Return the channel on which only this process listens."""
    return CHANNEL if process is None else f"{CHANNEL}_{process}"


async def _receive(connection: psycopg.AsyncConnection[Any], receive: Callable[[bytes | str], None]) -> None:
    """Receive payloads until none has come for a while. Raises if the connection is lost; `Fanout` connects again."""
    # psycopg's own generator polls ten times a second; here nothing runs until data arrives.
    loop, raw, fd = asyncio.get_running_loop(), connection.pgconn, connection.fileno()
    lost, heard_at = loop.create_future(), loop.time()

    def read() -> None:
        nonlocal heard_at
        heard_at = loop.time()
        try:
            raw.consume_input()
            while message := raw.notifies():
                receive(message.extra)
        except Exception as error:  # noqa: BLE001 - raised below
            loop.remove_reader(fd)
            lost.set_exception(error)

    loop.add_reader(fd, read)
    try:
        read()  # data may have arrived before the reader was added
        while (rest := heard_at + QUIET_SECONDS - loop.time()) > 0:
            if (await asyncio.wait((lost,), timeout=rest))[0]:
                await lost
    finally:
        loop.remove_reader(fd)


@contextmanager
def _answered(connection: psycopg.AsyncConnection[Any]) -> Iterator[None]:
    """Lose the connection if the server does not answer in time what the block sends. Then it raises psycopg.Error."""
    timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, _shut_down, connection.fileno())
    try:
        yield
    finally:
        timer.cancel()


def _shut_down(fd: int) -> None:
    # To cancel the statement instead, psycopg would ask the server.
    with suppress(OSError), socket.socket(fileno=os.dup(fd)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


async def _send(
    connection: psycopg.AsyncConnection[Any], payloads: list[tuple[Address, bytes]], *, is_prepared: bool
) -> None:
    """Send payloads in one transaction, because each commit with NOTIFY takes the lock again.

    With libpq itself, for which psycopg's `execute` needs seven times as long. Raises psycopg.Error, and closes the
    connection if anything fails.
    """
    raw, fd, loop, results = connection.pgconn, connection.fileno(), asyncio.get_running_loop(), list[PGresult]()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        raw.enter_pipeline_mode()
        for to, payload in payloads:
            values = channel_of(to).encode(), payload
            if is_prepared:
                raw.send_query_prepared(_PREPARED, values)
            else:
                raw.send_query_params(_NOTIFY, values)
        raw.pipeline_sync()
        while not take_results(raw, results):
            if raw.flush():
                loop.add_writer(fd, ready.set)
            await ready.wait()
            ready.clear()
            loop.remove_writer(fd)
            raw.consume_input()
        raw.exit_pipeline_mode()
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
    except BaseException:
        raw.finish()
        raise
    finally:
        loop.remove_reader(fd)
        loop.remove_writer(fd)


class PostgresTransport:
    """A `FanoutTransport`; one connection listens, another one sends.

    `session_url` is the address to listen at if `url` leads to a pooler, where a session is gone with its transaction.
    """

    limit = 7_900
    """PostgreSQL accepts up to 7,999 bytes."""

    def __init__(self, url: str, session_url: str = "") -> None:
        self._url = url
        self._session_url = session_url or url
        # A pooler may send the next transaction to a server that has not prepared what the last one did.
        self._is_pooled = self._session_url != url
        self._sender: psycopg.AsyncConnection[Any] | None = None

    async def listen(self, own_id: str, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        async with await _connect(self._session_url) as connection:
            for process in (None, own_id):
                with _answered(connection):
                    await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel_of(process))))
            ready()
            connection.add_notify_handler(lambda notify: receive(notify.payload))
            while True:
                await _receive(connection, receive)
                # A server that is lost need not close the connection. What arrives now goes to the handler.
                with _answered(connection):
                    await connection.execute("select 1")

    async def publish(self, payloads: list[tuple[Address, bytes]]) -> None:
        if self._sender is None or self._sender.closed:
            self._sender = await _connect(self._url)
            if not self._is_pooled:
                with _answered(self._sender):
                    await self._sender.execute(b"prepare " + _PREPARED + b" as " + _NOTIFY)
        with _answered(self._sender):
            await _send(self._sender, payloads, is_prepared=not self._is_pooled)

    async def close(self) -> None:
        if self._sender is not None:
            await self._sender.close()


async def _connect(url: str) -> psycopg.AsyncConnection[Any]:
    in_url = psycopg.conninfo.conninfo_to_dict(url)
    options = {name: value for name, value in _OPTIONS.items() if name not in in_url}
    # In a transaction LISTEN and NOTIFY would take effect only at its commit.
    return await psycopg.AsyncConnection.connect(url, autocommit=True, **options)
