"""Binds sockets and runs uvicorn servers for one or more applications in one event loop, until a signal arrives."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from stentor.core.errors import StartRefused
from stentor.core.settings.listeners import ConnectionSettings
from stentor.core.timers import AsyncJob, wait_until_tick
from stentor.web.server.connections import ConnectionLimits, ConnectionRegistry, compute_limits
from stentor.web.server.protocol import LimitedProtocol
from stentor.web.server.tls_acceptor import TlsAcceptor, TlsCertificate

SHUTDOWN_GRACE_SECONDS = 3
BACKLOG = 256
"""Connections that the kernel queues before they are accepted; these do not count against the limits."""
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - only for display


@dataclass
class Listener:
    """A listening socket and its address for clients; TLS with a certificate. Closed when the `with` block ends."""

    host: str
    socket: socket.socket
    tls: TlsCertificate | None = None

    @property
    def address(self) -> str:
        host = WILDCARD_HOSTS.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
        return f"{'https' if self.tls else 'http'}://{host}:{self.socket.getsockname()[1]}"

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()


@dataclass
class Endpoint:
    """An application and the listener on which it is served."""

    app: ASGIApp
    listener: Listener


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, and with an event instead of polling ten times a second for its end.

    uvicorn's own signal handlers would end the process before the store is closed. The tick, once a second, updates the
    Date header.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop_requested = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await wait_until_tick(self._stop_requested)

    def request_stop(self) -> None:
        self.should_exit = True
        self._stop_requested.set()


class _TlsServer(_Server):
    """A server whose connections are accepted by `TlsAcceptor`, which counts them before their handshake."""

    def __init__(self, config: uvicorn.Config, tls: TlsCertificate, connections: ConnectionRegistry) -> None:
        super().__init__(config)
        self._tls = tls
        self._connections = connections
        self._accepting: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without sockets: uvicorn would accept on them itself.
        await super().startup([])
        protocol_factory = partial(LimitedProtocol, self.config, self.server_state, {}, connections=self._connections)
        acceptor = TlsAcceptor(protocol_factory, self._tls, self._connections)
        for listening in sockets or []:
            self._accepting.append(asyncio.create_task(acceptor.accept_connections(listening)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().shutdown(sockets)


def _create_server(endpoint: Endpoint, connections: ConnectionRegistry) -> _Server:
    config, tls = _config(endpoint, connections), endpoint.listener.tls
    return _Server(config) if tls is None else _TlsServer(config, tls, connections)


class ServerGroup:
    """One server per endpoint; they share the connection limits and stop together."""

    def __init__(self, endpoints: Sequence[Endpoint], limits: ConnectionLimits) -> None:
        connections = ConnectionRegistry(limits)
        self._servers = [(_create_server(endpoint, connections), endpoint.listener.socket) for endpoint in endpoints]
        self._serving: list[asyncio.Task[None]] = []
        self.is_stopping = False

    async def start(self) -> bool:
        """Start all servers; return whether all accept requests, False if they were stopped in the meantime."""
        self._serving = [asyncio.create_task(server.serve([listening])) for server, listening in self._servers]
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
        """Wait until all servers have stopped. Raises the error of the first one that failed."""
        await asyncio.gather(*self._serving)


def handle_stop_signals(on_stop: Callable[[], None]) -> None:
    """Call `on_stop` on SIGINT, SIGTERM, and SIGHUP (the terminal closes). Must be called within the event loop."""
    loop = asyncio.get_running_loop()

    def on_hangup() -> None:
        # Only once: a program that started this one may pass it on.
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
        on_stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_stop)
    # `nohup` ignores SIGHUP, so that the service outlives its terminal.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_hangup)


def create_runner() -> asyncio.Runner:
    """Return a runner with the event loop that uvicorn would choose."""
    return asyncio.Runner(loop_factory=uvicorn.Config("", log_config=None).get_loop_factory())


def bind(host: str, port: int, option: str, tls: TlsCertificate | None = None) -> Listener:
    """Return a listening socket; early clients wait in its backlog. Port 0 means any free port.

    Raises StartRefused with the option that sets the port, or with SERVICE_HOST if the address is the reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    if port:
        # Allow a restart on a port in TIME_WAIT. Not for port 0: with SO_REUSEADDR the kernel could assign the same
        # free port to two processes until one of them listens, and the other one would fail.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        # Listen now and not when the server starts: two processes can bind the same port, but only one can listen. The
        # other one fails here, where it can still use another port or report what to do.
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise StartRefused(f"{host} (SERVICE_HOST) is not an address of this machine: {error.strerror}.") from None
        raise StartRefused(
            f"Port {port} on {host} cannot be used: {error.strerror}. "
            f"Choose another with {option}, or 0 for any free port."
        ) from None
    return Listener(host, listening, tls)


def _config(endpoint: Endpoint, connections: ConnectionRegistry) -> uvicorn.Config:
    return uvicorn.Config(
        endpoint.app,
        http=partial(LimitedProtocol, connections=connections),  # pyrefly: ignore[bad-argument-type] - uvicorn's types want a class, and it only calls this
        ws="none",  # unused, and its protocol would bypass the connection limits
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        # The kernel starts and stops its parts itself; several applications share them.
        lifespan="off",
        server_header=False,
        # A header could otherwise give every request another client address, which the limits count by.
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_GRACE_SECONDS,
    )


def serve_endpoints(
    settings: ConnectionSettings,
    endpoints: Sequence[Endpoint],
    on_ready: Callable[[], None],
    background: Sequence[AsyncJob],
    on_exit: Sequence[AsyncJob] = (),
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    `background` runs concurrently and is cancelled at the end; `on_stop` is called when the signal arrives, `on_exit`
    after all servers have stopped.
    """
    with create_runner() as loop:
        loop.run(
            _serve_until_stopped(
                ServerGroup(endpoints, compute_limits(settings)), on_ready, background, on_exit, on_stop
            )
        )


async def _serve_until_stopped(
    servers: ServerGroup,
    on_ready: Callable[[], None],
    background: Sequence[AsyncJob],
    on_exit: Sequence[AsyncJob],
    on_stop: Callable[[], None],
) -> None:
    tasks = [asyncio.create_task(work()) for work in background]

    def stop() -> None:
        on_stop()
        servers.request_stop()

    handle_stop_signals(stop)
    try:
        if await servers.start():
            on_ready()
        await servers.wait()
    finally:
        # Before `on_exit`, which closes what the jobs use.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for work in on_exit:
            await work()
