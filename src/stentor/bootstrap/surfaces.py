"""Wires the surfaces beside the gateway: each an application at a listener of its own."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from stentor.auth import api_keys
from stentor.auth.api_keys import MemoryAccess
from stentor.bootstrap import authority, dashboard, mcp, notes, vault
from stentor.bootstrap.service import Service
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.monitoring.service import HealthComponent
from stentor.surfaces.memory_mcp.lazy_server import LazyMemoryServer

if TYPE_CHECKING:
    from stentor.surfaces.memory_mcp.streamable_http import MemoryServer

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass
class Surface:
    """`background` runs as long as it answers, `at_end` after it. With `tls` it answers on a second listener too."""

    name: str
    app: ASGIApp
    background: list[Work] = field(default_factory=list)
    at_end: list[Work] = field(default_factory=list)
    key_file: str | None = None
    tls: ssl.SSLContext | None = None


def names(settings: Settings) -> list[str]:
    """The surfaces that this process starts beside the gateway; a vault behind a plugin is not served once more."""
    found = ["dashboard"] if settings.dashboard else []
    if settings.memory:
        found += ["notes", "mcp"] if settings.plugin_url else ["vault", "notes", "mcp"]
    return [name for name in found if name in settings.roles]


def host(settings: Settings, name: str) -> tuple[str, str | None]:
    """Where a surface listens, and a warning when that is not where the service does. Raises StartRefused."""
    return dashboard.host_beside(settings) if name == "dashboard" else (settings.host, None)


def build(
    service: Service, settings: Settings, environ: Mapping[str, str], redactor: Redactor, addresses: Mapping[str, str]
) -> list[Surface]:
    """Those that have an address: where each will answer, by its name. Raises StartRefused."""
    made: list[Surface] = []
    plugin = (settings.plugin_url, settings.plugin_key)
    if "dashboard" in addresses:
        opened_dashboard = dashboard.beside(service.kernel, settings, service.entrance)
        made.append(Surface("dashboard", opened_dashboard.app, at_end=[opened_dashboard.close]))
    if "vault" in addresses:
        opened = vault.open_vault(settings, redactor)
        tls = opened.certificate.ssl_context if opened.certificate else None
        made.append(Surface("vault", opened.app, opened.background, key_file=opened.key_file, tls=tls))
        plugin = (addresses["vault"], opened.key)
    if "notes" in addresses:
        store = notes.beside_vault(settings, environ, redactor, *plugin)
        made.append(Surface("notes", store.app, at_end=[store.vault.close], key_file=store.key_file))
    if "mcp" in addresses:
        keys = {principal.name for principal in service.keys.key_ring.principals}
        access = api_keys.load_memory_access(environ, keys, settings.vault_names)
        made.append(_mcp(service, settings, redactor, addresses["mcp"], access))
    return made


def _mcp(
    service: Service, settings: Settings, redactor: Redactor, address: str, access: Mapping[str, MemoryAccess]
) -> Surface:
    """What the settings can have wrong refuses the start; the server itself is made at its first use."""
    kernel = service.kernel
    receipts = authority.open_verifier(settings, kernel.db, kernel.clock, redactor)
    origin = mcp.origin(settings, address)

    def make() -> MemoryServer:
        from stentor.surfaces.memory_mcp.access import BearerTokenVerifier
        from stentor.surfaces.memory_mcp.streamable_http import MemoryServer
        from stentor.surfaces.memory_mcp.tools import LocalToolCaller

        calls = LocalToolCaller(mcp.governed(kernel))
        verifier = BearerTokenVerifier(service.keys.key_ring, receipts, access, settings.vault_names)
        return MemoryServer(calls, verifier, mcp.exposure(settings, origin), settings.max_body_mb * 1_000_000)

    server = LazyMemoryServer(make)

    async def check() -> HealthComponent:
        return (
            HealthComponent("available", "answers")
            if server.is_running
            else HealthComponent("unavailable", "it has ended")
        )

    kernel.health.set_check("mcp_server", check)
    return Surface("mcp", server, [server.run])
