"""A file system that fills up, and a disk whose flushes fail."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.test_full_disk import fill

MEGABYTES = {"SQLite": 400, "PostgreSQL": 1_000}


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[bool]:
    """Whether the folder is a small file system of its own now; needs root."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def full(folder: Path, seconds: float) -> None:
    """No room for a byte, at least for a moment: whoever frees some may use it."""
    ballast = folder / "ballast"
    try:
        with suppress(AssertionError):
            fill(ballast)
        time.sleep(seconds)
    finally:
        ballast.unlink(missing_ok=True)
