"""Sockets and servers: one or many applications in one event loop, until a signal comes."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from stentor.cli.edge.connections import Connections, Limits
from stentor.cli.edge.protocol import LimitedProtocol
from stentor.cli.edge.tls import TlsListener
from stentor.core.errors import StartRefused
from stentor.core.timers import wait_until_tick

GRACE_SECONDS = 3
BACKLOG = 256
"""Connections that the system takes in before we do; all of them may come at once, beyond what is counted."""
ANY = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - how an address for all is shown


@dataclass
class Listener:
    """A bound socket, and the name by which clients reach it; with a context it speaks TLS. Left, it is closed."""

    host: str
    socket: socket.socket
    tls: ssl.SSLContext | None = None

    @property
    def address(self) -> str:
        shown = ANY.get(self.host, f"[{self.host}]" if ":" in self.host else self.host)
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

    def leave(self) -> None:
        self.should_exit = True
        self._told.set()


class _TlsServer(_Server):
    """Its connections are taken in by our own listener, which counts them before their handshake."""

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext, connections: Connections) -> None:
        super().__init__(config)
        self._context = context
        self._connections = connections
        self._listening: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        make = partial(LimitedProtocol, self.config, self.server_state, {}, connections=self._connections)
        listener = TlsListener(make, self._context, self._connections)
        for own in sockets or []:
            self._listening.append(asyncio.create_task(listener.run(own)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await super().shutdown(sockets)


def _server(endpoint: Endpoint, connections: Connections) -> _Server:
    config, context = _config(endpoint, connections), endpoint.listener.tls
    return _Server(config) if context is None else _TlsServer(config, context, connections)


class Servers:
    """One server for each endpoint; they end together, and share the limits."""

    def __init__(self, endpoints: Sequence[Endpoint], limits: Limits) -> None:
        connections = Connections(limits)
        self._servers = [(_server(endpoint, connections), endpoint.listener.socket) for endpoint in endpoints]
        self._serving: list[asyncio.Task[None]] = []
        self.leaving = False

    async def start(self) -> bool:
        """Answers whether all of them answer; False when they were told to leave meanwhile."""
        self._serving = [asyncio.create_task(server.serve([own])) for server, own in self._servers]
        for task in self._serving:
            task.add_done_callback(lambda _: self.leave())
        while not all(server.started for server, _ in self._servers):  # uvicorn has a flag, not an event
            if any(task.done() for task in self._serving):
                return False
            await asyncio.sleep(0.005)
        return True

    def leave(self) -> None:
        self.leaving = True
        for server, _ in self._servers:
            server.leave()

    async def wait(self) -> None:
        """Until all have ended. Raises what the first one failed with."""
        await asyncio.gather(*self._serving)


def on_signals(leave: Callable[[], None]) -> None:
    """SIGINT and SIGTERM end the process cleanly; called within the loop."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)


def runner() -> asyncio.Runner:
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


def _config(endpoint: Endpoint, connections: Connections) -> uvicorn.Config:
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
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
