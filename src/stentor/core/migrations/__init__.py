"""The schema and its versions. Alembic is imported only when there is something to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from stentor.core.db.driver import Driver
from stentor.core.db.sql import Sql
from stentor.core.errors import StartRefused, StoreUnavailable

HEAD = "0013"
"""The newest version; tests hold it against the scripts in `versions/`."""

_CURRENT = Sql("select version_num from alembic_version")


def upgrade(driver: Driver) -> None:
    """Bring the database to HEAD. Raises StartRefused when it is newer than this program."""
    current = current_version(driver)
    if current == HEAD:
        return
    if current is not None and current > HEAD:
        raise StartRefused(
            f"The database has schema {current}, this program knows up to {HEAD}: "
            "install the version of Stentor that wrote it, or restore the backup made before its upgrade."
        )
    # Alembic and SQLAlchemy take 0.3 s and 30 MB, and are needed once per version only.
    runner = importlib.import_module("stentor.core.migrations.runner")
    runner.run(driver)


def current_version(driver: Driver) -> str | None:
    """The version in the database; None when it has no schema yet."""
    connection = driver.writer()
    try:
        rows = connection.rows(_CURRENT, {})
    except StoreUnavailable:
        return None  # SQLite reports a missing table as an operational error
    except Exception as error:
        if type(error).__name__ == "UndefinedTable":
            return None
        raise
    finally:
        connection.close()
    return str(rows[0][0]) if rows else None


def scripts_folder() -> Path:
    return Path(__file__).parent
