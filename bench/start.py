"""How soon `stentor serve` answers, and what it holds when nothing happens."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.figures import Figure, at_most, spread
from bench.ports import free_port
from bench.service import command, environment, rss_mb, stop
from bench.sizes import Scale

TITLE = "start and idle memory"
LIMIT_SECONDS = 120
IMPORTS = "import fastapi, pydantic, uvicorn"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def run(scale: Scale) -> list[Figure]:
    idle = scale.pick(10, 2)
    with scale.scratch() as folder:
        first = [_start(folder / f"data-{n}")[0] for n in range(scale.pick(scale.rounds, 1))]
        again = [_start(folder / "data-0")[0] for _ in range(scale.pick(scale.rounds, 1))]
        _, resident = _start(folder / "data-0", idle)
    imports = [_import_seconds() for _ in range(scale.pick(scale.rounds, 1))]
    how = "from the exec of `stentor serve` to the first 200 of /health, asked every 2 ms"
    method = "Rss of /proc/PID/smaps_rollup, shared pages included; 1 MB = 10⁶ bytes"
    return [
        Figure(
            "start on an empty folder", median(first), "s", f"{how}; makes schema and key", at_most(2), spread(first)
        ),
        Figure("start on a used folder", median(again), "s", how, at_most(2), spread(again)),
        Figure("imports alone", median(imports), "s", f"`python -c '{IMPORTS}'`", None, spread(imports)),
        Figure(
            "start beyond 0.8 of the imports",
            max(median(first) - 0.8 * median(imports), 0),
            "s",
            "the medians above, on an empty folder",
            at_most(0.5),
        ),
        Figure(f"resident memory after {idle} s idle", resident, "MB", method, at_most(100)),
    ]


def _start(data_dir: Path, idle: float = 0) -> tuple[float, float]:
    """Seconds to the first healthy answer, and MB resident `idle` seconds later."""
    port = free_port()
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


def _import_seconds() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return time.perf_counter() - started


def _healthy(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(HEALTH)
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
