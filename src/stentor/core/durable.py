"""Small files that must be whole and must survive a power cut: written aside, flushed, put in place."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    """Put the text under this name, whole or not at all, and flush it and its folder. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Make a file durable, or the names in a folder: without it a rename may be undone by a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
