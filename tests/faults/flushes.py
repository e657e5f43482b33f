"""A disk that takes what is written and fails to flush it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def failing_flushes(strace: str, pids: list[int]) -> Iterator[str]:
    """Every fdatasync and fsync of the processes fails with EIO. Yields why that cannot be done here, or nothing."""
    calls = "fdatasync,fsync"
    traced = [word for pid in pids for word in ("-p", str(pid))]
    injected = ["-e", f"trace={calls}", "-e", f"inject={calls}:error=EIO", "-o", os.devnull]
    with subprocess.Popen([strace, "-f", *traced, *injected], stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        said = tracer.stderr.readline().strip()
        try:
            yield "" if "attached" in said else said
        finally:
            tracer.terminate()
