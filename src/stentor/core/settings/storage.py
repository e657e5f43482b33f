"""Settings: where the service keeps its state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class StorageSettings:
    data_dir: Path = setting("SERVICE_DATA_DIR", Path("data"), "Folder of the database, the keys and the vault.", Path)
    database_url: str = setting(
        "SERVICE_DATABASE_URL",
        "",
        "PostgreSQL address; empty means SQLite in the data folder.",
        kinds.text,
        secret=True,
    )
    snapshot_refresh: float = setting(
        "SERVICE_SNAPSHOT_REFRESH_SECONDS",
        1.0,
        "How often changes of other processes are read.",
        kinds.number(0.05, 3600, float),
    )
