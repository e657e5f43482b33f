"""Settings: who may call: keys, development, and receipts of other issuers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class AuthSettings:
    shared_key: str = setting(
        "MCP_API_KEY",
        "",
        "Key with full permissions, used when no SERVICE_API_KEY_<NAME> loads.",
        kinds.text,
        secret=True,
    )
    node_env: str = setting(
        "NODE_ENV", "production", "`development` permits SKIP_AUTH and well-known keys.", kinds.text
    )
    skip_auth: bool = setting(
        "SKIP_AUTH", False, "In development, on loopback only: every request is an admin's.", kinds.flag
    )
    authority_issuers: Path | None = setting(
        "SERVICE_AUTHORITY_ISSUERS",
        None,
        "JSON file of the issuers whose receipts are taken besides the service's own, with their keys and tenants.",
        kinds.path_or_none,
    )
    authority_audience: str = setting(
        "SERVICE_AUTHORITY_AUDIENCE", "stentor", "The audience that a receipt must name.", kinds.named
    )
