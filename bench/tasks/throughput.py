"""Tasks per second from submit to completed over HTTP, and the peer in the same run, in alternating rounds."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, at_least, percentile, spread
from bench.service import Service, serving
from bench.sizes import Scale, say
from stentor.core.db import Sql
from stentor.core.db.sqlite.driver import SqliteDriver

TITLE = "submit to completed, 32 at a time"
CONCURRENCY = 32
ROOT = Path(__file__).parents[2]
PEERS = {
    "start": "`DBOS.start_workflow` and `get_result` from 32 threads, the documented way, database as it makes it",
    "async": "`start_workflow_async` on one event loop, 32 open at a time",
    "queue": "its durable queue, unlimited, all enqueued at once by 32 threads (it polls once a second)",
    "start-wal": "as `start`, with the file switched to WAL before the start, which DBOS itself does not do",
}
PRAGMAS = Sql("select journal_mode, synchronous from pragma_journal_mode, pragma_synchronous")


def run(scale: Scale) -> list[Figure]:
    ours: list[dict[str, Any]] = []
    peers: dict[str, list[dict[str, Any]]] = {mode: [] for mode in PEERS}
    celery: list[dict[str, Any]] = []
    with scale.scratch() as folder:
        durable = _pragmas(folder)
        with serving(folder / "data") as service:
            load(service, "closed", scale.pick(500, 100), CONCURRENCY)  # warm, as the peer is
            for n in range(scale.pick(scale.rounds, 1)):
                ours.append(load(service, "closed", scale.pick(6_000, 1_000), CONCURRENCY))
                say(f"throughput: round {n + 1}, {ours[-1]['count'] / ours[-1]['seconds']:,.0f} tasks/s")
                for mode, results in peers.items():
                    results.extend(_peer(scale, folder, mode, n))
                celery.extend(_celery(scale, folder))
    return [*_ours(ours, durable), *_compared(_rates(ours), peers), *_compared_with_celery(_rates(ours), celery)]


def load(service: Service, kind: str, count: int, number: int) -> dict[str, Any]:
    """One run of the load generator; `number` is its connections, or its rate when `paced`."""
    words = [kind, service.host, str(service.port), str(count), str(number)]
    return {"count": count, **told([sys.executable, "-m", "bench.load", *words])}


def _peer(scale: Scale, folder: Path, mode: str, n: int) -> Iterator[dict[str, Any]]:
    """Nothing where DBOS is not installed. A fresh database each round, since it is only slower with a full one."""
    count = scale.pick(600, 100)
    words = [mode, str(folder / f"peer-{mode}-{n}.sqlite"), str(count), str(CONCURRENCY)]
    if importlib.util.find_spec("dbos") is None:
        say("throughput: dbos is not installed (requirements/bench.txt), so there is no peer")
        return
    yield {"count": count, **told([sys.executable, "-m", "bench.tasks.dbos_peer", *words])}


def _celery(scale: Scale, folder: Path) -> Iterator[dict[str, Any]]:
    """Nothing where Celery or Redis is not installed."""
    if importlib.util.find_spec("celery") is None or shutil.which("redis-server") is None:
        say("throughput: celery (requirements/bench.txt) or redis-server is not installed, so it is no peer")
        return
    count = scale.pick(3_000, 100)
    yield {"count": count, **told([sys.executable, "-m", "bench.tasks.celery_peer", str(folder), str(count)])}


def told(command: list[str]) -> dict[str, Any]:
    """What a program says in its last line, as JSON. Raises RuntimeError."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _pragmas(folder: Path) -> str:
    """What the service's own driver sets on a writer, asked from SQLite."""
    connection = SqliteDriver(folder / "pragmas.db").writer()
    mode, synchronous = connection.rows(PRAGMAS, {})[0]
    connection.close()
    return f"journal_mode={mode}, synchronous={synchronous}"


def _rates(results: list[dict[str, Any]]) -> list[float]:
    return [found["count"] / found["seconds"] for found in results]


def _ours(results: list[dict[str, Any]], durable: str) -> list[Figure]:
    rates = _rates(results)
    accepted = [found["count"] / found["submit_seconds"] for found in results]
    waits = [wait for found in results for wait in found["latencies_ms"]]
    count = results[0]["count"]
    how = f"{count:,} short texts for the builtin summarizer on 32 keep-alive connections; SQLite, {durable}"
    return [
        Figure("tasks completed", median(rates), "/s", f"{how}; median", at_least(1_000), spread(rates)),
        Figure(
            "submits answered 202", median(accepted), "/s", "the same rounds, while tasks run", None, spread(accepted)
        ),
        Figure("submit p50 at full load", median(waits), "ms", "the same rounds"),
        Figure("submit p99 at full load", percentile(waits, 0.99), "ms", "the same rounds"),
    ]


def _compared(rates: list[float], peers: dict[str, list[dict[str, Any]]]) -> Iterator[Figure]:
    for mode, results in peers.items():
        if not results:
            continue
        theirs = _rates(results)
        name = f"DBOS {results[0]['version']}, `{mode}`"
        pragmas = f"journal_mode={results[0]['journal_mode']}, synchronous={results[0]['synchronous']}"
        how = f"{results[0]['count']:,} workflows of two empty steps, {PEERS[mode]}; {pragmas}"
        yield Figure(f"{name}: workflows", median(theirs), "/s", how, None, spread(theirs))
        target = at_least(20) if mode == "start" else None
        yield Figure(f"Stentor to {name}", median(rates) / median(theirs), "×", "medians of the same run", target)


def _compared_with_celery(rates: list[float], results: list[dict[str, Any]]) -> Iterator[Figure]:
    if not results:
        return
    theirs = _rates(results)
    name = f"Celery {results[0]['version']} with Redis {results[0]['redis']}"
    how = f"{results[0]['count']:,} tasks that do nothing, a process for each core, every setting as it comes"
    yield Figure(f"{name}: tasks", median(theirs), "/s", f"{how}; not durable", None, spread(theirs))
    yield Figure(f"Stentor to {name}", median(rates) / median(theirs), "×", "medians of the same run", at_least(3))
