"""A TCP proxy that does badly: between Stentor and its database it cuts, delays, or says nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psycopg

CHUNK = 65_536


class Proxy:
    """Forwards connections from a port on 127.0.0.1 to the server of a PostgreSQL address; `url` is that address by
    way of the proxy. Every method may be called from any thread and acts at once.
    """

    def __init__(self, url: str) -> None:
        parts = psycopg.conninfo.conninfo_to_dict(url)
        self._host, self._port = str(parts.get("host", "127.0.0.1")), int(parts.get("port") or 5432)
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._cut_after = 0
        self._cuts_left = 0
        self._delay = 0.0
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port: int = self._do(self._listen())
        user, name = quote(str(parts.get("user", "postgres"))), quote(str(parts.get("dbname", "postgres")))
        word = f":{quote(str(parts['password']))}" if parts.get("password") else ""
        self.url = f"postgresql://{user}{word}@127.0.0.1:{self.port}/{name}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(200)
        self._loop.close()

    def cut(self) -> int:
        """Break all connections; answers how many there were."""
        return int(self._do(self._abort_all()))

    def cut_answers(self, times: int, after: int = 7) -> None:
        """Break the next connections on which the server answers, after so many bytes of the answer."""
        self._cut_after, self._cuts_left = after, times

    def cuts_left(self) -> int:
        return self._cuts_left

    @contextmanager
    def silent(self) -> Iterator[None]:
        """A black hole: connections are accepted and stay open, and nothing comes through in either direction."""
        self._set(self._speaks.clear)
        try:
            yield
        finally:
            self._set(self._speaks.set)

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Every piece comes so much later, in each direction."""
        self._delay = seconds
        try:
            yield
        finally:
            self._delay = 0.0

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(200)

    def _set(self, change: Callable[[], Any]) -> None:
        async def do() -> None:
            change()

        self._do(do())

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _end(self) -> None:
        self._server.close()
        self._speaks.set()
        await self._abort_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _abort_all(self) -> int:
        for writer in list(self._open):
            writer.transport.abort()
        return len(self._open) // 2

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        both = {writer, server}
        self._open |= both
        pipes = [self._pipe(reader, server, answers=False), self._pipe(answers, writer, answers=True)]
        tasks = [asyncio.create_task(pipe) for pipe in pipes]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._open -= both
        for end in both:
            with suppress(OSError):
                end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        return await asyncio.open_connection(self._host, self._port)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await asyncio.sleep(self._delay)
                await self._speaks.wait()
                if answers and self._cuts_left:
                    self._cuts_left -= 1
                    writer.write(data[: self._cut_after])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()
