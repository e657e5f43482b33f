"""Accepts TLS connections: counts each one before its handshake, and hands it to a protocol after it.

The event loop would report a connection only after its handshake. Accepted here, slow handshakes count against the
connection limits too, and plain HTTP gets an answer that says what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from stentor.web.server.connections import ConnectionRegistry, client_network
from stentor.web.server.protocol import MAX_HEAD_BYTES, PLAIN_HTTP, LimitedProtocol, encode_reply

TLS_HANDSHAKE_RECORD = b"\x16"
"""The first byte that a TLS client sends."""
ACCEPT_RETRY_SECONDS = 0.1
"""Delay after a failed accept, for example when the process has run out of file descriptors."""
log = logging.getLogger(__name__)


class TlsCertificate(Protocol):
    """What a listener serves over TLS; a renewed certificate may come with another context."""

    @property
    def ssl_context(self) -> ssl.SSLContext: ...


class TlsAcceptor:
    """Accepts connections and hands each one to a new protocol when its TLS handshake is complete."""

    def __init__(
        self, protocol_factory: Callable[[], LimitedProtocol], tls: TlsCertificate, connections: ConnectionRegistry
    ) -> None:
        self._protocol_factory = protocol_factory
        self._tls = tls
        self._connections = connections

    async def accept_connections(self, listening: socket.socket) -> None:
        """Accept connections of a listening socket until cancelled."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                client, peer = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("http: cannot accept error=%s", type(error).__name__)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            handshake = _Handshake(client)
            address = client_network(peer[0])
            if self._connections.admit(handshake, address):
                handshake.task = loop.create_task(self._complete_handshake(handshake, address))
            else:
                client.close()

    async def _complete_handshake(self, handshake: _Handshake, address: str) -> None:
        loop = asyncio.get_running_loop()

        def create_protocol() -> LimitedProtocol:
            protocol = self._protocol_factory()
            protocol.handshake = handshake
            return protocol

        # A client that fails the handshake, disconnects or times out is not an error of the service.
        with suppress(OSError):
            try:
                seconds = self._connections.limits.head_s
                if not await _speaks_tls(handshake.client, seconds):
                    return
                await loop.connect_accepted_socket(
                    create_protocol,
                    handshake.client,
                    ssl=self._tls.ssl_context,
                    ssl_handshake_timeout=seconds,
                )
            finally:
                self._connections.release(handshake, address)


async def _speaks_tls(client: socket.socket, seconds: float) -> bool:
    """Wait for the first byte and return whether it begins a handshake; else answer in plain HTTP and close.

    Raises OSError, also when nothing arrives in time; the socket is then closed too.
    """
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    speaks_tls = False
    try:
        loop.add_reader(client, is_readable.set)
        try:
            async with asyncio.timeout(seconds):
                await is_readable.wait()
        finally:
            loop.remove_reader(client)
        first = client.recv(1, socket.MSG_PEEK)
        speaks_tls = first == TLS_HANDSHAKE_RECORD
        if first and not speaks_tls:
            client.send(encode_reply(PLAIN_HTTP))
            client.shutdown(socket.SHUT_WR)
            # Closing a socket with unread bytes sends a reset, with which the client may lose the answer.
            client.recv(MAX_HEAD_BYTES)
        return speaks_tls
    finally:
        if not speaks_tls:
            client.close()


class _Handshake:
    """A connection during its TLS handshake, as `ConnectionRegistry` counts it."""

    is_waiting = True
    has_served = False

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        with suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)  # the event loop notices this and closes the socket
        if self.task is not None:
            self.task.cancel()
