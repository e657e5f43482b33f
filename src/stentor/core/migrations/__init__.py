"""Schema migrations: versions, checks at startup, and upgrades.

Alembic runs in `runner` and is imported only for an upgrade; the scripts are in `versions/`. A new SQLite file gets the
newest schema from `sqlite_schema.sql`, generated from them, because Alembic and SQLAlchemy would cost a first start
30 MB that the process keeps, and most of the time until it serves.
"""

from __future__ import annotations

import importlib
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec

from stentor.core.db.driver import Driver
from stentor.core.db.sql import Sql
from stentor.core.db.sqlite import backup
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused

HEAD = "0064"
"""The newest version; a test compares it with the scripts in `versions/`."""
COPYING_PREFIX = "copying-"
"""Version prefix of a database that `stentor db copy` has not filled completely, so that no program uses it."""
SPLITTING_PREFIX = "splitting-"
"""Version prefix of a database into which `stentor db split` has copied tenants that the other one may still have."""
UPGRADE_COMMAND = "`stentor db upgrade`"
SQLITE_SCHEMA = Path(__file__).with_name("sqlite_schema.sql")
"""Written by `python -m tests.core.sqlite_schema`; a test compares it with what the scripts create."""
log = logging.getLogger(__name__)

_WITHOUT_RIGHTS = Sql(
    """select relname from pg_class where relnamespace = to_regnamespace(current_schema()) and relkind in ('r', 'p')
    and not (has_table_privilege(oid, 'select') and has_table_privilege(oid, 'insert')
    and has_table_privilege(oid, 'update') and has_table_privilege(oid, 'delete')) order by relname"""
)
_CURRENT_VERSION = Sql("select version_num from alembic_version")
_VERSION_TABLE_EXISTS = {
    "sqlite": Sql("select name from sqlite_master where type = 'table' and name = 'alembic_version'"),
    "postgresql": Sql("select 1 where to_regclass('alembic_version') is not null"),
}
Notify = Callable[[str], None]


class UpgradeResult(msgspec.Struct, frozen=True):
    """The versions that an upgrade applied (empty if none was needed), and the backup that it made before."""

    previous: str | None
    applied: list[str]
    backup: Path | None = None


def prepare_schema(driver: Driver, *, migrate: bool) -> None:
    """Upgrade or check the schema at startup. Raises StartRefused for an outdated schema if `migrate` is off."""
    if migrate:
        upgrade(driver)
        return
    current = current_version(driver)
    require_supported(current)
    if current != HEAD:
        raise StartRefused(
            f"The database has schema {current or 'none'}, this version needs {HEAD}, and SERVICE_MIGRATE_ON_START is "
            f"off: run {UPGRADE_COMMAND}, then start again."
        )


def upgrade(driver: Driver, *, make_backup: bool = True, notify: Notify = log.warning) -> UpgradeResult:
    """Upgrade the database to HEAD in one transaction, once even if several processes start at the same time.

    On SQLite a backup is made first; the caller must hold the lock of the data folder. Raises StartRefused for a
    database of a newer version, and if the upgrade fails.
    """
    current = current_version(driver)
    require_supported(current)
    if current == HEAD:
        return UpgradeResult(current, [])
    if isinstance(driver, SqliteDriver) and current is None:
        return _create_in_file(driver)
    copy = None
    if isinstance(driver, SqliteDriver) and make_backup:
        copy = backup.backup_before_upgrade(driver.path, HEAD)
        notify(f"A backup of the database from before the upgrade to schema {HEAD} is in {copy}.")
    # Imported only here: Alembic and SQLAlchemy take 0.3 s and 30 MB, and most starts have nothing to upgrade.
    runner = importlib.import_module("stentor.core.migrations.runner")
    applied: list[str] = runner.run(driver, current, copy, notify)
    return UpgradeResult(current, applied, copy)


def _create_in_file(driver: SqliteDriver) -> UpgradeResult:
    script = SQLITE_SCHEMA.read_text(encoding="utf-8")
    try:
        with closing(sqlite3.connect(driver.path, isolation_level=None, timeout=5)) as connection:
            # One transaction; closing rolls back what an error left.
            connection.executescript(f"begin immediate;\n{script}commit;")
    except sqlite3.Error as error:
        raise StartRefused(f"The schema cannot be created in {driver.path}: {error}. Nothing was changed.") from error
    return UpgradeResult(None, list(revisions()))


def current_version(driver: Driver) -> str | None:
    """Return the version of the database, or None if it has no schema yet.

    Raises StoreUnavailable, and StartRefused for a file that was cut off.
    """
    path: Path | None = getattr(driver, "path", None)
    if path is not None:
        if not path.exists():
            return None
        backup.require_complete(path)
    connection = driver.reader()
    try:
        if not connection.rows(_VERSION_TABLE_EXISTS[driver.name], {}):
            return None
        rows = connection.rows(_CURRENT_VERSION, {})
    finally:
        connection.close()
    return str(rows[0][0]) if rows else None


def tables_without_rights(driver: Driver) -> list[str]:
    """Return the tables on which the service's role lacks a right that it needs. Raises StoreUnavailable."""
    if driver.name == "sqlite":
        return []
    connection = driver.reader()
    try:
        return [str(name) for (name,) in connection.rows(_WITHOUT_RIGHTS, {})]
    finally:
        connection.close()


def require_supported(current: str | None) -> None:
    """Raise StartRefused for a database that this version must not use: a newer schema, or an incomplete copy."""
    if current is not None and current.startswith(COPYING_PREFIX):
        raise StartRefused(
            "A copy into this database is incomplete: run the interrupted `stentor db copy` or `stentor db split` "
            "again, unchanged. It restarts from the beginning."
        )
    if current is not None and current.startswith(SPLITTING_PREFIX):
        raise StartRefused(
            "Tenants are being moved into this database: run `stentor db split` again with the same tenants and "
            "addresses."
        )
    if current is not None and current not in revisions():
        raise StartRefused(
            f"The database has schema {current}, this version knows up to {HEAD}: "
            "install the version of Stentor that wrote it, or restore the backup from before its upgrade."
        )


def revisions() -> dict[str, str]:
    """Return all versions in order, each with its title."""
    stems = sorted(path.stem for path in (scripts_folder() / "versions").glob("[0-9]*.py"))
    return {number: words.replace("_", " ") for number, _, words in (stem.partition("_") for stem in stems)}


def pending_revisions(current: str | None) -> list[str]:
    """Return the versions that an upgrade from `current` would apply."""
    return [number for number in revisions() if current is None or number > current]


def scripts_folder() -> Path:
    return Path(__file__).parent
