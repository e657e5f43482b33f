"""Runs the service: binds the ports, opens the service, serves until a signal arrives, and shuts down gracefully.

`commands.servers` parses the options of `stentor serve`; the parts of the service are built in `bootstrap`.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.types import ASGIApp

from stentor.auth.api_keys import admin_key_file
from stentor.bootstrap.service import Service, open_service
from stentor.bootstrap.surfaces import dashboard, grpc
from stentor.bootstrap.surfaces.builder import Surface, build_surfaces, surface_host, surface_names
from stentor.bootstrap.tls import certificate_check, certificate_file, open_certificate
from stentor.core.errors import StartRefused
from stentor.core.filesystem import in_use_message, read_lock_holder
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.core.settings.config_file import find_misspelled_variables
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable
from stentor.domains.memory.embedding.local import find_model_files
from stentor.web import allowed_hosts
from stentor.web.middleware import known_key_check
from stentor.web.server.connections import compute_limits
from stentor.web.server.http_server import (
    Endpoint,
    Listener,
    ServerGroup,
    bind,
    create_runner,
    handle_stop_signals,
)
from stentor.web.server.tls_acceptor import TlsCertificate

if TYPE_CHECKING:
    from stentor.surfaces.grpc.server import Server
    from stentor.web.server.certificate import ServedCertificate

SURFACE_LABELS = {
    "dashboard": "dashboard",
    "vault": "vault",
    "vault_tls": "vault (HTTPS)",
    "notes": "note store",
    "mcp": "governed memory (MCP)",
    "grpc": "gRPC",
}
"""What people read for the names of `StartupReport.surfaces`."""


class StartupReport(msgspec.Struct):
    """What is known once every server accepts requests.

    `surfaces` maps the servers besides the gateway to their addresses, `key_files` those with a key of their own to its
    file. `gateway` is None if only one surface was started, `certificate` with TLS off. `only_key_file` has the admin's
    key, and is None with keys from the environment.
    """

    gateway: str | None
    surfaces: dict[str, str]
    admin_key_file: str | None
    key_files: dict[str, str]
    only_key_file: str | None
    generated_key: str | None
    resumed_tasks: int
    warnings: list[str]
    certificate: CertificateReport | None = None


class CertificateReport(msgspec.Struct):
    """The certificate of all ports: the file that clients trust, and the SHA-256 by which people compare it."""

    file: str
    sha256: str


def run_service(
    settings: Settings,
    environ: Mapping[str, str],
    redactor: Redactor,
    on_ready: Callable[[StartupReport], None],
    only_surface: str | None = None,
) -> None:
    """Serve the gateway and all surfaces, or only one surface, until SIGINT, SIGTERM or SIGHUP. Raises StartRefused."""
    with ExitStack() as stack:
        warnings = [*find_misspelled_variables(environ), *_find_missing_model(settings)]
        loop = stack.enter_context(create_runner())
        tls = open_certificate(settings)
        names = [only_surface] if only_surface else surface_names(settings)
        # Bind all ports before opening the service: ports in use are reported before the data folder is changed.
        with PortProblems() as problems:
            gateway: Listener | None = None
            with problems.collect():
                gateway = None if only_surface else stack.enter_context(bind_gateway(settings, tls))
            listeners: dict[str, Listener] = {}
            for name in names:
                with problems.collect():
                    listeners[name] = stack.enter_context(_bind_surface(settings, name, warnings, tls))
            rpc: Server | None = None
            with problems.collect():
                rpc = None if only_surface else loop.run(grpc.bind(settings, warnings, tls))
            if rpc is not None:
                stack.callback(lambda: loop.run(rpc.stop()))
            if "vault" in names and tls is None:
                with problems.collect():
                    _check_vault_tls_port(settings)
        service = open_service(settings, environ, redactor)
        addresses = {name: listener.address for name, listener in listeners.items()}
        try:
            opened = build_surfaces(service, settings, environ, redactor, addresses, tls)
        except BaseException:
            # Not `stop`: it was never started.
            service.abandon()
            raise
        endpoints = [Endpoint(_check_host(settings, surface), listeners[surface.name]) for surface in opened]
        for surface in opened:
            if surface.tls is not None:
                listener = _bind_surface(settings, surface.name, warnings, surface.tls)
                endpoints.append(Endpoint(surface.app, stack.enter_context(listener)))
                addresses[f"{surface.name}_tls"] = listener.address
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
            key_files={surface.name: surface.key_file for surface in opened if surface.key_file},
            only_key_file=None if service.keys.key_file is None else str(service.keys.key_file.absolute()),
            generated_key=service.keys.generated[0] if service.keys.generated else None,
            resumed_tasks=0,
            warnings=service.keys.warnings + warnings,
            certificate=_report_certificate(settings, tls),
        )
        loop.run(_serve(service, opened, endpoints, rpc, ready, on_ready, tls))


def _find_missing_model(settings: Settings) -> Iterator[str]:
    """Yield a warning if the embedding model that was chosen is not there; the memory then searches by words only."""
    memory = settings.memory
    if not memory.enabled or memory.embedding_url or memory.embedding_model in ("", "none"):
        return
    try:
        find_model_files(Path(memory.embedding_model))
    except EmbeddingUnavailable as error:
        yield f"SERVICE_EMBEDDING_MODEL: {error.message} Until then the memory is searched by words, not by meaning."


class PortProblems:
    """Collects the ports that cannot be used, so that one message names them all."""

    def __init__(self) -> None:
        self._messages: list[str] = []

    def __enter__(self) -> PortProblems:
        return self

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep the message of a port that is refused. Raises AlreadyRunning, which explains all of them."""
        try:
            yield
        except AlreadyRunning:
            raise
        except StartRefused as error:
            self._messages.append(error.message)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise StartRefused if a port was refused."""
        if kind is None and self._messages:
            raise StartRefused("\n".join(dict.fromkeys(self._messages)))


class AlreadyRunning(StartRefused):
    """The service of this data folder runs already."""


def bind_gateway(settings: Settings, tls: TlsCertificate | None) -> Listener:
    """Raises StartRefused; if the port is taken because this service runs already, with that reason."""
    try:
        return bind(settings.server.host, settings.server.port, "--gateway-port (SERVICE_GATEWAY_PORT)", tls)
    except StartRefused:
        if read_lock_holder(settings.storage.data_dir) is not None:
            raise AlreadyRunning(in_use_message(settings.storage.data_dir)) from None
        raise


def _bind_surface(settings: Settings, surface: str, warnings: list[str], tls: TlsCertificate | None) -> Listener:
    """Bind the configured port; if only the default port is configured and in use, bind any free port.

    The vault has a port of its own for TLS, as clients of Obsidian's plugin expect.
    """
    name = "vault_tls" if surface == "vault" and tls is not None else surface
    port = settings.get("vault.tls_port" if name == "vault_tls" else f"{name}.port")
    variable = f"SERVICE_{name.upper()}_PORT"
    option = f"--{name.replace('_', '-')}-port ({variable})"
    host, warning = surface_host(settings, surface)
    warnings += [warning] if warning else []
    try:
        return bind(host, port, option, tls)
    except StartRefused:
        # A port that somebody chose is never replaced: clients expect the server there.
        if settings.sources.get(variable) != "default":
            raise
    listener = bind(host, 0, option, tls)
    label = SURFACE_LABELS[name]
    warnings.append(f"The default port of the {label}, {port}, is in use; it listens on {listener.address} instead.")
    return listener


def _check_vault_tls_port(settings: Settings) -> None:
    """Raise StartRefused if the vault's second port, which is bound after the service is opened, is taken.

    Only for a configured port: in place of the default one any free port is used.
    """
    if settings.sources.get("SERVICE_VAULT_TLS_PORT") != "default" and settings.vault.tls_port:
        host, _ = surface_host(settings, "vault")
        with bind(host, settings.vault.tls_port, "--vault-tls-port (SERVICE_VAULT_TLS_PORT)"):
            pass


def _check_host(settings: Settings, surface: Surface) -> ASGIApp:
    """Wrap the dashboard in the check of host names against DNS rebinding.

    The memory server has its own check; browsers do not use the other surfaces.
    """
    if surface.name != "dashboard":
        return surface.app
    host, _ = surface_host(settings, surface.name)
    loopback = host in allowed_hosts.LOOPBACK_NAMES
    return allowed_hosts.wrap_allowed_hosts(
        surface.app, settings.connections.allowed_hosts, dashboard.key_check(settings), loopback=loopback
    )


class GracefulShutdown:
    """The steps of a shutdown: not ready, stop accepting, drain. Each further signal cuts the current step short."""

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
            # Keep serving while /health/ready fails, until load balancers have noticed.
            asyncio.get_running_loop().call_later(seconds, self._stop_accepting)
        elif self._servers.is_stopping:
            self._service.skip_drain()
        else:
            self._stop_accepting()

    def _stop_accepting(self) -> None:
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
    tls: ServedCertificate | None,
) -> None:
    servers = ServerGroup(endpoints, compute_limits(service.kernel.infra.settings.connections))
    handle_stop_signals(GracefulShutdown(service, servers, rpc).handle_signal)
    background: list[asyncio.Task[None]] = []
    try:
        # Before the servers accept requests, which need what the start loads.
        ready.resumed_tasks = await service.start()
        background += [asyncio.create_task(work()) for surface in opened for work in surface.background]
        if tls is not None:
            infra = service.kernel.infra
            service.kernel.alerts.add_check(certificate_check(infra.settings, infra.clock, tls))
            background.append(asyncio.create_task(tls.watch()))
        if rpc is not None:
            await grpc.start(rpc, service)
        # False if a signal came first: then readiness is not announced.
        if await servers.start():
            _finish_startup(service, ready, tls)
            on_ready(ready)
        await servers.wait()
    finally:
        if rpc is not None:
            await rpc.stop()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        for surface in opened:
            for work in surface.close:
                await work()
        await service.stop()


def _finish_startup(service: Service, ready: StartupReport, tls: ServedCertificate | None) -> None:
    if (lock := service.lock) is not None:

        def publish() -> None:
            certificate = tls.loaded.pem if tls else None
            lock.publish(gateway=ready.gateway, mcp=ready.surfaces.get("mcp"), certificate=certificate)

        publish()
        if tls is not None:
            tls.on_change.append(publish)
    # Objects of the startup live as long as the process: exclude them from collection. Requests leave few reference
    # cycles, so collect less often than by default.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _report_certificate(settings: Settings, tls: ServedCertificate | None) -> CertificateReport | None:
    if tls is None:
        return None
    return CertificateReport(str(certificate_file(settings).absolute()), tls.loaded.fingerprint)


def _admin_key_file(settings: Settings) -> str | None:
    path = admin_key_file(settings.storage.data_dir)
    return str(path.absolute()) if path.exists() else None
