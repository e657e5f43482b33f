"""Wires the governed memory server: the verifier of receipts, the memory behind its rules, where it is reached."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from stentor.auth.authority import issuers, keys
from stentor.auth.authority.receipts import ReceiptVerifier, ReplayGuard
from stentor.bootstrap.kernel import Kernel
from stentor.core.clock import Clock
from stentor.core.db import Database
from stentor.core.errors import StartRefused
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.memory.governed.authorization import MemoryAuthorizer
from stentor.domains.memory.governed.service import GovernedMemory

if TYPE_CHECKING:
    # The module imports the library of the protocol, see `builder`.
    from stentor.surfaces.memory_mcp.streamable_http import PublicEndpoint


def open_receipt_verifier(settings: Settings, db: Database, clock: Clock, redactor: Redactor) -> ReceiptVerifier:
    """Open the verifier over a migrated database; create the service's own key if there is none.

    Raises StartRefused.
    """
    key = keys.ensure_signing_key(settings.storage.data_dir)
    redactor.add_secret(str(key.as_dict(private=True)["d"]))
    trusted = issuers.load_issuers(settings.auth.authority_issuers, key)
    return ReceiptVerifier(trusted, settings.auth.authority_audience, ReplayGuard(db), clock)


def governed_memory(kernel: Kernel) -> GovernedMemory:
    """Return the memory of a kernel behind the rules of governed memory."""
    assert kernel.memory is not None
    infra = kernel.infra
    authorizer = MemoryAuthorizer(infra.db, infra.runlog, infra.settings.memory.tenant)
    return GovernedMemory(authorizer, kernel.memory.registry(), infra.db)


def public_origin(settings: Settings, address: str) -> str:
    """Return the origin by which clients know the server: SERVICE_MCP_URL, else where it listens.

    Raises StartRefused.
    """
    origin = settings.mcp.url.rstrip("/") or address
    try:
        parts = urlsplit(origin)
        is_origin = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_origin = False
    if not is_origin:
        raise StartRefused(f"SERVICE_MCP_URL is {origin!r}, which is not an origin such as https://memory.example.com.")
    return origin


def public_endpoint(settings: Settings, origin: str) -> PublicEndpoint:
    from stentor.surfaces.memory_mcp.streamable_http import PublicEndpoint

    return PublicEndpoint(origin, settings.mcp.hosts, settings.mcp.origins)
