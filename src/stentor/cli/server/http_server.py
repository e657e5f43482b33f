"""Sockets and servers: one or many applications in one event loop, until a signal comes.

Takes in connections that speak TLS, and counts each one from its first moment: a handshake is held as easily as half
a request, and event loops tell nobody of it before it has ended.

Runs one surface in a process of its own, until a signal comes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from stentor.cli.server.connections import ConnectionLimits, ConnectionRegistry, client_network, compute_limits
from stentor.cli.server.protocol import LimitedProtocol
from stentor.core.errors import StartRefused
from stentor.core.settings.listeners import ConnectionSettings
from stentor.core.timers import wait_until_tick

SHUTDOWN_GRACE_SECONDS = 3
BACKLOG = 256
"""Connections that the system takes in before we do; all of them may come at once, beyond what is counted."""
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - how an address for all is shown


@dataclass
class Listener:
    """A bound socket, and the name by which clients reach it; with a context it speaks TLS. Left, it is closed."""

    host: str
    socket: socket.socket
    tls: ssl.SSLContext | None = None

    @property
    def address(self) -> str:
        shown = WILDCARD_HOSTS.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"{'https' if self.tls else 'http'}://{shown}:{self.socket.getsockname()[1]}"

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()


@dataclass
class Endpoint:
    """An application at a listener."""

    app: ASGIApp
    listener: Listener


class _Server(uvicorn.Server):
    """uvicorn, but signals are ours: it would end the process before the store is closed. And it is told to end, where
    it would look ten times a second; once a second it makes the Date header anew.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await wait_until_tick(self._told)

    def request_stop(self) -> None:
        self.should_exit = True
        self._told.set()


class _TlsServer(_Server):
    """Its connections are taken in by our own listener, which counts them before their handshake."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext, connections: ConnectionRegistry) -> None:
        super().__init__(config)
        self._context = context
        self._connections = connections
        self._listening: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        make = partial(LimitedProtocol, self.config, self.server_state, {}, connections=self._connections)
        listener = TlsListener(make, self._context, self._connections)
        for own in sockets or []:
            self._listening.append(asyncio.create_task(listener.accept_connections(own)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await super().shutdown(sockets)


def _server(endpoint: Endpoint, connections: ConnectionRegistry) -> _Server:
    config, context = _config(endpoint, connections), endpoint.listener.tls
    return _Server(config) if context is None else _TlsServer(config, context, connections)


class ServerGroup:
    """One server for each endpoint; they end together, and share the limits."""

    def __init__(self, endpoints: Sequence[Endpoint], limits: ConnectionLimits) -> None:
        connections = ConnectionRegistry(limits)
        self._servers = [(_server(endpoint, connections), endpoint.listener.socket) for endpoint in endpoints]
        self._serving: list[asyncio.Task[None]] = []
        self.is_stopping = False

    async def start(self) -> bool:
        """Answers whether all of them answer; False when they were told to leave meanwhile."""
        self._serving = [asyncio.create_task(server.serve([own])) for server, own in self._servers]
        for task in self._serving:
            task.add_done_callback(lambda _: self.request_stop())
        while not all(server.started for server, _ in self._servers):  # uvicorn has a flag, not an event
            if any(task.done() for task in self._serving):
                return False
            await asyncio.sleep(0.005)
        return True

    def request_stop(self) -> None:
        self.is_stopping = True
        for server, _ in self._servers:
            server.request_stop()

    async def wait(self) -> None:
        """Until all have ended. Raises what the first one failed with."""
        await asyncio.gather(*self._serving)


def handle_stop_signals(on_stop: Callable[[], None]) -> None:
    """SIGINT and SIGTERM end the process cleanly; called within the loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_stop)


def create_runner() -> asyncio.Runner:
    """With the event loop that uvicorn would take."""
    return asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory())


def bind(host: str, port: int, option: str, tls: ssl.SSLContext | None = None) -> Listener:
    """A socket that listens; clients that come before the servers run wait in its queue. Port 0 takes a free port.
    Raises StartRefused, which names the option.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    if port:
        # A port that was just left may be taken again. Not so for a free one: until somebody listens, the system would
        # give the same one to two processes that both allow it, and one of them could not listen.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        # At once, and not when the server starts: two processes may bind the same port, but only one can listen, and
        # the other one can still take a free port or say what to do.
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise StartRefused(
            f"Port {port} on {host} cannot be used: {error.strerror}. Choose another with {option}, 0 takes a free one."
        ) from None
    return Listener(host, made, tls)


def _config(endpoint: Endpoint, connections: ConnectionRegistry) -> uvicorn.Config:
    return uvicorn.Config(
        endpoint.app,
        http=partial(LimitedProtocol, connections=connections),  # type: ignore[arg-type]
        ws="none",  # no surface has any, and its protocol would take the connection out of the limits
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
    )


HANDSHAKE_TIMEOUT_SECONDS = 10.0
ACCEPT_RETRY_SECONDS = 0.1
"""After the system could not give us a connection, as when descriptors are short."""
log = logging.getLogger(__name__)


class TlsListener:
    """Hands each connection over to a protocol of `make` when its handshake is done."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], context: ssl.SSLContext, connections: ConnectionRegistry
    ) -> None:
        self._make = make
        self._context = context
        self._connections = connections

    async def accept_connections(self, listening: socket.socket) -> None:
        """Until it is cancelled; `listening` is a socket that listens."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                client, peer = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("edge: cannot accept error=%s", type(error).__name__)
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            handshake = _Handshake(client)
            address = client_network(peer[0])
            if self._connections.admit(handshake, address):
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
                    ssl_handshake_timeout=HANDSHAKE_TIMEOUT_SECONDS,
                )
            finally:
                self._connections.release(handshake, address)


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


AsyncWork = Callable[[], Coroutine[Any, Any, None]]


def serve_endpoints(
    settings: ConnectionSettings,
    endpoints: Sequence[Endpoint],
    on_ready: Callable[[], None],
    background: Sequence[AsyncWork] = (),
    on_exit: Sequence[AsyncWork] = (),
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """`background` runs beside it and is cancelled at the end; `leave` is called when the signal comes."""
    with create_runner() as loop:
        loop.run(
            _serve_until_stopped(
                ServerGroup(endpoints, compute_limits(settings)), on_ready, background, on_exit, on_stop
            )
        )


async def _serve_until_stopped(
    servers: ServerGroup,
    on_ready: Callable[[], None],
    background: Sequence[AsyncWork],
    at_end: Sequence[AsyncWork],
    leave: Callable[[], None],
) -> None:
    beside = [asyncio.create_task(work()) for work in background]

    def end() -> None:
        leave()
        servers.request_stop()

    handle_stop_signals(end)
    try:
        if await servers.start():
            on_ready()
        await servers.wait()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        for work in at_end:
            await work()
