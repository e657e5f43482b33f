"""Messages through NOTIFY, on connections of their own: its lock at the commit then holds up no transaction of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

CHANNEL = "stentor"
_OPTIONS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    "application_name": "stentor messages",
}


@contextmanager
def _readable(fd: int) -> Iterator[asyncio.Event]:
    """An event that is set whenever there is something to read, and at first."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    event.set()
    loop.add_reader(fd, event.set)
    try:
        yield event
    finally:
        loop.remove_reader(fd)


class PostgresTransport:
    limit = 7_900
    """PostgreSQL takes up to 7,999 bytes."""

    def __init__(self, url: str) -> None:
        given = psycopg.conninfo.conninfo_to_dict(url)
        self._url = url
        self._options = {name: value for name, value in _OPTIONS.items() if name not in given}
        self._sending: psycopg.AsyncConnection[Any] | None = None

    async def listen(self, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        async with await self._connect() as connection:
            await connection.execute(f"listen {CHANNEL}")
            ready()
            # The connection's own generator looks ten times a second; this one only when something came.
            with _readable(connection.fileno()) as readable:
                while True:
                    await readable.wait()
                    readable.clear()
                    connection.pgconn.consume_input()
                    while message := connection.pgconn.notifies():
                        receive(message.extra)

    async def publish(self, payloads: list[bytes]) -> None:
        if self._sending is None or self._sending.closed:
            self._sending = await self._connect()
        texts = [payload.decode() for payload in payloads]
        await self._sending.execute("select pg_notify(%s, text) from unnest(%s::text[]) as text", (CHANNEL, texts))

    async def close(self) -> None:
        if self._sending is not None:
            await self._sending.close()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self._url, autocommit=True, **self._options)
