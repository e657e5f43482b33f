"""Runs one ASGI application of its own until a signal comes: binds, says that it answers, ends cleanly."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from stentor.core.errors import StartRefused

GRACE_SECONDS = 3


class _Server(uvicorn.Server):
    """uvicorn, but signals are ours: it would end the process before what is open is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(
    app: ASGIApp, host: str, port: int, on_ready: Callable[[str], None], close: Callable[[], Awaitable[None]]
) -> None:
    """Serve until SIGINT or SIGTERM, then `close`. Port 0 takes a free one. Raises StartRefused."""
    listener = _bind(host, port)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_serve(_Server(config), listener, lambda: on_ready(_address(host, listener)), close))
    finally:
        listener.close()


async def _serve(
    server: _Server, listener: socket.socket, on_ready: Callable[[], None], close: Callable[[], Awaitable[None]]
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _leave, server)
    try:
        serving = asyncio.create_task(server.serve([listener]))
        while not (server.started or serving.done()):  # noqa: ASYNC110 - uvicorn has a flag, not an event
            await asyncio.sleep(0.005)
        if server.started:
            on_ready()
        await serving
    finally:
        await close()


def _leave(server: _Server) -> None:
    server.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartRefused(
            f"Port {port} on {host} cannot be used: {error.strerror}. Choose another; 0 takes a free one."
        ) from None
    return listener


def _address(host: str, listener: socket.socket) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{listener.getsockname()[1]}"
