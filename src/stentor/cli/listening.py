"""Sockets and servers: one or many applications in one event loop, until a signal comes."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from stentor.cli import joined
from stentor.core.errors import StartRefused
from stentor.core.pulse import beat_or

GRACE_SECONDS = 3
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
            await beat_or(self._told)

    def leave(self) -> None:
        self.should_exit = True
        self._told.set()


class Servers:
    """One server for each endpoint; they end together."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._servers = [(_Server(_config(endpoint)), endpoint.listener.socket) for endpoint in endpoints]
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
    """Port 0 takes a free one. Raises StartRefused, which names the option."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise StartRefused(
            f"Port {port} on {host} cannot be used: {error.strerror}. Choose another with {option}, 0 takes a free one."
        ) from None
    return Listener(host, made, tls)


def _config(endpoint: Endpoint) -> uvicorn.Config:
    context = endpoint.listener.tls
    return uvicorn.Config(
        endpoint.app,
        http=joined.Protocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
