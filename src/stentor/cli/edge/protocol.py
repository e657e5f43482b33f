"""uvicorn's protocol with limits: it counts what a client sends before the parser may keep it, and sets deadlines.

uvicorn itself bounds neither the size of a head nor the time for one. Source: docs/decisions, 0029.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum, auto
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stentor.cli.edge.connections import Connections, network_of
from stentor.cli.edge.refusals import BUSY, INVALID, LARGE, LATE, Refusal, written
from stentor.cli.joined import Joining
from stentor.core import timers

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 100
MAX_PIPELINED = 64
"""Requests of a connection that wait for the answer to an earlier one. Each costs a hundred times its bytes in memory,
and one read brings thousands.
"""
BODY_RATE = 1_000
"""Bytes of a body that must arrive in a second, on average over the body's deadline."""
LINGER_S = 2.0
"""For reading what a refused client still sends: a socket closed with unread bytes takes the answer back."""
STUCK_S = 60.0
"""For a client that does not read its answer."""


class Phase(IntEnum):
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
        connections: Connections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._limits = limits = connections.limits
        self._seconds = {Phase.IDLE: limits.keep_alive_s, Phase.HEAD: limits.head_s, Phase.BODY: limits.body_s}
        self._deadlines = timers.coarse_timers(self.loop)
        self._address = ""
        self._loose = 0  # bytes since the parser last finished something: of a head, or of the trailers of a body
        self._body = 0  # bytes of the body since its deadline was set
        self._phase = Phase.HEAD
        self._armed: Phase | None = None  # whose deadline is set
        self._refused = False
        self.has_served = False

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is being worked on here."""
        answered = self.cycle is None or self.cycle.response_complete
        return not self.pipeline and (answered or self._phase is Phase.BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(Joining(transport, self.loop))  # type: ignore[arg-type]
        self._address = network_of(self.client[0] if self.client else "")
        if self._connections.enter(self, self._address):
            self._set_deadline()
            return
        # Without a linger: it would hold descriptors, of which there are too few already.
        self._refused = True
        self.transport.write(written(BUSY))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._refused = True
        self._connections.leave(self, self._address)
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
            if self._loose > MAX_HEAD_BYTES or (self.headers is not None and len(self.headers) > MAX_FIELDS):
                self._refuse(LARGE)
        if self._armed is not self._phase and not self._refused:
            self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser failed, also because a callback of ours did."""
        too_many = self.headers is not None and len(self.headers) > MAX_FIELDS
        self._refuse(LARGE if too_many else INVALID)

    def on_message_begin(self) -> None:
        self._phase, self._armed = Phase.HEAD, None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_FIELDS:
            raise httptools.HttpParserCallbackError("too many fields")  # before the application sees any of it
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserCallbackError("too many requests")
        self._phase, self._armed = Phase.BODY, None
        self._loose = self._body = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose = 0
        self._phase = Phase.IDLE if self.cycle.response_complete else Phase.WORK
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
        elif self._phase is Phase.WORK:
            self._phase = Phase.IDLE
            self._set_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._deadlines.schedule(self.flow, STUCK_S, self.drop)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._deadlines.cancel(self.flow)

    def _set_deadline(self) -> None:
        self._armed = self._phase
        if self._phase is Phase.WORK:
            self._deadlines.cancel(self)
            return
        self._deadlines.schedule(self, self._seconds[self._phase], self._on_deadline)

    def _on_deadline(self) -> None:
        if self._refused:
            self.transport.abort()
        elif self._phase is Phase.BODY and self._body_goes_on():
            self._body = 0
            self._set_deadline()
        elif self._phase is Phase.BODY or self._loose:
            self._refuse(LATE)
        else:
            self._end_quietly()

    def _body_goes_on(self) -> bool:
        """Whether it comes fast enough, or it is the application that does not take it."""
        pausing = self.flow.read_paused or self.cycle.waiting_for_100_continue
        return pausing or self._body >= BODY_RATE * self._limits.body_s

    def _end_quietly(self) -> None:
        """A connection without a request; one whose client still reads the last answer would wait for it for ever."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _refuse(self, refusal: Refusal) -> None:
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
        self.transport.write(written(refusal))
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        self._deadlines.schedule(self, LINGER_S, self.transport.abort)
