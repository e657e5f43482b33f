"""Runs one surface in a process of its own, on one listener or several, until a signal comes."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from stentor.cli.serving import GRACE_SECONDS, address_of, quiet_server, started

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True)
class Listening:
    """A bound socket; with a context it speaks TLS."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None

    def address(self, host: str) -> str:
        found = address_of(host, self.socket)
        return found if self.tls is None else found.replace("http:", "https:", 1)


async def _nothing() -> None:
    pass


def run(
    app: ASGIApp,
    listeners: Sequence[Listening],
    host: str,
    on_ready: Callable[[list[str]], None],
    *background: Work,
    at_start: Callable[[], Work] = _nothing,
    at_end: Callable[[], Work] = _nothing,
) -> None:
    """`background` runs beside it and is cancelled at the end; `on_ready` is given the listeners' addresses."""
    servers = [server_of(app, listener) for listener in listeners]
    with asyncio.Runner(loop_factory=servers[0].config.get_loop_factory()) as runner:
        try:
            runner.run(at_start())
            runner.run(_serve(servers, listeners, host, on_ready, background))
        finally:
            for work in background:
                work.close()
            runner.run(at_end())


def server_of(app: ASGIApp, listener: Listening) -> uvicorn.Server:
    """A server for one listener, in whatever event loop its `serve([listener.socket])` is awaited."""
    context = listener.tls
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
    return quiet_server(config)


async def _serve(
    servers: list[uvicorn.Server],
    listeners: Sequence[Listening],
    host: str,
    on_ready: Callable[[list[str]], None],
    background: tuple[Work, ...],
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _leave, servers)
    beside = [asyncio.create_task(work) for work in background]
    pairs = zip(servers, listeners, strict=True)
    serving = [asyncio.create_task(server.serve([listener.socket])) for server, listener in pairs]
    for server, task in zip(servers, serving, strict=True):
        await started(server, task)
    if all(server.started for server in servers):
        on_ready([listener.address(host) for listener in listeners])
    try:
        await asyncio.gather(*serving)
    finally:
        _leave(servers)  # one that fails takes the others with it
        for task in beside:
            task.cancel()
        await asyncio.gather(*serving, *beside, return_exceptions=True)


def _leave(servers: list[uvicorn.Server]) -> None:
    for server in servers:
        server.should_exit = True
