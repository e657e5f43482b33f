"""uvicorn's protocol with limits: it counts what a client sends before the parser may keep it, and sets deadlines.

uvicorn itself bounds neither the size of a head nor the time for one. Source: docs/decisions, 0029.

The answers to requests that never reach an application, in the error envelope of the gateway.

Writes to a connection that belong together leave together: the head of an answer with its body.

Each send wakes whoever reads, which costs both sides more than to put two pieces together.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum, auto
from http import HTTPStatus
from typing import Any, NamedTuple

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stentor.cli.server.connections import ConnectionRegistry, client_network
from stentor.core import ids, jsontext, timers

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADER_FIELDS = 100
MAX_PIPELINED = 64
"""Requests of a connection that wait for the answer to an earlier one. Each costs a hundred times its bytes in memory,
and one read brings thousands.
"""
MIN_BODY_BYTES_PER_SECOND = 1_000
"""Bytes of a body that must arrive in a second, on average over the body's deadline."""
LINGER_SECONDS = 2.0
"""For reading what a refused client still sends: a socket closed with unread bytes takes the answer back."""
WRITE_TIMEOUT_SECONDS = 60.0
"""For a client that does not read its answer."""


class ConnectionPhase(IntEnum):
    """What the connection waits for from its client: a request, the rest of a head, the rest of a body, nothing. In
    WORK the client waits for us, and there is no deadline.
    """

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    WORK = auto()


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Fails closed: what exceeds a limit is answered with an error where it can be, and the connection
    ends.
    """

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
        self._loose = 0  # bytes since the parser last finished something: of a head, or of the trailers of a body
        self._body = 0  # bytes of the body since its deadline was set
        self._phase = ConnectionPhase.HEAD
        self._armed: ConnectionPhase | None = None  # whose deadline is set
        self._refused = False
        self.has_served = False

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being worked on here."""
        answered = self.cycle is None or self.cycle.response_complete
        return not self.pipeline and (answered or self._phase is ConnectionPhase.BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._address = client_network(self.client[0] if self.client else "")
        if self._connections.admit(self, self._address):
            self._set_deadline()
            return
        # Without a linger: it would hold descriptors, of which there are too few already.
        self._refused = True
        self.transport.write(encode_reply(TOO_MANY_CONNECTIONS))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._refused = True
        self._connections.release(self, self._address)
        self._deadlines.cancel(self)
        self._deadlines.cancel(self.flow)
        super().connection_lost(exc)

    def drop(self) -> None:
        self._refused = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        while data and not self._refused:
            # A piece has no more bytes than the limit leaves, because the parser keeps what it has begun.
            room = MAX_HEAD_BYTES + 1 - self._loose
            piece, data = data[:room], data[room:]
            self._loose += len(piece)
            super().data_received(piece)
            if self._loose > MAX_HEAD_BYTES or (self.headers is not None and len(self.headers) > MAX_HEADER_FIELDS):
                self._refuse(HEAD_TOO_LARGE)
        if self._armed is not self._phase and not self._refused:
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser failed, also because a callback of ours did."""
        too_many = self.headers is not None and len(self.headers) > MAX_HEADER_FIELDS
        self._refuse(HEAD_TOO_LARGE if too_many else INVALID_REQUEST)

    def on_message_begin(self) -> None:
        self._phase, self._armed = ConnectionPhase.HEAD, None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_HEADER_FIELDS:
            raise httptools.HttpParserCallbackError("too many fields")  # before the application sees any of it
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserCallbackError("too many requests")
        self._phase, self._armed = ConnectionPhase.BODY, None
        self._loose = self._body = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose = 0
        self._phase = ConnectionPhase.IDLE if self.cycle.response_complete else ConnectionPhase.WORK
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn has it, but the timer is ours: one of the event loop costs more, and each request sets it."""
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
        elif self._phase is ConnectionPhase.BODY and self._body_goes_on():
            self._body = 0
            self._set_deadline()
        elif self._phase is ConnectionPhase.BODY or self._loose:
            self._refuse(REQUEST_TIMEOUT)
        else:
            self._end_quietly()

    def _body_goes_on(self) -> bool:
        """Whether it comes fast enough, or it is the application that does not take it."""
        pausing = self.flow.read_paused or self.cycle.waiting_for_100_continue
        return pausing or self._body >= MIN_BODY_BYTES_PER_SECOND * self._limits.body_s

    def _end_quietly(self) -> None:
        """A connection without a request; one whose client still reads the last answer would wait for it for ever."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, refusal: ErrorReply) -> None:
        """Take nothing more; answer with this, unless an answer to an earlier request is still to be finished: then the
        connection ends after the last of those, and HTTP has the client send the rest again.
        """
        if self._refused:
            return
        self._refused = True
        if not self.is_waiting:
            self.cycle.keep_alive = False  # ends the connection after its answer
            self._deadlines.cancel(self)
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.transport.abort()
                return
            # The application learns that nobody waits for its answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(encode_reply(refusal))
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        self._deadlines.schedule(self, LINGER_SECONDS, self.transport.abort)


class ErrorReply(NamedTuple):
    status: int
    code: str
    message: str


INVALID_REQUEST = ErrorReply(400, "INVALID_REQUEST", "The request is not valid HTTP.")
REQUEST_TIMEOUT = ErrorReply(408, "REQUEST_TIMEOUT", "The request did not arrive in time.")
HEAD_TOO_LARGE = ErrorReply(431, "REQUEST_HEAD_TOO_LARGE", "The head of a request may have 64 kB and 100 fields.")
TOO_MANY_CONNECTIONS = ErrorReply(
    503, "SERVICE_UNAVAILABLE", "There are too many connections. Close some, or try again later."
)


def encode_reply(refusal: ErrorReply) -> bytes:
    """The whole answer, after which the connection ends."""
    request_id = ids.new_id()
    error = {"code": refusal.code, "message": refusal.message, "request_id": request_id}
    body = jsontext.encode({"error": error})
    retry = "Retry-After: 1\r\n" if refusal.status == 503 else ""
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-Request-Id: {request_id}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body


class CoalescingTransport:
    """A transport that keeps a piece back until the next one comes, at most until the event loop's next round."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._kept = b""

    def write(self, data: bytes) -> None:
        if self._kept:
            data, self._kept = self._kept + data, b""
            self._transport.write(data)
        elif data:
            self._kept = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._kept:
            data, self._kept = self._kept, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
