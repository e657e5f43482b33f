"""How much to measure, and where the files go."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """`quick` takes the small sizes; `cache` keeps the large database; `folder` holds all that is written; `table` is
    what `routing` replays.
    """

    quick: bool = False
    cache: Path | None = None
    folder: Path | None = None
    rounds: int = 5
    rows: int = 1_000_000
    table: Path | None = None

    def pick(self, full: T, quick: T) -> T:
        return quick if self.quick else full

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder of its own, removed afterwards."""
        made = Path(tempfile.mkdtemp(prefix="stentor-bench-", dir=self.folder))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def fdatasync_ms(self) -> float:
        """What a commit waits for at least, on the disk of the databases: the median of 200 writes of 4 kB, in ms."""
        waits = []
        with tempfile.TemporaryFile(dir=self.folder) as file:
            for _ in range(200):
                os.pwrite(file.fileno(), b"x" * 4096, 0)
                started = time.perf_counter()
                os.fdatasync(file.fileno())
                waits.append(1000 * (time.perf_counter() - started))
        return median(waits)


def say(text: str) -> None:
    """Progress, beside the figures."""
    print(text, file=sys.stderr, flush=True)
