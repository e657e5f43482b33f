"""Builds the surfaces that `stentor serve` starts with the gateway, each with a listener of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from stentor.auth import api_keys
from stentor.bootstrap.service import Service
from stentor.bootstrap.surfaces import dashboard, memory_mcp, notes, vault
from stentor.core.security import pinning
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.core.timers import AsyncJob
from stentor.domains.monitoring.service import HealthComponent
from stentor.surfaces.memory_mcp.lazy_server import LazyMemoryServer
from stentor.web.server.tls_acceptor import TlsCertificate

if TYPE_CHECKING:
    from stentor.surfaces.memory_mcp.streamable_http import MemoryServer
    from stentor.web.server.certificate import ServedCertificate


@dataclass
class Surface:
    """An application with its background jobs, and what closes it. With `tls` it has a second listener."""

    name: str
    app: ASGIApp
    background: list[AsyncJob] = field(default_factory=list)
    close: list[AsyncJob] = field(default_factory=list)
    key_file: str | None = None
    tls: TlsCertificate | None = None


def surface_names(settings: Settings) -> list[str]:
    """Return the surfaces that this process starts with the gateway; a vault behind a plugin is not served again."""
    names = ["dashboard"] if settings.dashboard.enabled else []
    if settings.memory.enabled:
        names += ["notes", "mcp"] if settings.memory.plugin_url else ["vault", "notes", "mcp"]
    return [name for name in names if name in settings.process.roles]


def surface_host(settings: Settings, name: str) -> tuple[str, str | None]:
    """Return where a surface listens, with a warning if that is not where the service does. Raises StartRefused."""
    return dashboard.dashboard_host(settings) if name == "dashboard" else (settings.server.host, None)


def build_surfaces(
    service: Service,
    settings: Settings,
    environ: Mapping[str, str],
    redactor: Redactor,
    addresses: Mapping[str, str],
    tls: ServedCertificate | None,
) -> list[Surface]:
    """Build the surfaces that have an address; `addresses` are by name, `tls` is what all of them serve.

    Raises StartRefused.
    """
    surfaces: list[Surface] = []
    plugin = (settings.memory.plugin_url, settings.memory.plugin_key)
    if "dashboard" in addresses:
        board = dashboard.open_beside(service.kernel, settings, service.context)
        surfaces.append(Surface("dashboard", board.app, close=[board.close]))
    if "vault" in addresses:
        opened = vault.open_vault(settings, redactor, tls, creates_folder=service.kernel.memory is None)
        # The plugin that the vault imitates has a port for HTTP and one for HTTPS; with TLS on, one port is enough.
        second = None if tls else opened.certificate
        surfaces.append(Surface("vault", opened.app, opened.background, key_file=opened.key_file, tls=second))
        # The note store works on the vault that this process serves.
        plugin = (addresses["vault"], opened.key)
    if "notes" in addresses:
        trusted = (lambda: pinning.trust_only(tls.loaded.pem)) if tls and "vault" in addresses else None
        store = notes.beside_vault(settings, environ, redactor, *plugin, trusted)
        surfaces.append(Surface("notes", store.app, close=[store.vault.close], key_file=store.key_file))
    if "mcp" in addresses:
        keys = {principal.name for principal in service.keys.key_ring.principals}
        # Access for a key that does not exist stops the start.
        api_keys.load_memory_access(environ, keys, settings.memory.vault_names)
        surfaces.append(_build_memory_mcp(service, settings, redactor, addresses["mcp"]))
    return surfaces


def _build_memory_mcp(service: Service, settings: Settings, redactor: Redactor, address: str) -> Surface:
    """Check the settings now, so that a wrong one stops the start; the server itself is built at its first use."""
    kernel = service.kernel
    receipts = memory_mcp.open_receipt_verifier(settings, kernel.infra.db, kernel.infra.clock, redactor)
    origin = memory_mcp.public_origin(settings, address)

    def create() -> MemoryServer:
        # On first use: the library of the protocol takes half a second and 25 MB.
        from stentor.surfaces.memory_mcp.access import BearerTokenVerifier
        from stentor.surfaces.memory_mcp.streamable_http import MemoryServer
        from stentor.surfaces.memory_mcp.tools import LocalToolCaller

        tools = LocalToolCaller(memory_mcp.governed_memory(kernel))
        verifier = BearerTokenVerifier(
            service.keys.key_ring,
            receipts,
            kernel.keys.memory_access,
            settings.memory.vault_names,
            # Otherwise other agents would read what a compromised agent wrote before it was stopped.
            kernel.agents.routing.is_active,
        )
        endpoint = memory_mcp.public_endpoint(settings, origin)
        return MemoryServer(tools, verifier, endpoint, settings.server.max_body_mb * 1_000_000)

    server = LazyMemoryServer(create)

    async def check() -> HealthComponent:
        if server.is_running:
            return HealthComponent("available", "responds")
        return HealthComponent("unavailable", "it has ended")

    kernel.health.set_check("mcp_server", check)
    return Surface("mcp", server, [server.run])
