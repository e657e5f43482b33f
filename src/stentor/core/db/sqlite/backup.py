"""Consistent copies of a SQLite database, also while a service writes to it.

For `stentor db backup` and for the copy before a schema upgrade. Copies between SQLite and PostgreSQL are in
`transfer`.
"""

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
"""Pages copied between two progress reports."""
MAX_UPGRADE_BACKUPS = 3
Progress = Callable[[int, int], None]


def backup_before_upgrade(database: Path, version: str) -> Path:
    """Copy the database next to itself before an upgrade to `version`; retains the newest three such copies.

    Also removes parts of copies whose process was killed: the caller must hold the lock of the data folder.
    """
    for part in database.parent.glob(f".{database.name}.before-*"):
        part.unlink(missing_ok=True)
    target = database.with_name(f"{database.name}.before-{version}")
    copy_database(database, target)
    for old in list_upgrade_backups(database)[MAX_UPGRADE_BACKUPS:]:
        old.unlink(missing_ok=True)
    return target


def list_upgrade_backups(database: Path) -> list[Path]:
    """Return the copies made before upgrades, newest first."""
    copies = database.parent.glob(f"{database.name}.before-*")
    return sorted(copies, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)


def copy_database(source: Path, target: Path, progress: Progress | None = None) -> int:
    """Copy the database to `target`, atomically: checked and on disk before it replaces a file of that name.

    Returns the size in bytes. `progress` receives the pages done and the total pages. Raises StartRefused; `target`
    is then unchanged.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # Created here, because SQLite would create it with the permissions of the umask.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            _copy(source, temporary, progress)
            _publish(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StartRefused(f"The copy {target} cannot be written: {error.strerror}. Nothing was changed.") from None
    except sqlite3.Error as error:
        raise StartRefused(f"{source} cannot be copied to {target}: {error}. Nothing was changed.") from None
    return target.stat().st_size


def _copy(source: Path, temporary: Path, progress: Progress | None) -> None:
    def report(_status: int, remaining: int, total: int) -> None:
        if progress is not None:
            progress(total - remaining, total)

    source_uri = f"{source.absolute().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(source_uri, uri=True, isolation_level=None, timeout=5)) as reader,
        closing(sqlite3.connect(temporary, isolation_level=None)) as writer,
    ):
        # One read transaction for all pages: otherwise each commit of the service restarts the copy.
        reader.execute("begin")
        # `begin` alone takes no snapshot: SQLite does that at the first read.
        reader.execute("select count(*) from sqlite_master").fetchone()
        reader.backup(writer, pages=PAGES_PER_STEP, progress=report)
        reader.execute("rollback")
        # Without a WAL the copy can be opened on read-only media.
        writer.execute("pragma journal_mode=delete")
        check_integrity(writer, source)


def check_integrity(connection: sqlite3.Connection, name: Path) -> None:
    """Raise StartRefused if the database file is damaged. `name` is the file to name in the message."""
    try:
        (result,) = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        result = str(error)
    if result != "ok":
        reason = " ".join(str(result).split())
        raise StartRefused(f"{name} is damaged ({reason}). Nothing was changed: restore a backup.")


def require_complete(database: Path) -> None:
    """Raise StartRefused for a file that is shorter than its header says, such as a copy that was interrupted.

    SQLite reads the missing rest of a page as zeros, so what is lost there would go unnoticed.
    Source: https://www.sqlite.org/fileformat2.html#the_database_header
    """
    wal = database.with_name(database.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        return  # the newest pages may be only there
    with database.open("rb") as file:
        header = file.read(100)
        size = file.seek(0, os.SEEK_END)
    # The change counter differs from the header's own after a version of SQLite that does not write the size.
    if not header.startswith(b"SQLite format 3\0") or header[24:28] != header[92:96]:
        return
    page_bytes = int.from_bytes(header[16:18]) if header[16:18] != b"\0\1" else 65_536
    expected = page_bytes * int.from_bytes(header[28:32])
    if size < expected:
        raise StartRefused(
            f"{database} is cut off: it has {size} of {expected} bytes. Nothing was changed: restore a backup, or copy "
            "this one again."
        )


def _publish(temporary: Path, target: Path) -> None:
    # First the data, then the name, then the folder: after a power cut the name never points to half a copy.
    filesystem.fsync_path(temporary)
    temporary.replace(target)
    filesystem.fsync_path(target.parent)
