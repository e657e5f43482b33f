"""Ports of the processes that the benches start, and the wait until one listens."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import Any

LIMIT_SECONDS = 120


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until_listening(process: subprocess.Popen[Any], port: int) -> None:
    """Raises RuntimeError if the process has ended, or does not listen within two minutes."""
    ends = time.monotonic() + LIMIT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{process.args!r} did not start") from None
            time.sleep(0.1)
        else:
            return
