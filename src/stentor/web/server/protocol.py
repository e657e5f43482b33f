"""uvicorn's HTTP protocol with limits on the size of request heads, on pipelining and on time.

uvicorn bounds neither the size of a head nor the time for one (docs/decisions, 0029). Requests over a limit get an
error response here, in the error envelope of the gateway, and never reach an application. The number of connections is
limited in `connections`. Writes are coalesced, so that the head and the body of a response leave in one send.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import IntEnum, auto
from http import HTTPStatus
from typing import Any, NamedTuple

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stentor.core import ids, jsontext, timers
from stentor.web.server.connections import ConnectionRegistry, TrackedConnection, client_network

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADER_FIELDS = 100
MAX_PIPELINED = 64
"""Maximum requests of a connection that wait for an earlier response. Each takes a hundred times its bytes in memory,
and one read can contain thousands.
"""
MIN_BODY_BYTES_PER_SECOND = 1_000
"""Minimum average rate of a body, measured over each body deadline."""
DRAIN_SECONDS = 2.0
"""How long a connection still reads after an error response: closing a socket with unread bytes sends a reset, with
which the client may lose the response. After a response that comes before the end of a body: the time for a body.
"""
MAX_DRAIN_BYTES = 100_000_000
WRITE_TIMEOUT_SECONDS = 60.0
"""How long a client may stop reading its response."""


class ConnectionPhase(IntEnum):
    """What the connection waits for: a request, the rest of a head, the rest of a body, or the application.

    WORK has no deadline: there the client waits for the service.
    """

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    WORK = auto()


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Fails closed: a request over a limit gets an error response if possible, then it closes."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: ConnectionRegistry,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._limits = limits = connections.limits
        self._seconds = {
            ConnectionPhase.IDLE: limits.keep_alive_s,
            ConnectionPhase.HEAD: limits.head_s,
            ConnectionPhase.BODY: limits.body_s,
        }
        self._deadlines = timers.coarse_timers(self.loop)
        self._address = ""
        self._unparsed = 0  # bytes of a head or trailer that the parser still buffers
        self._body = 0  # bytes of the body since its deadline was set, or dropped since the error response
        self._phase = ConnectionPhase.HEAD
        self._armed: ConnectionPhase | None = None  # the phase whose deadline is set
        self._refused = self._is_stopping = False
        self.has_served = False
        self.handshake: TrackedConnection | None = None
        """The TLS handshake that was counted so far; this connection takes over its slot."""

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being processed."""
        is_complete = self.cycle is None or self.cycle.response_complete
        return not self.pipeline and (is_complete or self._phase is ConnectionPhase.BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._coalescing = CoalescingTransport(transport, self.loop, self._may_close)
        super().connection_made(self._coalescing)  # pyrefly: ignore[bad-argument-type] - it has the methods of a transport that uvicorn calls
        self._address = client_network(self.client[0] if self.client else "")
        if self.handshake is not None:
            # First: at a limit this connection would otherwise evict its own handshake, and with it itself.
            self._connections.release(self.handshake, self._address)
        if self._connections.admit(self, self._address):
            self._set_deadline()
            return
        # Close without draining, which would keep the file descriptor open while descriptors are short.
        self._refused = True
        self.transport.write(encode_reply(TOO_MANY_CONNECTIONS))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._refused = True
        self._connections.release(self, self._address)
        self._deadlines.cancel(self)
        self._deadlines.cancel(self.flow)
        super().connection_lost(exc)
        # It refers to this object, which would be left to the garbage collector.
        self._coalescing.may_close = _always

    def shutdown(self) -> None:
        self._is_stopping = True
        super().shutdown()

    def drop(self) -> None:
        self._refused = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._body += len(data)
            if self._body > MAX_DRAIN_BYTES:
                self.drop()
            return
        while data and not self._refused:
            # Feed at most what the limit still allows, because the parser buffers an incomplete head without a bound.
            room = MAX_HEAD_BYTES + 1 - self._unparsed
            chunk, data = data[:room], data[room:]
            self._unparsed += len(chunk)
            super().data_received(chunk)
            if self._unparsed > MAX_HEAD_BYTES or (self.headers is not None and len(self.headers) > MAX_HEADER_FIELDS):
                self._refuse(HEAD_TOO_LARGE)
        if self._armed is not self._phase and not self._refused:
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Send the error for a parser failure, including one that a callback below raised."""
        too_many = self.headers is not None and len(self.headers) > MAX_HEADER_FIELDS
        self._refuse(HEAD_TOO_LARGE if too_many else INVALID_REQUEST)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing of an Upgrade header, which a server may ignore: uvicorn would advise to install a library."""

    def on_message_begin(self) -> None:
        self._phase, self._armed = ConnectionPhase.HEAD, None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_HEADER_FIELDS:
            raise httptools.HttpParserCallbackError("too many fields")  # before the application starts
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserCallbackError("too many requests")
        hosts = sum(name == b"host" for name, _ in self.headers)
        # Another Host could be the one that a proxy has checked (RFC 9112, 3.2); HTTP/1.0 has none.
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise httptools.HttpParserCallbackError("not one host")
        # None, because BODY may still be armed from the request before: `data_received` then sets a new deadline.
        self._phase, self._armed = ConnectionPhase.BODY, None
        self._unparsed = self._body = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        self._phase = ConnectionPhase.IDLE if self.cycle.response_complete else ConnectionPhase.WORK
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Do what uvicorn does, but with the coarse timer: one event loop timer per request costs more."""
        self.server_state.total_requests += 1
        self.has_served = True
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._phase is ConnectionPhase.WORK:
            self._phase = ConnectionPhase.IDLE
            self._set_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadlines.schedule(self.flow, WRITE_TIMEOUT_SECONDS, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._deadlines.cancel(self.flow)

    def _set_deadline(self) -> None:
        self._armed = self._phase
        if self._phase is ConnectionPhase.WORK:
            self._deadlines.cancel(self)
            return
        self._deadlines.schedule(self, self._seconds[self._phase], self._on_deadline)

    def _on_deadline(self) -> None:
        if self._refused:
            self.transport.abort()
        elif self._phase is ConnectionPhase.BODY and self._is_body_flowing():
            self._body = 0
            self._set_deadline()
        elif self._phase is ConnectionPhase.BODY or self._unparsed:
            self._refuse(REQUEST_TIMEOUT)
        else:
            self._close_idle()

    def _is_body_flowing(self) -> bool:
        """Return whether the body arrives fast enough, or the application does not read it."""
        is_paused = self.flow.read_paused or self.cycle.waiting_for_100_continue
        return is_paused or self._body >= MIN_BODY_BYTES_PER_SECOND * self._limits.body_s

    def _close_idle(self) -> None:
        """Close a connection without a request."""
        # close() would wait forever for a client that does not read its last response.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, reply: ErrorReply) -> None:
        """Stop reading, send the reply and close.

        If earlier requests are still being processed, the connection ends after their last response instead, and the
        client retries the rest, as HTTP specifies.
        """
        if self._refused:
            return
        self._refused = True
        if not self.is_waiting:
            self.cycle.keep_alive = False  # closes the connection after this response
            self._deadlines.cancel(self)
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.transport.abort()
                return
            # Wake the application, so that it sees the disconnect and stops.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(encode_reply(reply))
        self._drain(DRAIN_SECONDS)

    def _may_close(self) -> bool:
        """Return whether no more of a body is expected; otherwise drop the rest of it first."""
        if self._refused or self._is_stopping or self._phase is not ConnectionPhase.BODY:
            return True
        self.pipeline.clear()
        self._drain(self._limits.body_s)
        return False

    def _drain(self, seconds: float) -> None:
        """End the response, then drop what arrives until the client closes, at most for this time."""
        self._refused, self._body = True, 0
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        self._deadlines.schedule(self, seconds, self.transport.abort)


class ErrorReply(NamedTuple):
    """An error response that is sent without an application."""

    status: int
    code: str
    message: str


INVALID_REQUEST = ErrorReply(400, "INVALID_REQUEST", "The request is not valid HTTP.")
PLAIN_HTTP = ErrorReply(400, "INVALID_REQUEST", "This port speaks HTTPS: use https:// in place of http://.")
REQUEST_TIMEOUT = ErrorReply(408, "REQUEST_TIMEOUT", "The request did not arrive in time.")
HEAD_TOO_LARGE = ErrorReply(431, "REQUEST_HEAD_TOO_LARGE", "The head of a request may have 64 kB and 100 fields.")
TOO_MANY_CONNECTIONS = ErrorReply(
    503, "SERVICE_UNAVAILABLE", "There are too many connections. Close some, or try again later."
)


def encode_reply(reply: ErrorReply) -> bytes:
    """Encode the complete response, with `Connection: close`."""
    request_id = ids.new_id()
    error = {"code": reply.code, "message": reply.message, "request_id": request_id}
    body = jsontext.encode({"error": error})
    retry = "Retry-After: 1\r\n" if reply.status == 503 else ""
    head = (
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-Request-Id: {request_id}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _always() -> bool:
    return True


class CoalescingTransport:
    """A transport that buffers a write until the next one, at most until the next iteration of the event loop.

    Each send wakes the reader, which costs both sides more than joining two chunks. `close` does not close it while
    `may_close` returns False.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        may_close: Callable[[], bool] = _always,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self.may_close = may_close
        self._buffer = b""

    def write(self, data: bytes) -> None:
        if self._buffer:
            data, self._buffer = self._buffer + data, b""
            self._transport.write(data)
        elif data:
            self._buffer = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        if self.may_close():
            self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._buffer:
            data, self._buffer = self._buffer, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
