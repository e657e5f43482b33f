"""One HTTP/1.1 connection, for one request at a time, and its streamed response. The pool is in `client`."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import NamedTuple, cast

import httptools

from stentor.core.timers import CoarseTimers

MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of the status line and headers."""
HIGH_WATER_BYTES = 256 * 1024
"""Unread bytes of a body at which reading from the network pauses."""


class RemoteProtocolError(Exception):
    """The connection was lost, or the response is not valid HTTP."""


class ResponseTooLarge(Exception):
    """The response has more bytes than the caller allows."""


class ConnectionKey(NamedTuple):
    """The server and the owner of a connection; it is reused only for an equal key."""

    host: str
    port: int
    tls: bool
    tenant: str = ""
    credential: str = ""


class ClientResponse:
    """The head of a response and its body as a stream.

    As a context manager it closes the connection at exit if the response is incomplete.
    """

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
        """Close the connection, which tells the server to stop, unless the response is complete."""
        self._deadlines.cancel(self)
        if not self.is_done:
            self._connection.abort()

    def set_timeout(self, seconds: float) -> None:
        """Raise TimeoutError in the reader if the response is not complete in `seconds` from now.

        Replaces an earlier timeout. `read_lines` sets its own.
        """
        self._deadlines.schedule(self, seconds, lambda: self.fail(TimeoutError()))

    async def read_head(self) -> None:
        """Wait for status and headers."""
        while not self.has_head:
            await self._more()

    async def read_body(self, max_bytes: int) -> bytes:
        """Return the complete body. Raises ResponseTooLarge, RemoteProtocolError, TimeoutError."""
        while not self.is_done and len(self._buffer) <= max_bytes:
            await self._more()
        if len(self._buffer) > max_bytes:
            raise ResponseTooLarge
        return bytes(self._buffer)

    async def read_prefix(self, max_bytes: int) -> bytes:
        """Return at most `max_bytes` from the start of the body."""
        while not self.is_done and len(self._buffer) < max_bytes:
            await self._more()
        return bytes(self._buffer[:max_bytes])

    async def read_lines(self, max_bytes: int, idle_timeout: float) -> bytes:
        """Return the complete lines that have arrived, at least one; empty at the end of the body.

        Raises ResponseTooLarge for a longer line, RemoteProtocolError, and TimeoutError after `idle_timeout` seconds
        without data.
        """
        start = 0
        while (end := self._buffer.rfind(b"\n", start)) < 0 and not self.is_done:
            if len(self._buffer) > max_bytes:
                raise ResponseTooLarge
            start = len(self._buffer)
            self.set_timeout(idle_timeout)
            await self._more()
            self._deadlines.cancel(self)
        lines = bytes(self._buffer if end < 0 else self._buffer[: end + 1])
        del self._buffer[: len(lines)]
        return lines

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
        """Add bytes of the body."""
        self._buffer += data

    def finish(self) -> None:
        """Mark the response as complete."""
        self.is_done = True
        self._deadlines.cancel(self)

    def fail(self, error: Exception) -> None:
        """Raise the error in the reader, now or at its next read."""
        self._error = error
        self._deadlines.cancel(self)
        self.wake()

    def wake(self) -> None:
        """Let the reader look at what has arrived."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ClientConnection(asyncio.Protocol):
    """One connection; calls `release` when it is free for the next request, and `lost` when it is closed."""

    def __init__(
        self,
        key: ConnectionKey,
        release: Callable[[ClientConnection], None],
        lost: Callable[[ClientConnection], None],
    ) -> None:
        self.key, self._release, self._lost = key, release, lost
        self._response: ClientResponse | None = None
        self._is_paused = False
        self._ends_at_close = False
        """Whether the response has no length, so that the end of the connection is the end of the body."""
        self._head_bytes = self._header_bytes = 0
        self.is_open, self.idle_since = True, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._poll = select.poll()
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def send(self, data: bytes, deadlines: CoarseTimers) -> ClientResponse:
        """Send a request and return its response, of which nothing has arrived yet."""
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes, self._header_bytes, self._ends_at_close = 0, 0, True
        self._response = response = ClientResponse(self, deadlines)
        self._transport.write(data)
        return response

    def is_reusable(self) -> bool:
        """Return whether the connection is open and has no unread bytes.

        Bytes after the last response would be taken for the next one: a way to forge responses.
        """
        if not self.is_open:
            return False
        return not self._poll.poll(0)

    def abort(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        self._transport.abort()

    def resume(self) -> None:
        """Read from the network again after a pause."""
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # no request is open
            return
        try:
            self._parser.feed_data(data)
            if not response.has_head:
                self._head_bytes += len(data)
                if self._head_bytes > MAX_HEAD_BYTES:
                    raise ResponseTooLarge
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ResponseTooLarge, UnicodeError) as error:
            self._fail(RemoteProtocolError(f"the response is not valid HTTP ({type(error).__name__})"))
            return
        if response.buffered_bytes > HIGH_WATER_BYTES and not response.is_done:
            self._is_paused = True
            self._transport.pause_reading()
        response.wake()

    def on_message_begin(self) -> None:
        if self._response is None:
            self.abort()  # a second response to one request: nothing on this connection can be trusted

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None:
            header = name.decode("latin-1").lower()
            self._response.headers[header] = value.decode("latin-1")
            # Counted here too: trailers after the body are headers without a limit otherwise.
            self._header_bytes += len(name) + len(value)
            if self._header_bytes > MAX_HEAD_BYTES:
                raise ResponseTooLarge
            self._ends_at_close = self._ends_at_close and header not in ("content-length", "transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._response is not None and status >= 200:
            self._response.status, self._response.has_head = status, True

    def on_body(self, data: bytes) -> None:
        if self._response is not None:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        if not response.has_head:  # an interim response (1xx); the final one follows
            response.headers.clear()
            self._ends_at_close = True
            return
        response.finish()
        self._response = None
        if self._parser.should_keep_alive() and self.is_open:
            self._release(self)
        else:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        response = self._response
        if response is not None and response.has_head and self._ends_at_close and error is None:
            response.finish()
            self._response = None
            response.wake()
        else:
            self._fail(RemoteProtocolError("the connection was closed before the response was complete"))
        self._lost(self)

    def _fail(self, error: Exception) -> None:
        if self._response is not None:
            self._response.fail(error)
            self._response = None
        self.abort()
