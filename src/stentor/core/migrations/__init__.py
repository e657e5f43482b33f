"""The schema and its versions. Alembic is imported only when there is something to do."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from pathlib import Path

import msgspec

from stentor.core.db import backup
from stentor.core.db.driver import Driver, Sql
from stentor.core.errors import StartRefused

HEAD = "0016"
"""The newest version; tests hold it against the scripts in `versions/`."""
COPYING_PREFIX = "copying-"
"""Before the version of a database that `stentor db copy` has not filled yet: no program takes it for its own."""
UPGRADE_COMMAND = "`stentor db upgrade`"
log = logging.getLogger(__name__)

_CURRENT = Sql("select version_num from alembic_version")
_THERE = {
    "sqlite": Sql("select name from sqlite_master where type = 'table' and name = 'alembic_version'"),
    "postgresql": Sql("select 1 where to_regclass('alembic_version') is not null"),
}
Notify = Callable[[str], None]


class UpgradeResult(msgspec.Struct, frozen=True):
    """What an upgrade did: nothing when `applied` is empty. `backup` is the copy that was made before it."""

    previous: str | None
    applied: list[str]
    backup: Path | None = None


def prepare_schema(driver: Driver, *, migrate: bool) -> None:
    """What a start does. Raises StartRefused for a schema that is behind and is not to be upgraded here."""
    if migrate:
        upgrade(driver)
        return
    current = current_version(driver)
    require_supported(current)
    if current != HEAD:
        raise StartRefused(
            f"The database has schema {current or 'none'}, this program needs {HEAD}, and SERVICE_MIGRATE_ON_START is "
            f"off: run {UPGRADE_COMMAND}, then start again."
        )


def upgrade(driver: Driver, *, make_backup: bool = True, notify: Notify = log.warning) -> UpgradeResult:
    """Bring the database to HEAD: all of it or nothing, and once, however many ask at the same time.

    On SQLite a copy is made first; the caller owns the data folder. Raises StartRefused for a database of a newer
    program, and when it fails.
    """
    current = current_version(driver)
    require_supported(current)
    if current == HEAD:
        return UpgradeResult(current, [])
    copy = None
    if driver.name == "sqlite" and current is not None and make_backup:
        copy = backup.backup_before_upgrade(driver.path, HEAD)  # type: ignore[attr-defined]
        notify(f"The database as it was before the upgrade to schema {HEAD} is kept in {copy}.")
    # Alembic and SQLAlchemy take 0.3 s and 30 MB, and are needed once per version only.
    runner = importlib.import_module("stentor.core.migrations.runner")
    applied: list[str] = runner.run(driver, current, copy, notify)
    return UpgradeResult(current, applied, copy)


def current_version(driver: Driver) -> str | None:
    """The version in the database; None when it has no schema yet. Raises StoreUnavailable."""
    path: Path | None = getattr(driver, "path", None)
    if path is not None and not path.exists():
        return None
    connection = driver.reader()
    try:
        if not connection.rows(_THERE[driver.name], {}):
            return None
        rows = connection.rows(_CURRENT, {})
    finally:
        connection.close()
    return str(rows[0][0]) if rows else None


def require_supported(current: str | None) -> None:
    """Raises StartRefused for a version that this program must not touch: a newer one, or half a copy."""
    if current is not None and current.startswith(COPYING_PREFIX):
        raise StartRefused(
            "A copy into this database was begun and has not ended, so it does not hold everything: run "
            "`stentor db copy SOURCE TARGET` once more with the same addresses. It begins anew."
        )
    if current is not None and current not in revisions():
        raise StartRefused(
            f"The database has schema {current}, this program knows up to {HEAD}: "
            "install the version of Stentor that wrote it, or restore the backup made before its upgrade."
        )


def revisions() -> dict[str, str]:
    """Every version with what it is about, in their order."""
    stems = sorted(path.stem for path in (scripts_folder() / "versions").glob("[0-9]*.py"))
    return {number: words.replace("_", " ") for number, _, words in (stem.partition("_") for stem in stems)}


def pending_revisions(current: str | None) -> list[str]:
    """The versions that an upgrade would go through."""
    return [number for number in revisions() if current is None or number > current]


def scripts_folder() -> Path:
    return Path(__file__).parent
