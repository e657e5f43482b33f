"""What a SQLite database wrote into its WAL: pages of each table and index, and commits."""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from pathlib import Path

HEADER, FRAME_HEADER = 32, 24


def size(database: Path) -> int:
    """Bytes of the WAL so far; where the next frames begin, as long as nothing is checkpointed."""
    file = wal(database)
    return file.stat().st_size if file.exists() else 0


def wal(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def written(database: Path, start: int) -> tuple[Counter[str], int, int]:
    """Frames by table or index after the offset `start`, the bytes of one frame, and the commits among them."""
    data = wal(database).read_bytes()
    page_size = struct.unpack_from(">I", data, 8)[0]
    length = FRAME_HEADER + page_size
    pages: Counter[int] = Counter()
    commits = 0
    for offset in range(max(start, HEADER), len(data) - length + 1, length):
        page, size_after_commit = struct.unpack_from(">II", data, offset)
        pages[page] += 1
        commits += size_after_commit > 0
    names = _owners(database)
    frames: Counter[str] = Counter()
    for page, count in pages.items():
        frames[names.get(page, "free pages")] += count
    return frames, length, commits


def _owners(database: Path) -> dict[int, str]:
    """Page to the table or index that it holds now."""
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return dict(connection.execute("select pageno, name from dbstat"))
    finally:
        connection.close()
