"""Runs one surface in a process of its own, until a signal comes."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from stentor.cli.serving import GRACE_SECONDS, address_of, quiet_server, started


async def _nothing() -> None:
    pass


def run(
    app: ASGIApp,
    listener: socket.socket,
    host: str,
    on_ready: Callable[[str], None],
    *background: Coroutine[Any, Any, None],
    at_end: Callable[[], Coroutine[Any, Any, None]] = _nothing,
) -> None:
    """`background` runs beside it and is cancelled at the end; `on_ready` is given the address."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_serve(config, listener, host, on_ready, background))
        runner.run(at_end())


async def _serve(
    config: uvicorn.Config,
    listener: socket.socket,
    host: str,
    on_ready: Callable[[str], None],
    background: tuple[Coroutine[Any, Any, None], ...],
) -> None:
    server = quiet_server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _leave, server)
    beside = [asyncio.create_task(work) for work in background]
    serving = asyncio.create_task(server.serve([listener]))
    await started(server, serving)
    if server.started:
        on_ready(address_of(host, listener))
    await serving
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)


def _leave(server: uvicorn.Server) -> None:
    server.should_exit = True
