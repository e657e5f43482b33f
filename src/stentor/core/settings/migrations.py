"""Settings: who brings the schema up to date."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class MigrationSettings:
    migrate: bool = setting(
        "SERVICE_MIGRATE_ON_START",
        True,
        "Whether a start brings the schema up to date; `false` leaves that to `stentor db upgrade`, and refuses one "
        "that is behind.",
        kinds.flag,
    )
