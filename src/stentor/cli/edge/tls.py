"""Takes in connections that speak TLS, and counts each one from its first moment: a handshake is held as easily as half
a request, and event loops tell nobody of it before it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from stentor.cli.edge.connections import Connections, network_of

HANDSHAKE_S = 10.0
PAUSE_S = 0.1
"""After the system could not give us a connection, as when descriptors are short."""
log = logging.getLogger(__name__)


class TlsListener:
    """Hands each connection over to a protocol of `make` when its handshake is done."""

    def __init__(self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, connections: Connections) -> None:
        self._make = make
        self._context = context
        self._connections = connections

    async def run(self, listening: socket.socket) -> None:
        """Until it is cancelled; `listening` is a socket that listens."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                client, peer = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("edge: cannot accept error=%s", type(error).__name__)
                await asyncio.sleep(PAUSE_S)
                continue
            handshake = _Handshake(client)
            address = network_of(peer[0])
            if self._connections.enter(handshake, address):
                handshake.task = loop.create_task(self._shake(handshake, address))
            else:
                client.close()

    async def _shake(self, handshake: _Handshake, address: str) -> None:
        loop = asyncio.get_running_loop()
        # A client that fails, leaves or takes too long is no error of ours.
        with suppress(OSError):
            try:
                await loop.connect_accepted_socket(
                    self._make,
                    handshake.client,
                    ssl=self._context,
                    ssl_handshake_timeout=HANDSHAKE_S,
                )
            finally:
                self._connections.leave(handshake, address)


class _Handshake:
    """A connection whose handshake is under way, for `Connections`."""

    is_waiting = True
    has_served = False

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        with suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)  # the loop sees the end, and closes it
        if self.task is not None:
            self.task.cancel()
