"""The peer, a process of its own: DBOS on SQLite or PostgreSQL.

`python -m bench.tasks.dbos_peer MODE DATABASE COUNT CONCURRENCY`

A workflow of two steps that do nothing, each started and awaited by one of COUNT callers, CONCURRENCY at a
time. Set up as its documentation says: the default SQLite system database, `DBOS.launch()`, logs at ERROR, no
telemetry, no conductor. MODE: `start` is `DBOS.start_workflow` and `get_result` from threads, which is its
documented way to run work in the background; `async` is `start_workflow_async` on one event loop; `queue` is
its durable queue. With `-wal` behind it the database file is switched to WAL first, which DBOS does not do.
Prints one line of JSON: `seconds`, `journal_mode`, `synchronous`, `version`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import sqlite3
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dbos import DBOS


def first(n: int) -> int:
    return n + 1


def second(n: int) -> int:
    return n * 2


async def first_async(n: int) -> int:
    return first(n)


async def second_async(n: int) -> int:
    return second(n)


# Applied as functions, because a decorator that is not installed is not typed.
STEPS = [DBOS.step()(step) for step in (first, second)]
ASYNC_STEPS = [DBOS.step()(step) for step in (first_async, second_async)]


def two_steps(n: int) -> int:
    return int(STEPS[1](STEPS[0](n)))


async def two_steps_async(n: int) -> int:
    return int(await ASYNC_STEPS[1](await ASYNC_STEPS[0](n)))


WORKFLOW = DBOS.workflow()(two_steps)
ASYNC_WORKFLOW = DBOS.workflow()(two_steps_async)


def threads(start: Callable[[int], Any], count: int, concurrency: int) -> list[int]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda n: int(start(n).get_result()), range(count)))


async def tasks(count: int, concurrency: int) -> list[int]:
    gate = asyncio.Semaphore(concurrency)

    async def one(n: int) -> int:
        async with gate:
            handle = await DBOS.start_workflow_async(ASYNC_WORKFLOW, n)
            return int(await handle.get_result())

    return await asyncio.gather(*(one(n) for n in range(count)))


def queued(count: int, concurrency: int) -> list[int]:
    """All are handed in at once: a queue polls once a second, so a caller that waits for each would wait for that."""
    queue = DBOS.register_queue("bench")
    with ThreadPoolExecutor(concurrency) as pool:
        handles = list(pool.map(lambda n: queue.enqueue(WORKFLOW, n), range(count)))
    return [int(handle.get_result()) for handle in handles]


def run(mode: str, count: int, concurrency: int) -> list[int]:
    if mode == "async":
        return asyncio.run(tasks(count, concurrency))
    if mode == "queue":
        return queued(count, concurrency)
    return threads(lambda n: DBOS.start_workflow(WORKFLOW, n), count, concurrency)


def pragma(database: Path, text: str) -> Any:
    with sqlite3.connect(database) as connection:
        return connection.execute(f"pragma {text}").fetchone()[0]


def main() -> None:
    mode, _, wal = sys.argv[1].partition("-")
    database, count, concurrency = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    shared = sys.argv[2].startswith("postgresql:")
    if wal:
        pragma(database, "journal_mode=wal")
    DBOS(
        config={
            "name": "peer",
            "system_database_url": sys.argv[2] if shared else f"sqlite:///{database}",
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    run("start", 2 * concurrency, concurrency)  # threads and pools are warm when the clock starts
    started = time.perf_counter()
    results = run(mode, count, concurrency)
    seconds = time.perf_counter() - started
    if results != [second(first(n)) for n in range(count)]:
        raise RuntimeError("the workflows answered something else")
    DBOS.destroy()
    # DBOS sets no pragma but busy_timeout and foreign_keys, so a plain connection has its synchronous.
    found = {} if shared else {name: pragma(database, name) for name in ("journal_mode", "synchronous")}
    print(json.dumps({"seconds": seconds, "version": importlib.metadata.version("dbos"), **found}))


if __name__ == "__main__":
    main()
