"""Counts what Python cannot see: allocations, fsyncs and returns of the event loop's poll, by a preloaded library.

The library is built with the system's C compiler; without one these figures are left out.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
COUNTS = ("allocations", "fsyncs", "wake-ups")


class Shim:
    """One preloaded process: its environment, and its counts so far."""

    def __init__(self, folder: Path) -> None:
        self._counts = folder / "counts"
        self._counts.write_bytes(bytes(8 * len(COUNTS)))
        self._library = folder / "shim.so"

    @property
    def environment(self) -> dict[str, str]:
        """Python takes each object from the C library, or most allocations would not be seen."""
        return {"LD_PRELOAD": str(self._library), "BUDGET_COUNTS": str(self._counts), "PYTHONMALLOC": "malloc"}

    def read(self) -> dict[str, int]:
        return dict(zip(COUNTS, struct.unpack(f"{len(COUNTS)}Q", self._counts.read_bytes()), strict=True))


def build(folder: Path) -> Shim | None:
    """None without a C compiler, or where the library cannot be built."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(folder / "shim.so"), str(SOURCE), "-ldl"]
    return Shim(folder) if subprocess.run(words, capture_output=True).returncode == 0 else None
