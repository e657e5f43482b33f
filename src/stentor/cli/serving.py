"""Runs the service: opens it, binds, answers until a signal comes, closes it cleanly."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec
import uvicorn

from stentor import bootstrap
from stentor.auth.keys import key_file
from stentor.bootstrap import Service
from stentor.core.errors import StartRefused
from stentor.core.redaction import Redactor
from stentor.core.settings import Settings

GRACE_SECONDS = 3


class Ready(msgspec.Struct):
    """What a start answers once every surface does."""

    gateway: str
    admin_key_file: str | None
    made_key: str | None
    taken_up: int
    warnings: list[str]
    ready: bool = True


class _Server(uvicorn.Server):
    """uvicorn, but signals are ours: it would end the process before the store is closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run(settings: Settings, environ: Mapping[str, str], redactor: Redactor, on_ready: Callable[[Ready], None]) -> None:
    """Serve until SIGINT or SIGTERM. Raises StartRefused."""
    listener = bind(settings.host, settings.gateway_port)
    try:
        service = bootstrap.open_service(settings, environ, redactor)
        with asyncio.Runner(loop_factory=uvicorn.Config(service.app, log_config=None).get_loop_factory()) as runner:
            runner.run(_serve(service, listener, settings, on_ready))
    finally:
        listener.close()


def quiet_server(config: uvicorn.Config) -> uvicorn.Server:
    """A server that leaves signals to its caller."""
    return _Server(config)


def bind(host: str, port: int, option: str = "--gateway-port") -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises StartRefused, which names the option."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartRefused(
            f"Port {port} on {host} cannot be used: {error.strerror}. Choose another with {option}, 0 takes a free one."
        ) from None
    return listener


async def _serve(
    service: Service, listener: socket.socket, settings: Settings, on_ready: Callable[[Ready], None]
) -> None:
    config = uvicorn.Config(
        service.app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _leave, server, service)
    try:
        taken_up = await service.start()
        serving = asyncio.create_task(server.serve([listener]))
        await started(server, serving)
        if server.started:
            address = address_of(settings.host, listener)
            if service.lock is not None:
                service.lock.announce(gateway=address)
            gc.freeze()
            # A request leaves few cycles behind, so the collector may look more seldom than by default.
            gc.set_threshold(50_000, 20, 50)
            on_ready(_ready(service, address, settings, taken_up))
        await serving
    finally:
        await service.stop()


async def started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not (server.started or serving.done()):  # noqa: ASYNC110 - uvicorn has a flag, not an event
        await asyncio.sleep(0.005)


def _leave(server: uvicorn.Server, service: Service) -> None:
    service.leave()
    server.should_exit = True


def address_of(host: str, listener: socket.socket) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{listener.getsockname()[1]}"


def _ready(service: Service, address: str, settings: Settings, taken_up: int) -> Ready:
    path = key_file(settings.data_dir)
    return Ready(
        gateway=address,
        admin_key_file=str(path.absolute()) if path.exists() else None,
        made_key=service.keys.made[0] if service.keys.made else None,
        taken_up=taken_up,
        warnings=service.keys.warnings,
    )
