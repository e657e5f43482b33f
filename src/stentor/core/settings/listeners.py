"""Settings of the listeners: network, TLS and limits, dashboard, note store, governed memory server, vault, gRPC.

Sources: second contract, "Limits"; docs/decisions, 0025 (gRPC).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting

MEMORY_CAPABILITIES = ("memory.read", "memory.write")
"""The capabilities that a caller of the governed memory can have."""
DEFAULT_GRPC_PORT = 50051
"""The port that gRPC clients expect."""


@dataclass(frozen=True)
class ServerSettings:
    host: str = setting(
        "SERVICE_HOST", "127.0.0.1", "Address to listen on; by default only this machine can connect.", parsers.text
    )
    port: int = setting(
        "SERVICE_GATEWAY_PORT", 8080, "Port of the gateway; 0 means any free port.", parsers.number(0, 65535, int)
    )
    rate_limit: int = setting(
        "SERVICE_RATE_LIMIT_PER_MINUTE",
        100,
        "Requests per minute and key; 0 disables the limit.",
        parsers.number(0, 1e9, int),
    )
    max_body_mb: int = setting(
        "SERVICE_MAX_BODY_MB", 10, "Maximum size of a request body in MB.", parsers.number(1, 1024, int)
    )
    max_streams: int = setting(
        "SERVICE_MAX_STREAMS_PER_KEY", 100, "Maximum number of open event streams per key.", parsers.number(1, 1e6, int)
    )
    outbound_allow: tuple[str, ...] = setting(
        "SERVICE_OUTBOUND_ALLOW",
        (),
        "Private hosts (host or host:port, comma separated) that agents' endpoints, webhooks and providers registered "
        "through the API may use; by default they may use public addresses only.",
        parsers.host_list,
    )
    log_level: str = setting(
        "SERVICE_LOG_LEVEL",
        "info",
        "Log level: debug, info, warning or error.",
        parsers.choice("debug", "info", "warning", "error"),
    )


@dataclass(frozen=True)
class TlsSettings:
    """TLS of all listeners together; none of them then speaks plain HTTP."""

    enabled: bool = setting(
        "SERVICE_TLS",
        False,
        "Whether every port speaks TLS, with the certificate of SERVICE_TLS_CERT, or else one that is made at the "
        "first start and renewed by itself.",
        parsers.boolean,
    )
    cert: Path | None = setting(
        "SERVICE_TLS_CERT",
        None,
        "PEM file of a certificate of your own, followed by its issuers; switches TLS on and is read again when it "
        "changes. Needs SERVICE_TLS_KEY.",
        parsers.optional_path,
    )
    key: Path | None = setting(
        "SERVICE_TLS_KEY",
        None,
        "PEM file of the private key of that certificate, without a password.",
        parsers.optional_path,
    )

    @property
    def is_on(self) -> bool:
        return self.enabled or self.cert is not None


@dataclass(frozen=True)
class ConnectionSettings:
    """Limits for connections of one client. Times in seconds."""

    head_timeout: float = setting(
        "SERVICE_HEAD_TIMEOUT_SECONDS",
        10.0,
        "Seconds until the head of a request must have arrived, and a TLS handshake must be complete.",
        parsers.number(0.05, 600, float),
    )
    body_timeout: float = setting(
        "SERVICE_BODY_TIMEOUT_SECONDS",
        30.0,
        "Seconds in which a request body must arrive at 1 kB per second or more, or the connection is closed.",
        parsers.number(0.05, 3600, float),
    )
    keep_alive: float = setting(
        "SERVICE_KEEP_ALIVE_SECONDS",
        60.0,
        "Seconds that an idle connection stays open.",
        parsers.number(0.05, 3600, float),
    )
    max_connections: int = setting(
        "SERVICE_MAX_CONNECTIONS",
        2_000,
        "Maximum number of open connections of all HTTP listeners together (fewer if the limit of open files is low), "
        "and of gRPC.",
        parsers.number(1, 1e6, int),
    )
    max_connections_per_address: int = setting(
        "SERVICE_MAX_CONNECTIONS_PER_ADDRESS",
        1_000,
        "Maximum number of open connections per client address (IPv6: per /64 network); raise it behind a proxy.",
        parsers.number(1, 1e6, int),
    )
    allowed_hosts: tuple[str, ...] = setting(
        "SERVICE_ALLOWED_HOSTS",
        (),
        "Host names that the gateway and the dashboard accept besides localhost, comma separated; `*` means any. Empty "
        "means any name, but only localhost while the service listens on loopback (against DNS rebinding).",
        parsers.host_names,
    )


def backend_url(value: str) -> str:
    """Parse a URL without credentials, query and fragment, such as http://127.0.0.1:9090. Raises ValueError."""
    if not value:
        return ""
    parts = parsers.split_web_url(value)
    if parts is None or parts.query or parts.fragment or not value.isprintable() or " " in value:
        raise ValueError("must be a URL such as http://127.0.0.1:9090")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain credentials")
    return value.rstrip("/")


@dataclass(frozen=True)
class DashboardSettings:
    """The dashboard service. Times in seconds."""

    enabled: bool = setting(
        "SERVICE_DASHBOARD", True, "Whether `stentor serve` starts the dashboard service.", parsers.boolean
    )
    port: int = setting(
        "SERVICE_DASHBOARD_PORT",
        8081,
        "Port of the dashboard service; 0 means any free port.",
        parsers.number(0, 65535, int),
    )
    key: str = setting(
        "DASHBOARD_API_KEY",
        "",
        "API key of the dashboard service; empty means MCP_API_KEY, and if that is empty too, everyone on this machine "
        "has access.",
        parsers.text,
        secret=True,
    )
    tenant: str = setting(
        "SERVICE_DASHBOARD_TENANT", "default", "Tenant that the dashboard service shows.", parsers.non_blank
    )
    session_hours: float = setting(
        "SERVICE_SESSION_HOURS",
        12.0,
        "Hours until a session of the dashboard pages ends; without a request it ends after 4 hours.",
        parsers.number(0.01, 8760, float),
    )
    metrics_url: str = setting(
        "SERVICE_METRICS_URL",
        "",
        "URL of a Prometheus server whose alerts and targets the dashboard shows, such as http://127.0.0.1:9090.",
        backend_url,
    )
    metrics_timeout_seconds: float = setting(
        "SERVICE_METRICS_TIMEOUT",
        3.0,
        "Seconds until a request to Prometheus times out.",
        parsers.number(0.05, 60, float),
    )


def parse_capabilities(value: str) -> tuple[str, ...]:
    """Parse comma-separated capabilities.

    Raises ValueError for an unknown one: the memory would otherwise deny every call without a visible reason.
    """
    capabilities = parsers.text_list(value)
    if unknown := [name for name in capabilities if name not in MEMORY_CAPABILITIES]:
        raise ValueError(f"may contain {' and '.join(MEMORY_CAPABILITIES)}; {unknown[0][:40]!r} is not a capability")
    return capabilities


@dataclass(frozen=True)
class NotesSettings:
    port: int = setting(
        "SERVICE_NOTES_PORT",
        3000,
        "Port of the note store in `stentor serve`; 0 means any free port.",
        parsers.number(0, 65535, int),
    )


@dataclass(frozen=True)
class McpSettings:
    """The governed memory server."""

    port: int = setting(
        "SERVICE_MCP_PORT",
        8082,
        "Port of the governed memory server; 0 means any free port.",
        parsers.number(0, 65535, int),
    )
    url: str = setting(
        "SERVICE_MCP_URL",
        "",
        "Public origin of the governed memory server, such as https://memory.example.com; empty means the address that "
        "it listens on.",
        parsers.text,
    )
    hosts: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_HOSTS",
        (),
        "Further Host values that the governed memory server accepts, comma separated; `name:*` means any port.",
        parsers.host_values,
    )
    origins: tuple[str, ...] = setting(
        "SERVICE_MCP_ALLOWED_ORIGINS",
        (),
        "Further Origin values that it accepts (browser clients on other sites).",
        parsers.origin_list,
    )
    principal: str = setting(
        "SERVICE_MCP_PRINCIPAL",
        "",
        "Principal of `stentor mcp` (standard input and output); empty denies every call.",
        parsers.text,
    )
    namespaces: tuple[str, ...] = setting(
        "SERVICE_MCP_NAMESPACES",
        (),
        "Namespaces that `stentor mcp` may access, comma separated; `*` means all but vaults.",
        parsers.text_list,
    )
    capabilities: tuple[str, ...] = setting(
        "SERVICE_MCP_CAPABILITIES",
        (),
        "Capabilities of `stentor mcp`: memory.read, memory.write; empty denies every call.",
        parse_capabilities,
    )


@dataclass(frozen=True)
class VaultSettings:
    port: int = setting(
        "SERVICE_VAULT_PORT",
        27123,
        "HTTP port of `stentor vault`, not opened with SERVICE_TLS; 0 means any free port.",
        parsers.number(0, 65535, int),
    )
    tls: bool = setting("SERVICE_VAULT_TLS", True, "Whether `stentor vault` also serves HTTPS.", parsers.boolean)
    tls_port: int = setting(
        "SERVICE_VAULT_TLS_PORT",
        27124,
        "HTTPS port of `stentor vault`; 0 means any free port.",
        parsers.number(0, 65535, int),
    )
    key: str = setting(
        "SERVICE_VAULT_KEY",
        "",
        "API key of `stentor vault`; empty means a generated one in the data folder.",
        parsers.text,
        secret=True,
    )


@dataclass(frozen=True)
class GrpcSettings:
    port: int | None = setting(
        "SERVICE_GRPC_PORT",
        None,
        f"Port of gRPC, usually {DEFAULT_GRPC_PORT}; 0 means any free port, empty disables it. Needs the extra `grpc`.",
        parsers.optional(parsers.number(0, 65535, int)),
    )
