"""Settings: the dashboard service. Source: second contract, "Limits"."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


def backend(value: str) -> str:
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
        "SERVICE_DASHBOARD", True, "Whether `stentor serve` starts the dashboard service.", kinds.flag
    )
    dashboard_port: int = setting(
        "SERVICE_DASHBOARD_PORT",
        8081,
        "Port of the dashboard service; 0 takes a free one.",
        kinds.number(0, 65535, int),
    )
    dashboard_key: str = setting(
        "DASHBOARD_API_KEY",
        "",
        "Key of the dashboard service; empty takes MCP_API_KEY, and without that it answers anybody on this machine.",
        kinds.text,
        secret=True,
    )
    dashboard_tenant: str = setting(
        "SERVICE_DASHBOARD_TENANT", "default", "The tenant that the dashboard service shows.", kinds.named
    )
    session_hours: float = setting(
        "SERVICE_SESSION_HOURS",
        12.0,
        "Hours after which whoever signed in to the pages signs in again; without a request it is 4.",
        kinds.number(0.01, 8760, float),
    )
    metrics_url: str = setting(
        "SERVICE_METRICS_URL",
        "",
        "Prometheus whose alerts and targets the dashboard service shows, such as http://127.0.0.1:9090.",
        backend,
    )
    metrics_timeout: float = setting(
        "SERVICE_METRICS_TIMEOUT", 3.0, "How many seconds that Prometheus may take.", kinds.number(0.05, 60, float)
    )
