"""Settings: what the service listens on, how much it takes in, and whom it may call.

Settings: what one client may hold of the HTTP servers: connections, time, and the names it may call them by.

Settings: the dashboard service. Source: second contract, "Limits".

Settings: the note store and the governed memory server.

Settings: `stentor vault`.

Settings: the gRPC surface. Source: docs/decisions, 0025.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting


@dataclass(frozen=True)
class NetworkSettings:
    host: str = setting("SERVICE_HOST", "127.0.0.1", "Address that the service listens on.", parsers.text)
    gateway_port: int = setting(
        "SERVICE_GATEWAY_PORT", 8080, "Port of the gateway; 0 takes a free one.", parsers.number(0, 65535, int)
    )
    rate_limit: int = setting(
        "SERVICE_RATE_LIMIT_PER_MINUTE",
        100,
        "Requests per minute and key; 0 switches it off.",
        parsers.number(0, 1e9, int),
    )
    max_body_mb: int = setting("SERVICE_MAX_BODY_MB", 10, "Largest request body, in MB.", parsers.number(1, 1024, int))
    max_streams: int = setting(
        "SERVICE_MAX_STREAMS_PER_KEY", 100, "Open event streams per key at most.", parsers.number(1, 1e6, int)
    )
    outbound_allow: tuple[str, ...] = setting(
        "SERVICE_OUTBOUND_ALLOW",
        (),
        "Private hosts (host or host:port, comma separated) that agents' endpoints and webhooks may be on.",
        parsers.host_list,
    )
    log_level: str = setting("SERVICE_LOG_LEVEL", "info", "debug, info, warning or error.", parsers.text)


@dataclass(frozen=True)
class ConnectionSettings:
    """Times in seconds."""

    head_timeout: float = setting(
        "SERVICE_HEAD_TIMEOUT_SECONDS",
        10.0,
        "Seconds that a client has for the head of a request, and for a TLS handshake.",
        parsers.number(0.05, 600, float),
    )
    body_timeout: float = setting(
        "SERVICE_BODY_TIMEOUT_SECONDS",
        30.0,
        "Seconds in which at least 1 kB of a request body must arrive for each second, or the connection is closed.",
        parsers.number(0.05, 3600, float),
    )
    keep_alive: float = setting(
        "SERVICE_KEEP_ALIVE_SECONDS",
        60.0,
        "Seconds that a connection stays open without a request.",
        parsers.number(0.05, 3600, float),
    )
    max_connections: int = setting(
        "SERVICE_MAX_CONNECTIONS",
        2_000,
        "Open connections of all HTTP surfaces together, fewer where the limit of open files is low; and of gRPC.",
        parsers.number(1, 1e6, int),
    )
    max_connections_per_address: int = setting(
        "SERVICE_MAX_CONNECTIONS_PER_ADDRESS",
        1_000,
        "Of these, how many one client address may have (of IPv6, one /64 network); raise it behind a proxy.",
        parsers.number(1, 1e6, int),
    )
    allowed_hosts: tuple[str, ...] = setting(
        "SERVICE_ALLOWED_HOSTS",
        (),
        "Host names that the gateway and the dashboard answer to, comma separated, beside this machine's own; "
        "`*` for any. Empty: any, but this machine's own names alone while the service listens on loopback.",
        parsers.host_list,
    )


def backend_url(value: str) -> str:
    """An address without credentials, query and fragment, such as http://127.0.0.1:9090."""
    if not value:
        return ""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or not value.isprintable() or " " in value:
        raise ValueError("must be an address such as http://127.0.0.1:9090")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must carry no credentials")
    return value.rstrip("/")


@dataclass(frozen=True)
class DashboardSettings:
    """Times in seconds."""

    dashboard: bool = setting(
        "SERVICE_DASHBOARD", True, "Whether `stentor serve` starts the dashboard service.", parsers.boolean
    )
    dashboard_port: int = setting(
        "SERVICE_DASHBOARD_PORT",
        8081,
        "Port of the dashboard service; 0 takes a free one.",
        parsers.number(0, 65535, int),
    )
    dashboard_key: str = setting(
        "DASHBOARD_API_KEY",
        "",
        "Key of the dashboard service; empty takes MCP_API_KEY, and without that it answers anybody on this machine.",
        parsers.text,
        secret=True,
    )
    dashboard_tenant: str = setting(
        "SERVICE_DASHBOARD_TENANT", "default", "The tenant that the dashboard service shows.", parsers.non_blank
    )
    session_hours: float = setting(
        "SERVICE_SESSION_HOURS",
        12.0,
        "Hours after which whoever signed in to the pages signs in again; without a request it is 4.",
        parsers.number(0.01, 8760, float),
    )
    metrics_url: str = setting(
        "SERVICE_METRICS_URL",
        "",
        "Prometheus whose alerts and targets the dashboard service shows, such as http://127.0.0.1:9090.",
        backend_url,
    )
    metrics_timeout: float = setting(
        "SERVICE_METRICS_TIMEOUT", 3.0, "How many seconds that Prometheus may take.", parsers.number(0.05, 60, float)
    )


MEMORY_CAPABILITIES = ("memory.read", "memory.write")
"""What a caller of the governed memory can be given."""


def parse_capabilities(value: str) -> tuple[str, ...]:
    """Names between commas. An unknown one raises ValueError, or the memory would deny every call without a reason."""
    wanted = parsers.text_list(value)
    if unknown := [name for name in wanted if name not in MEMORY_CAPABILITIES]:
        raise ValueError(f"may name {' and '.join(MEMORY_CAPABILITIES)}; {unknown[0][:40]!r} is no capability")
    return wanted


@dataclass(frozen=True)
class NotesAndMcpSettings:
    notes_port: int = setting(
        "SERVICE_NOTES_PORT",
        3000,
        "Port of the note store in `stentor serve`; 0 takes a free one.",
        parsers.number(0, 65535, int),
    )
    mcp_port: int = setting(
        "SERVICE_MCP_PORT",
        8082,
        "Port of the governed memory server; 0 takes a free one.",
        parsers.number(0, 65535, int),
    )
    mcp_url: str = setting(
        "SERVICE_MCP_URL",
        "",
        "Origin under which clients know the governed memory server, such as https://memory.example.com; empty means "
        "the address that it listens on.",
        parsers.text,
    )
    mcp_hosts: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_HOSTS",
        (),
        "More values of Host that the governed memory server answers to.",
        parsers.host_list,
    )
    mcp_origins: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_ORIGINS", (), "More values of Origin, for browsers on other sites.", parsers.host_list
    )
    mcp_principal: str = setting(
        "SERVICE_MCP_PRINCIPAL", "", "Who calls on standard input (`stentor mcp`); blank is denied.", parsers.text
    )
    mcp_namespaces: tuple[str, ...] = setting(
        "SERVICE_MCP_NAMESPACES", (), "Namespaces that it reaches, comma separated; `*` for all.", parsers.text_list
    )
    mcp_capabilities: tuple[str, ...] = setting(
        "SERVICE_MCP_CAPABILITIES",
        (),
        "What it may do: memory.read, memory.write; blank is denied.",
        parse_capabilities,
    )


@dataclass(frozen=True)
class VaultSettings:
    vault_port: int = setting(
        "SERVICE_VAULT_PORT", 27123, "Port of `stentor vault`; 0 takes a free one.", parsers.number(0, 65535, int)
    )
    vault_tls: bool = setting(
        "SERVICE_VAULT_TLS", True, "Whether `stentor vault` answers on HTTPS as well.", parsers.boolean
    )
    vault_tls_port: int = setting(
        "SERVICE_VAULT_TLS_PORT", 27124, "Port of its HTTPS; 0 takes a free one.", parsers.number(0, 65535, int)
    )
    vault_key: str = setting(
        "SERVICE_VAULT_KEY",
        "",
        "Key of `stentor vault`; empty makes one in the data folder.",
        parsers.text,
        secret=True,
    )


DEFAULT_GRPC_PORT = 50051
"""What clients of gRPC expect."""


def optional_port(value: str) -> int | None:
    return parsers.number(0, 65535, int)(value) if value else None


@dataclass(frozen=True)
class GrpcSettings:
    grpc_port: int | None = setting(
        "SERVICE_GRPC_PORT",
        None,
        f"Port of the gRPC surface, usually {DEFAULT_GRPC_PORT}; 0 takes a free one, empty serves none. Extra `grpc`.",
        optional_port,
    )
