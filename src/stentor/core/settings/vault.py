"""Settings: `stentor vault`."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class VaultSettings:
    vault_port: int = setting(
        "SERVICE_VAULT_PORT", 27123, "Port of `stentor vault`; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    vault_tls: bool = setting(
        "SERVICE_VAULT_TLS", True, "Whether `stentor vault` answers on HTTPS as well.", kinds.flag
    )
    vault_tls_port: int = setting(
        "SERVICE_VAULT_TLS_PORT", 27124, "Port of its HTTPS; 0 takes a free one.", kinds.number(0, 65535, int)
    )
    vault_key: str = setting(
        "SERVICE_VAULT_KEY", "", "Key of `stentor vault`; empty makes one in the data folder.", kinds.text, secret=True
    )
