"""Runs the service: opens it, binds, answers until a signal comes, closes it cleanly."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
from starlette.types import ASGIApp

from stentor import bootstrap
from stentor.auth.api_keys import admin_key_file
from stentor.bootstrap import Service
from stentor.bootstrap.surfaces import dashboard, grpc
from stentor.bootstrap.surfaces.builder import Surface, build_surfaces, surface_host, surface_names
from stentor.cli.server.connections import compute_limits
from stentor.cli.server.http_server import Endpoint, Listener, ServerGroup, bind, create_runner, handle_stop_signals
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.web import allowed_hosts
from stentor.web.middleware import known_key_check

if TYPE_CHECKING:
    from stentor.surfaces.grpc.server import Server


class StartupReport(msgspec.Struct):
    """What a start answers once every surface does. `surfaces` are the addresses of those beside the gateway (which
    is None when one of them was started alone), `key_files` of those that made a key of their own."""

    gateway: str | None
    surfaces: dict[str, str]
    admin_key_file: str | None
    key_files: dict[str, str]
    generated_key: str | None
    resumed_tasks: int
    warnings: list[str]


def run_service(
    settings: Settings,
    environ: Mapping[str, str],
    redactor: Redactor,
    on_ready: Callable[[StartupReport], None],
    only_surface: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM: the gateway with all surfaces, or one surface alone. Raises StartRefused."""
    with ExitStack() as stack:
        warnings: list[str] = []
        loop = stack.enter_context(create_runner())
        gateway = None if only_surface else bind(settings.server.host, settings.server.port, "--gateway-port")
        wanted = [only_surface] if only_surface else surface_names(settings)
        beside = {name: _bind_beside(settings, name, warnings) for name in wanted}
        for listener in (gateway, *beside.values()):
            if listener is not None:
                stack.enter_context(listener)
        rpc = None if only_surface else loop.run(grpc.bind(settings, warnings))
        if rpc is not None:
            stack.callback(lambda: loop.run(rpc.stop()))
        service = bootstrap.open_service(settings, environ, redactor)
        addresses = {name: listener.address for name, listener in beside.items()}
        try:
            opened = build_surfaces(service, settings, environ, redactor, addresses)
        except BaseException:
            service.abandon()
            raise
        endpoints = [Endpoint(_guarded(settings, one), beside[one.name]) for one in opened]
        for one in opened:
            if one.tls is not None:
                secure = stack.enter_context(_bind_beside(settings, f"{one.name}_tls", warnings, one.tls))
                endpoints.append(Endpoint(one.app, secure))
                addresses[f"{one.name}_tls"] = secure.address
        if gateway is not None:
            endpoints.insert(
                0,
                Endpoint(
                    allowed_hosts.wrap_allowed_hosts(
                        service.app,
                        settings.connections.allowed_hosts,
                        known_key_check(service.keys.key_ring),
                        loopback=settings.loopback,
                    ),
                    gateway,
                ),
            )
        if rpc is not None:
            addresses["grpc"] = rpc.address
        ready = StartupReport(
            gateway=gateway.address if gateway else None,
            surfaces=addresses,
            admin_key_file=_admin_key_file(settings),
            key_files={one.name: one.key_file for one in opened if one.key_file},
            generated_key=service.keys.generated[0] if service.keys.generated else None,
            resumed_tasks=0,
            warnings=service.keys.warnings + warnings,
        )
        loop.run(_serve(service, opened, endpoints, rpc, ready, on_ready))


def _bind_beside(settings: Settings, name: str, warnings: list[str], tls: ssl.SSLContext | None = None) -> Listener:
    """Bind the port of the settings; if nobody set it and the default one is taken, a free one."""
    port = settings.get("vault.tls_port" if name == "vault_tls" else f"{name}.port")
    option = f"--{name.replace('_', '-')}-port"
    host, warning = surface_host(settings, name)
    warnings += [warning] if warning else []
    try:
        return bind(host, port, option, tls)
    except StartRefused:
        if settings.sources.get(f"SERVICE_{name.upper()}_PORT") != "default":
            raise
    listener = bind(host, 0, option, tls)
    warnings.append(f"The usual port of {name}, {port}, is taken; it answers on {listener.address} instead.")
    return listener


def _guarded(settings: Settings, surface: Surface) -> ASGIApp:
    """The dashboard by its host names; the memory server has a list of its own, the others are for programs alone."""
    if surface.name != "dashboard":
        return surface.app
    host, _ = surface_host(settings, surface.name)
    loopback = host in allowed_hosts.LOOPBACK_NAMES
    return allowed_hosts.wrap_allowed_hosts(
        surface.app, settings.connections.allowed_hosts, dashboard.knows_key(settings), loopback=loopback
    )


class GracefulShutdown:
    """The steps of a stop. A signal begins it; one more leaves out the step that it is in."""

    def __init__(self, service: Service, servers: ServerGroup, rpc: Server | None) -> None:
        self._service = service
        self._servers = servers
        self._rpc = rpc
        self._signals = 0

    def handle_signal(self) -> None:
        self._signals += 1
        seconds = self._service.kernel.infra.settings.process.leave_seconds
        if self._signals == 1 and seconds > 0:
            self._service.mark_unready()
            asyncio.get_running_loop().call_later(seconds, self._leave)
        elif self._servers.is_stopping:
            self._service.skip_drain()
        else:
            self._leave()

    def _leave(self) -> None:
        self._service.close_streams()
        self._servers.request_stop()
        if self._rpc is not None:
            self._rpc.leave()


async def _serve(
    service: Service,
    opened: list[Surface],
    endpoints: list[Endpoint],
    rpc: Server | None,
    ready: StartupReport,
    on_ready: Callable[[StartupReport], None],
) -> None:
    servers = ServerGroup(endpoints, compute_limits(service.kernel.infra.settings.connections))
    handle_stop_signals(GracefulShutdown(service, servers, rpc).handle_signal)
    background: list[asyncio.Task[None]] = []
    try:
        ready.resumed_tasks = await service.start()
        background += [asyncio.create_task(work()) for one in opened for work in one.background]
        if rpc is not None:
            await grpc.start(rpc, service)
        if await servers.start():
            _settle(service, ready)
            on_ready(ready)
        await servers.wait()
    finally:
        if rpc is not None:
            await rpc.stop()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for one in opened:
            for work in one.close:
                await work()
        await service.stop()


def _settle(service: Service, ready: StartupReport) -> None:
    if service.lock is not None:
        service.lock.publish_addresses(gateway=ready.gateway, mcp=ready.surfaces.get("mcp"))
    gc.freeze()
    # A request leaves few cycles behind, so the collector may look more seldom than by default.
    gc.set_threshold(50_000, 20, 50)


def _admin_key_file(settings: Settings) -> str | None:
    path = admin_key_file(settings.storage.data_dir)
    return str(path.absolute()) if path.exists() else None
