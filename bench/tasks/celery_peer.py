"""The peer with a queue in memory, a process of its own: Celery with Redis.

`python -m bench.tasks.celery_peer FOLDER COUNT`

Not durable: Redis keeps its queue in memory and, as it comes, saves it from time to time in the background; a worker
acknowledges a task before it runs. Set up as its documentation says: Redis as broker and for the results, a worker
with a process for each core, every setting as it comes, the log at ERROR. A task does nothing. All are sent by one
caller; the clock runs until it has the last result. Prints one line of JSON: `seconds`, `version`, `redis`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from celery import Celery, group

from bench.ports import free_port, wait_until_listening

NAME, BROKER = "bench.tasks.celery_peer", "BENCH_BROKER"
LIMIT_SECONDS = 200
"""For the results of one run, so that both end before the caller's limit: it would kill this process alone."""
APP = Celery(NAME, broker=os.environ.get(BROKER), backend=os.environ.get(BROKER))


def first(n: int) -> int:
    return n + 1


# Applied as a function, because a decorator that is not installed is not typed.
TASK = APP.task(name="first")(first)


def run(count: int) -> float:
    """Return how long so many tasks took, in seconds. Raises RuntimeError for a wrong result."""
    started = time.perf_counter()
    results: list[Any] = group(TASK.s(n) for n in range(count)).apply_async().join_native(timeout=LIMIT_SECONDS)
    seconds = time.perf_counter() - started
    if results != [first(n) for n in range(count)]:
        raise RuntimeError("the tasks answered something else")
    return seconds


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """The address of a Redis of its own, with its settings as they come."""
    port = free_port()
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    with _stopped_at_the_end(words, {}) as process:
        wait_until_listening(process, port)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def worker(broker: str) -> Iterator[None]:
    words = [sys.executable, "-m", "celery", "--app", NAME, "worker", "--loglevel", "ERROR"]
    with _stopped_at_the_end(words, {BROKER: broker}):
        yield


@contextmanager
def _stopped_at_the_end(words: list[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def redis_version() -> str:
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("v=")[2].partition(" ")[0]


def main() -> None:
    folder, count = sys.argv[1], int(sys.argv[2])
    # A folder of its own: Redis saves its data at the end, and would load that of an earlier round.
    with tempfile.TemporaryDirectory(dir=folder) as own, redis(Path(own)) as broker, worker(broker):
        APP.conf.update(broker_url=broker, result_backend=broker)
        run(64)  # the worker is there, and its processes are warm, when the clock starts
        seconds = run(count)
    print(json.dumps({"seconds": seconds, "version": version("celery"), "redis": redis_version()}))


if __name__ == "__main__":
    main()
