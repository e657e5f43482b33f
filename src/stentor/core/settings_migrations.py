"""Who brings the schema up to date; `Settings` has this among its own."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core import settingkinds as kinds
from stentor.core.settingkinds import setting


@dataclass(frozen=True)
class MigrationSettings:
    migrate: bool = setting(
        "SERVICE_MIGRATE_ON_START",
        True,
        "Whether a start brings the schema up to date; `false` leaves that to `stentor db upgrade`, and refuses one "
        "that is behind.",
        kinds.flag,
    )
