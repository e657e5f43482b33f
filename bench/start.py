"""How soon `stentor serve` answers, and what it holds when nothing happens."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure, at_most, spread
from bench.service import command, environment, rss_mb, stop
from bench.sizes import Scale

TITLE = "start and idle memory"
LIMIT_SECONDS = 30
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def run(scale: Scale) -> list[Figure]:
    idle = scale.pick(10, 2)
    with scale.scratch() as folder:
        first = [_start(folder / f"data-{n}")[0] for n in range(scale.pick(scale.rounds, 1))]
        again = [_start(folder / "data-0")[0] for _ in range(scale.pick(scale.rounds, 1))]
        _, resident = _start(folder / "data-0", idle)
    how = "from the exec of `stentor serve` to the first 200 of /health, asked every 2 ms"
    method = "Rss of /proc/PID/smaps_rollup, shared pages included; 1 MB = 10⁶ bytes"
    return [
        Figure(
            "start on an empty folder", median(first), "s", f"{how}; makes schema and key", at_most(2), spread(first)
        ),
        Figure("start on a used folder", median(again), "s", how, at_most(2), spread(again)),
        Figure(f"resident memory after {idle} s idle", resident, "MB", method, at_most(150)),
    ]


def _start(data_dir: Path, idle: float = 0) -> tuple[float, float]:
    """Seconds to the first healthy answer, and MB resident `idle` seconds later."""
    port = _free_port()
    started = time.perf_counter()
    process = subprocess.Popen(
        command(data_dir, port), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    )
    try:
        while not _healthy(port):
            if process.poll() is not None or time.perf_counter() - started > LIMIT_SECONDS:
                raise RuntimeError("the service did not start")
            time.sleep(0.002)
        seconds = time.perf_counter() - started
        time.sleep(idle)
        return seconds, rss_mb(process.pid)
    finally:
        stop(process)


def _healthy(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(HEALTH)
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
