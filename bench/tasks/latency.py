"""How long a caller waits: for the answer to a submit at a steady rate, and for one task when nothing else runs."""

from __future__ import annotations

import json
import time
from statistics import median

from bench.figures import Figure, at_most, percentile, spread
from bench.load import TASK
from bench.service import Client, Service, serving
from bench.sizes import Scale
from bench.tasks.throughput import load

SUBMIT = "submit at a steady 200/s"
IDLE = "one task at a time"
RATE = 200
COMPLETE, ERROR = b"event: complete", b"event: error"


def submit(scale: Scale) -> list[Figure]:
    """An open loop: a request is due every 5 ms, and its latency counts from then, not from when it was sent."""
    with scale.scratch() as folder, serving(folder / "data") as service:
        load(service, "paced", scale.pick(400, 100), RATE)
        rounds = [load(service, "paced", scale.pick(4_000, 600), RATE) for _ in range(scale.pick(scale.rounds, 1))]
    waits = [found["latencies_ms"] for found in rounds]
    every = [wait for found in waits for wait in found]
    p99s = [percentile(found, 0.99) for found in waits]
    how = f"open loop, a request due every 5 ms, from the moment it was due to its answer; {len(every):,} requests"
    return [
        Figure("submit p50", median(every), "ms", how),
        Figure("submit p99", percentile(every, 0.99), "ms", how, at_most(50), spread(p99s)),
        Figure("slowest submit", max(every), "ms", how),
    ]


def idle(scale: Scale) -> list[Figure]:
    """The caller sees the completion on the task's event stream, opened after the submit was answered."""
    with scale.scratch() as folder, serving(folder / "data") as service:
        with service.connect() as client, service.connect() as watcher:
            for _ in range(scale.pick(100, 20)):
                _until_completed(client, watcher)
            seen = [_until_completed(client, watcher) for _ in range(scale.pick(1_000, 100))]
        polled = [_until_polled(service) for _ in range(scale.pick(300, 30))]
    syncs = 6 * scale.fdatasync_ms()
    how = "submit, then the event stream on a second kept connection, up to its `complete`"
    tight = "submit, then GET of the task again and again on the same connection"
    return [
        Figure("submit to completed p50", median(seen), "ms", f"{how}; {len(seen):,} tasks", at_most(5)),
        Figure("the same beyond 6 fdatasyncs", max(median(seen) - syncs, 0), "ms", f"less {syncs:.2f} ms", at_most(2)),
        Figure("submit to completed p99", percentile(seen, 0.99), "ms", how),
        Figure("the same by polling p50", median(polled), "ms", f"{tight}; {len(polled):,} tasks"),
    ]


def _submit(client: Client) -> str:
    return str(json.loads(client.send("POST", "/api/v1/tasks", json.dumps(TASK).encode()))["task_id"])


def _until_completed(client: Client, watcher: Client) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    seen = 0.0
    for line in watcher.lines(f"/api/v1/tasks/{_submit(client)}/stream"):
        if line.startswith(ERROR):
            raise RuntimeError("the task did not complete")
        if line.startswith(COMPLETE):
            seen = time.perf_counter()
    return 1000 * (seen - started)


def _until_polled(service: Service) -> float:
    """Milliseconds."""
    with service.connect() as client:
        client.get("/health")
        started = time.perf_counter()
        task_id = _submit(client)
        while client.get(f"/api/v1/tasks/{task_id}")["status"] != "completed":
            pass
        return 1000 * (time.perf_counter() - started)
