"""Wires the governed memory server."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stentor.auth.authority.context import AuthorityContext
from stentor.bootstrap.kernel import Kernel
from stentor.core.errors import AuthorityDenied, StartRefused
from stentor.core.settings import Settings
from stentor.domains.memory.governed.authorization import MemoryAuthorizer
from stentor.domains.memory.governed.service import GovernedMemory

if TYPE_CHECKING:
    from stentor.surfaces.memory_mcp.streamable_http import PublicEndpoint

LAUNCH_ISSUER = "launch"


def governed(kernel: Kernel) -> GovernedMemory:
    """The memory of a kernel behind its gate."""
    assert kernel.memory is not None
    memory = kernel.memory
    gate = MemoryAuthorizer(kernel.db, kernel.runlog, kernel.settings.vault_tenant)
    return GovernedMemory(gate, memory.named(memory.indexer), kernel.db)


def launch_context(settings: Settings) -> AuthorityContext | None:
    """Whose calls those on standard input are; None when the launch configuration leaves it blank."""
    try:
        return AuthorityContext(
            settings.mcp_principal,
            settings.vault_tenant,
            settings.mcp_namespaces,
            frozenset(settings.mcp_capabilities),
            LAUNCH_ISSUER,
            "",
            None,
        )
    except AuthorityDenied:
        return None


def origin(settings: Settings, address: str) -> str:
    """`address` is where the server listens; SERVICE_MCP_URL is how clients know it, if another one. Raises
    StartRefused."""
    known = settings.mcp_url.rstrip("/") or address
    try:
        parts = urlsplit(known)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise StartRefused(f"SERVICE_MCP_URL is {known!r}, which is not an origin such as https://memory.example.com.")
    return known


def exposure(settings: Settings, origin: str) -> PublicEndpoint:
    from stentor.surfaces.memory_mcp.streamable_http import PublicEndpoint

    return PublicEndpoint(origin, settings.mcp_hosts, settings.mcp_origins)
