"""SQLite files next to the database that can be rebuilt from it, or from the vault, such as search indexes.

A file that is missing, damaged or of another schema version is replaced by an empty one.
"""

from __future__ import annotations

import logging
from pathlib import Path

from stentor.core.db.database import Database
from stentor.core.db.driver import DbConnection
from stentor.core.db.sql import Sql
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused, StoreUnavailable

_FACTS = "create table facts (name text primary key, value integer not null) without rowid"
_READ_VERSION = Sql("select value from facts where name = 'version'")
_WRITE_VERSION = Sql("insert into facts (name, value) values ('version', :version)")
log = logging.getLogger(__name__)


def open_rebuildable(path: Path, statements: str, version: int, kept: str = "") -> Database:
    """Open the file, and create it if it is not usable. Raises StartRefused if it cannot be created. `statements`
    create its tables, separated by `;`. The table `facts` (name, integer value) is made here and holds the version of
    the schema. `kept` is a table that has the same columns in every version, and whose rows are taken over from a file
    of another one, because they are expensive to compute.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_usable(path, version):
            new = path.with_name(f"{path.name}.new")
            _delete_files(new)
            _create(new, statements, version)
            if kept and path.exists():
                _take_over(path, new, kept)
            _delete_files(path, but=new)
            new.rename(path)
    except (OSError, StoreUnavailable) as error:
        raise StartRefused(
            f"The search index {path} cannot be created: {str(error).rstrip('.')}. "
            "Check the folder's permissions and free space."
        ) from None
    # Commits need not survive a power failure: what is lost is rebuilt, and the file stays consistent.
    return Database(SqliteDriver(path, durable=False))


def _is_usable(path: Path, version: int) -> bool:
    if not path.exists():
        return False
    try:
        connection = SqliteDriver(path).writer()
    except StoreUnavailable as error:
        # The cause: the error's own text says to restore a backup, which this file does not need.
        log.warning("index: rebuilding file=%s reason=%s", path.name, error.__cause__ or error)
        return False
    try:
        rows = connection.rows(_READ_VERSION, {})
        return bool(rows) and rows[0][0] == version
    except StoreUnavailable as error:
        log.warning("index: rebuilding file=%s reason=%s", path.name, error.__cause__ or error)
        return False
    finally:
        connection.close()


def _create(path: Path, statements: str, version: int) -> None:
    connection: DbConnection = SqliteDriver(path).writer()
    try:
        connection.begin()
        for statement in (*statements.split(";"), _FACTS):
            connection.control(statement)
        connection.run(_WRITE_VERSION, {"version": version})
        connection.commit()
    finally:
        connection.close()


def _take_over(path: Path, new: Path, table: str) -> None:
    connection: DbConnection = SqliteDriver(new).writer()
    try:
        quoted = str(path).replace("'", "''")
        connection.control(f"attach database '{quoted}' as earlier")
        connection.begin()
        connection.control(f"insert into {table} select * from earlier.{table}")  # noqa: S608 - named in the code
        connection.commit()
    except StoreUnavailable as error:
        log.warning("index: recomputing table=%s file=%s reason=%s", table, path.name, error.__cause__ or error)
        connection.rollback()
    finally:
        connection.close()


def _delete_files(path: Path, but: Path | None = None) -> None:
    """Delete the database with its -wal and -shm files: a leftover log would be replayed into the new file."""
    for file in path.parent.glob(f"{path.name}*"):
        if file != but:
            file.unlink()
