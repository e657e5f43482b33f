"""Settings: what the service listens on, how much it takes in, and whom it may call."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class NetworkSettings:
    host: str = setting("SERVICE_HOST", "127.0.0.1", "Address that the service listens on.", kinds.text)
    gateway_port: int = setting(
        "SERVICE_GATEWAY_PORT", 8080, "Port of the gateway; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    rate_limit: int = setting(
        "SERVICE_RATE_LIMIT_PER_MINUTE",
        100,
        "Requests per minute and key; 0 switches it off.",
        kinds.number(0, 1e9, int),
    )
    max_body_mb: int = setting("SERVICE_MAX_BODY_MB", 10, "Largest request body, in MB.", kinds.number(1, 1024, int))
    max_streams: int = setting(
        "SERVICE_MAX_STREAMS_PER_KEY", 100, "Open event streams per key at most.", kinds.number(1, 1e6, int)
    )
    outbound_allow: tuple[str, ...] = setting(
        "SERVICE_OUTBOUND_ALLOW",
        (),
        "Private hosts (host or host:port, comma separated) that agents' endpoints and webhooks may be on.",
        kinds.hosts,
    )
    log_level: str = setting("SERVICE_LOG_LEVEL", "info", "debug, info, warning or error.", kinds.text)
