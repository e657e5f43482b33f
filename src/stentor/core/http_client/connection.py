"""One connection of HTTP/1.1, one request at a time, and the answer as it comes."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import NamedTuple, cast

import httptools

from stentor.core.timers import CoarseTimers

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of status line and headers."""
HIGH_WATER_BYTES = 256 * 1024
"""Bytes that wait for their reader before reading from the network pauses."""


class RemoteProtocolError(Exception):
    """The connection ended, or what came is not HTTP."""


class ResponseTooLarge(Exception):
    """More bytes than the reader takes."""


class ConnectionKey(NamedTuple):
    """Where a connection goes, and for whom."""

    host: str
    port: int
    tls: bool
    tenant: str = ""
    credential: str = ""


class ClientResponse:
    """The head of an answer, and its body as it comes. Used as a context it gives up what was not read."""

    def __init__(self, connection: ClientConnection, deadlines: CoarseTimers) -> None:
        self._connection = connection
        self._deadlines = deadlines
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._buffer = bytearray()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = self.is_done = False

    async def __aenter__(self) -> ClientResponse:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer)

    def close(self) -> None:
        """End the other side's work, unless all of it has come."""
        self._deadlines.cancel(self)
        if not self.is_done:
            self._connection.abort()

    def set_timeout(self, seconds: float) -> None:
        """Have all of it come within so many seconds from now: who waits for more then reads TimeoutError.

        Instead of the limit before; `lines` has its own.
        """
        self._deadlines.schedule(self, seconds, lambda: self.fail(TimeoutError()))

    async def read_head(self) -> None:
        while not self.has_head:
            await self._more()

    async def read_body(self, max_bytes: int) -> bytes:
        """All of it. Raises TooLarge, BrokenOff."""
        while not self.is_done and len(self._buffer) <= max_bytes:
            await self._more()
        if len(self._buffer) > max_bytes:
            raise ResponseTooLarge
        return bytes(self._buffer)

    async def read_prefix(self, max_bytes: int) -> bytes:
        """At most so many bytes of its beginning."""
        while not self.is_done and len(self._buffer) < max_bytes:
            await self._more()
        return bytes(self._buffer[:max_bytes])

    async def read_lines(self, max_bytes: int, idle_timeout: float) -> bytes:
        """The whole lines that have come, at least one; nothing at the end.

        Raises TooLarge, BrokenOff, TimeoutError.
        """
        start = 0
        while (end := self._buffer.rfind(b"\n", start)) < 0 and not self.is_done:
            if len(self._buffer) > max_bytes:
                raise ResponseTooLarge
            start = len(self._buffer)
            self.set_timeout(idle_timeout)
            await self._more()
            self._deadlines.cancel(self)
        found = bytes(self._buffer if end < 0 else self._buffer[: end + 1])
        del self._buffer[: len(found)]
        return found

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._connection.resume()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._error is not None:
            raise self._error

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def finish(self) -> None:
        """All of it has come."""
        self.is_done = True
        self._deadlines.cancel(self)

    def fail(self, error: Exception) -> None:
        self._error = error
        self._deadlines.cancel(self)
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ClientConnection(asyncio.Protocol):
    """One connection; `release` is called when it is free again."""

    def __init__(
        self,
        place: ConnectionKey,
        release: Callable[[ClientConnection], None],
        gone: Callable[[ClientConnection], None],
    ) -> None:
        self.key, self._release, self._gone = place, release, gone
        self._answer: ClientResponse | None = None
        self._paused = self._endless = False
        self._head = self._named = 0
        self.is_open, self.idle_since = True, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes, deadlines: CoarseTimers) -> ClientResponse:
        self._parser = httptools.HttpResponseParser(self)
        self._head, self._named, self._endless = 0, 0, True
        self._answer = answer = ClientResponse(self, deadlines)
        self._transport.write(data)
        return answer

    def is_reusable(self) -> bool:
        """Whether it can be used again. Bytes that have come since the last answer would be taken for the next one."""
        if not self.is_open:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
            if not answer.has_head:
                self._head += len(data)
                if self._head > MAX_HEAD_BYTES:
                    raise ResponseTooLarge
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ResponseTooLarge, UnicodeError) as error:
            self._fail(RemoteProtocolError(f"the answer is not HTTP ({type(error).__name__})"))
            return
        if answer.buffered_bytes > HIGH_WATER_BYTES and not answer.is_done:
            self._paused = True
            self._transport.pause_reading()
        answer.wake()

    def on_message_begin(self) -> None:
        if self._answer is None:
            self.abort()  # more than was asked for: what is next on this connection belongs to nobody

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._answer is not None:
            known = name.decode("latin-1").lower()
            self._answer.headers[known] = value.decode("latin-1")
            self._named += len(name) + len(value)
            if self._named > MAX_HEAD_BYTES:
                raise ResponseTooLarge
            self._endless = self._endless and known not in ("content-length", "transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:
            self._answer.status, self._answer.has_head = status, True

    def on_body(self, data: bytes) -> None:
        if self._answer is not None:
            self._answer.feed(data)

    def on_message_complete(self) -> None:
        answer = self._answer
        if answer is None:
            return
        if not answer.has_head:  # 1xx: the answer is still to come
            answer.headers.clear()
            self._endless = True
            return
        answer.finish()
        self._answer = None
        if self._parser.should_keep_alive() and self.is_open:
            self._release(self)
        else:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        answer = self._answer
        if answer is not None and answer.has_head and self._endless and error is None:
            answer.finish()
            self._answer = None
            answer.wake()
        else:
            self._fail(RemoteProtocolError("the connection ended"))
        self._gone(self)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None:
            self._answer.fail(error)
            self._answer = None
        self.abort()
