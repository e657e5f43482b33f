"""The files of archives: a folder for each archive, with a Parquet file for each table that has rows.

A folder appears under its name with everything in it on disk, or not at all. pyarrow is an extra, imported when a file
is read or written: it takes 0.2 s and 60 MB of memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.core.db.sql import Row
from stentor.core.errors import StartRefused
from stentor.core.filesystem import fsync_path
from stentor.core.lazy_import import install_command, lazy_module
from stentor.core.runlog import EVENT_COLUMNS
from stentor.domains.retention.model import EVENTS, TABLES, ArchivedTable

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet
else:
    pyarrow, parquet = lazy_module("pyarrow"), lazy_module("pyarrow.parquet")

PART_SUFFIX = ".part"
"""Ends the name of a folder that is being written."""
COMPRESSION = "zstd"
READ_ERRORS: tuple[type[Exception], ...] = (OSError, ValueError, NotImplementedError)
"""What reading a damaged or missing file raises; pyarrow's own errors are among them."""
_NAME = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z_.-]*")
log = logging.getLogger(__name__)


class WrittenFiles(msgspec.Struct, frozen=True):
    """The SHA-256 of each file by its name, and the size of all."""

    hashes: dict[str, str]
    size_bytes: int


def require_library() -> None:
    """Raise StartRefused without the library, with the command that installs it."""
    try:
        import pyarrow.parquet  # noqa: F401 - an extra
    except ImportError:
        raise StartRefused(f"Archives need the extra: {install_command('archive')} (pyarrow, 165 MB).") from None


def write_archive(folder: Path, name: str, rows: Mapping[str, Sequence[Row]]) -> WrittenFiles:
    """Write an archive so that it survives a power cut. Raises OSError; then nothing with this name is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = folder / f".{name}{PART_SUFFIX}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(mode=0o700)
        hashes = {}
        size = 0
        for table in TABLES:
            if some := rows.get(table.name):
                path = part / file_name(table)
                _write_file(path, table, some)
                hashes[path.name], size = hash_file(path), size + path.stat().st_size
        fsync_path(part)
        part.rename(folder / name)
        fsync_path(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(folder / name, ignore_errors=True)
        raise
    return WrittenFiles(hashes, size)


def remove_archive(folder: Path, name: str) -> None:
    """Remove what there is of an archive, finished or not. Raises OSError."""
    try:
        paths = folder / f".{name}{PART_SUFFIX}", locate(folder, name)
    except ValueError as error:
        log.error("archive: nothing removed reason=%s", error)
        return
    for path in paths:
        if path.exists():
            shutil.rmtree(path)


def list_folders(folder: Path) -> list[str]:
    """Return the names of the archives in a folder."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def file_name(table: ArchivedTable) -> str:
    return f"{table.name}.parquet"


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_events(path: Path, event_id: str | None = None) -> list[Row]:
    """Return number and EVENT_COLUMNS of the archived events of a file, or of one of them. Raises READ_ERRORS."""
    # Somebody may have written another file: its values need not be such as an event can have.
    if not parquet.read_schema(path).equals(_schema(EVENTS)):
        raise ValueError("the file has other columns than those of events")
    filters = None if event_id is None else [("event_id", "=", event_id)]
    table = parquet.read_table(path, columns=["number", *EVENT_COLUMNS], filters=filters)
    # An exact conversion back: the hash of an event is over the integer that the database had.
    return list(zip(*map(_plain, table.columns), strict=True))


def _plain(column: Any) -> list[Any]:
    values: list[Any] = (
        column.cast(pyarrow.int64()) if pyarrow.types.is_timestamp(column.type) else column
    ).to_pylist()
    return values


def _write_file(path: Path, table: ArchivedTable, rows: Iterable[Row]) -> None:
    schema = _schema(table)
    columns = [pyarrow.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)]
    with path.open("xb") as file:
        parquet.write_table(pyarrow.Table.from_arrays(columns, schema=schema), file, compression=COMPRESSION)
        file.flush()
        os.fsync(file.fileno())


def _schema(table: ArchivedTable) -> pyarrow.Schema:
    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "time": pyarrow.timestamp("us", "UTC"),
    }
    return pyarrow.schema([(name, types[kind]) for name, kind in table.columns.items()])


def locate(folder: Path, *names: str) -> Path:
    """Return the path of an archive, or of a file in it. Raises ValueError for a name that leads elsewhere.

    Names come from the database: who can only write there must not reach other files of this machine.
    """
    if not all(map(_NAME.fullmatch, names)):
        raise ValueError(f"{'/'.join(names)!r} is not the name of an archive")
    return folder.joinpath(*names)


def events_file(folder: Path, name: str) -> Path:
    return locate(folder, name, file_name(EVENTS))
