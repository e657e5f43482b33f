"""Settings: commands that talk to a running service."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class ClientSettings:
    client_url: str = setting(
        "SERVICE_URL", "", "Service that commands talk to; empty means the one that holds the data folder.", kinds.text
    )
    client_key: str = setting(
        "SERVICE_CLIENT_KEY",
        "",
        "Key that commands send; empty means the one in the data folder.",
        kinds.text,
        secret=True,
    )
