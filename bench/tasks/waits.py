"""Tasks that wait: what they cost in memory, how late they wake, and a start after which all of them are overdue."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.figures import Figure, Target, at_least, at_most, number, percentile
from bench.service import Client, Service
from bench.sizes import Scale, say
from bench.tasks.waiting import Store, count_queued, stores, watch

TITLE = "tasks that wait"
TEMPLATES = 500
RATE = 1_000
LEAD_SECONDS = 20.0
"""From the moment at which the times are written to the first of them: the service starts meanwhile."""
PATIENCE_SECONDS = 900


def run(scale: Scale) -> list[Figure]:
    with scale.scratch() as folder, stores(folder) as found:
        return [figure for store in found for figure in _of(scale, store)]


def _of(scale: Scale, store: Store) -> Iterator[Figure]:
    templates, tasks = scale.pick((TEMPLATES, 100_000), (20, 1_000))
    store.begin_waits(templates)
    few = _resident(scale, store)
    store.copy_waits(tasks // templates - 1)
    many = _resident(scale, store)
    how = f"growth of the resident memory from {templates} tasks to {tasks:,}, each {scale.pick(20, 2)} s after a start"
    note = f"{number(many)} MB with all"
    yield _figure(
        store, "memory of a task that waits", 1e6 * (many - few) / (tasks - templates), "B", how, at_most(100), note
    )
    yield from _woken(scale, store)
    yield from _overdue(store, tasks)


def _resident(scale: Scale, store: Store) -> float:
    with store.serve() as service:
        time.sleep(scale.pick(20, 2))
        return service.rss_mb()


def _woken(scale: Scale, store: Store) -> Iterator[Figure]:
    """Tasks that come due one after the other, at the rate of the target."""
    tasks = scale.pick(10_000, 200)
    with store.open() as connection:
        before = count_queued(connection)
    first = time.time() + LEAD_SECONDS
    store.set_due(first, 1 / RATE, tasks)
    with store.serve():
        seen = watch(store, before + tasks, PATIENCE_SECONDS)
    late = list(_lateness(seen, before, tasks, first))
    how = (
        f"{tasks:,} of them come due, {RATE:,} a second: from its time until it is queued, read each 10 ms from outside"
    )
    note = f"p50 {number(percentile(late, 0.5))}, p99 {number(percentile(late, 0.99))}"
    yield _figure(store, "woken late, at most", max(late), "s", how, at_most(1), note)


def _lateness(seen: list[tuple[float, int]], before: int, tasks: int, first: float) -> Iterator[float]:
    n = 0
    for at, count in seen:
        while n < min(tasks, count - before):
            yield at - (first + (n + 1) / RATE)
            n += 1


def _overdue(store: Store, tasks: int) -> Iterator[Figure]:
    """A service that was down for a day, in which all of them came due."""
    store.set_due(time.time() - 86_400, 0.5, tasks)
    with store.open() as connection:
        before = count_queued(connection)
    started = time.perf_counter()
    with store.serve() as service:
        ready = time.perf_counter() - started
        with _used(service) as use:
            seen = watch(store, tasks, PATIENCE_SECONDS)
    busy = [(at, count) for at, count in seen if count > before]
    rate = (seen[-1][1] - before) / (seen[-1][0] - busy[0][0])
    yield _figure(
        store, "start with all overdue", ready, "s", "from the exec to the line that says it is ready", at_most(5)
    )
    yield _figure(
        store, "overdue tasks woken", rate, "/s", f"{tasks - before:,} tasks, at once after a start", at_least(RATE)
    )
    how = "`GET /health` each 20 ms while they wake"
    yield _figure(
        store, "health meanwhile, p99", percentile(use.health, 0.99), "ms", how, at_most(250), _worst(use.health)
    )
    how = "a short text for the builtin summarizer, one after the other, from the submit until it is completed"
    yield _figure(
        store, "another task meanwhile, p95", percentile(use.tasks, 0.95), "ms", how, at_most(1_000), _worst(use.tasks)
    )
    yield _figure(store, "resident memory meanwhile, at most", max(use.resident), "MB", "the queue included", None)


def _worst(waits: list[float]) -> str:
    return f"p50 {number(percentile(waits, 0.5))}, at most {number(max(waits))}, {len(waits)} of them"


@dataclass
class _Use:
    """What others see of a service meanwhile: milliseconds, and MB of the service."""

    health: list[float] = field(default_factory=list)
    tasks: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)


@contextmanager
def _used(service: Service) -> Iterator[_Use]:
    use, stop = _Use(), threading.Event()

    def ask() -> None:
        with service.connect() as client:
            while not stop.wait(0.02):
                use.health.append(_timed(lambda: client.get("/health")))
                use.resident.append(service.rss_mb())

    def submit() -> None:
        with service.connect() as client:
            while not stop.wait(0.1):
                use.tasks.append(_timed(lambda: _do_task(client)))

    threads = [threading.Thread(target=ask), threading.Thread(target=submit)]
    for thread in threads:
        thread.start()
    try:
        yield use
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _do_task(client: Client) -> None:
    body = {"type": "summarize", "input": "A short text.", "required_capabilities": ["summarize"]}
    task_id = json.loads(client.send("POST", "/api/v1/tasks", json.dumps(body).encode()))["task_id"]
    while client.get(f"/api/v1/tasks/{task_id}")["status"] in ("queued", "executing"):
        time.sleep(0.01)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1_000 * (time.perf_counter() - started)


def _figure(
    store: Store, name: str, value: float, unit: str, how: str, target: Target | None, note: str = ""
) -> Figure:
    say(f"waits: {store.name}: {name}: {number(value)} {unit} ({note})")
    return Figure(f"{store.name}: {name}", value, unit, how, target, note)
