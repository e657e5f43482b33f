"""Consistent copies of a SQLite database, also while a service writes it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from stentor.core import filesystem
from stentor.core.errors import StartRefused

PAGES_PER_STEP = 4_096
"""Copied between two looks at the progress."""
MAX_UPGRADE_BACKUPS = 3
Progress = Callable[[int, int], None]


def backup_before_upgrade(database: Path, version: str) -> Path:
    """The copy that is made before an upgrade to `version`, beside the database; the newest three are kept."""
    target = database.with_name(f"{database.name}.before-{version}")
    copy_database(database, target)
    for old in list_upgrade_backups(database)[MAX_UPGRADE_BACKUPS:]:
        old.unlink(missing_ok=True)
    return target


def list_upgrade_backups(database: Path) -> list[Path]:
    """The copies made before upgrades, newest first."""
    found = database.parent.glob(f"{database.name}.before-*")
    return sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def copy_database(source: Path, target: Path, progress: Progress | None = None) -> int:
    """Copy into one file, durable and checked before it has its name; what had that name is replaced.

    Answers its size in bytes. `progress` is told pages done and pages in all. Raises StartRefused: then nothing
    stands under the name that did not before.
    """
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            _copy(source, beside, progress)
            _settle(beside, target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StartRefused(f"The copy {target} cannot be written: {error.strerror}. Nothing was changed.") from None
    except sqlite3.Error as error:
        raise StartRefused(f"{source} cannot be copied to {target}: {error}. Nothing was changed.") from None
    return target.stat().st_size


def _copy(source: Path, beside: Path, progress: Progress | None) -> None:
    def tell(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    address = f"{source.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(address, uri=True, isolation_level=None, timeout=5)) as reading,
        closing(sqlite3.connect(beside, isolation_level=None)) as writing,
    ):
        # One view for all pages: otherwise every commit of the service has the copy begin anew.
        reading.execute("begin")
        reading.execute("select count(*) from sqlite_master").fetchone()
        reading.backup(writing, pages=PAGES_PER_STEP, progress=tell)
        reading.execute("rollback")
        # Without a log of its own it can be read where nothing can be written.
        writing.execute("pragma journal_mode=delete")
        check_integrity(writing, source)


def check_integrity(connection: sqlite3.Connection, name: Path) -> None:
    """Raises StartRefused when the file is damaged."""
    try:
        (answer,) = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        answer = str(error)
    if answer != "ok":
        words = " ".join(str(answer).split())
        raise StartRefused(f"{name} is damaged ({words}). Nothing was changed: restore a backup.")


def _settle(beside: Path, target: Path) -> None:
    filesystem.fsync_path(beside)
    beside.replace(target)
    filesystem.fsync_path(target.parent)
