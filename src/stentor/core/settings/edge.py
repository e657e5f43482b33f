"""Settings: what one client may hold of the HTTP servers: connections, time, and the names it may call them by."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class EdgeSettings:
    """Times in seconds."""

    head_timeout: float = setting(
        "SERVICE_HEAD_TIMEOUT_SECONDS",
        10.0,
        "Seconds that a client has for the head of a request, and for a TLS handshake.",
        kinds.number(0.05, 600, float),
    )
    body_timeout: float = setting(
        "SERVICE_BODY_TIMEOUT_SECONDS",
        30.0,
        "Seconds in which at least 1 kB of a request body must arrive for each second, or the connection is closed.",
        kinds.number(0.05, 3600, float),
    )
    keep_alive: float = setting(
        "SERVICE_KEEP_ALIVE_SECONDS",
        60.0,
        "Seconds that a connection stays open without a request.",
        kinds.number(0.05, 3600, float),
    )
    max_connections: int = setting(
        "SERVICE_MAX_CONNECTIONS",
        2_000,
        "Open connections of all HTTP surfaces together, fewer where the limit of open files is low; and of gRPC.",
        kinds.number(1, 1e6, int),
    )
    max_connections_per_address: int = setting(
        "SERVICE_MAX_CONNECTIONS_PER_ADDRESS",
        1_000,
        "Of these, how many one client address may have (of IPv6, one /64 network); raise it behind a proxy.",
        kinds.number(1, 1e6, int),
    )
    allowed_hosts: tuple[str, ...] = setting(
        "SERVICE_ALLOWED_HOSTS",
        (),
        "Host names that the gateway and the dashboard answer to, comma separated, beside this machine's own; "
        "`*` for any. Empty: any, but this machine's own names alone while the service listens on loopback.",
        kinds.hosts,
    )
