"""Deliveries per second to one local receiver, the wait from an event to its receipt, and what a subscription costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Figure, at_least, percentile, spread
from bench.service import Service, command, environment
from bench.service import stop as stop_process
from bench.sizes import Scale, say

TITLE = "webhooks"
ROOT = Path(__file__).parents[1]
CONCURRENCY = 32
EVENTS = ["task.submitted", "task.started", "task.completed"]
ALLOW = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_MEMORY": "false"}
PATIENCE = 120


def run(scale: Scale) -> list[Figure]:
    count = scale.pick(3_000, 300)
    bare: list[float] = []
    hooked: list[float] = []
    rates: list[float] = []
    waits: list[float] = []
    with scale.scratch() as folder:
        for n in range(scale.pick(scale.rounds, 1)):
            bare.append(_bare(folder / f"bare-{n}", count))
            found = _hooked(folder / f"hooked-{n}", count)
            hooked.append(found["tasks"])
            rates.append(found["rate"])
            say(
                f"webhooks: round {n + 1}, {bare[-1]:,.0f} and {hooked[-1]:,.0f} tasks/s, {rates[-1]:,.0f} deliveries/s"
            )
        waits = _latency(folder / "paced", scale.pick(2_000, 200))
        lost, twice, sent = _killed(folder / "killed", scale.pick(2_000, 200))
    load = f"{count:,} short tasks on 32 connections, three events each, one receiver in a process of its own"
    return [
        Figure("deliveries", median(rates), "/s", f"{load}; until the last receipt", at_least(500), spread(rates)),
        Figure("event to receipt p50", median(waits), "ms", "task.submitted, 100 tasks/s: from the event's time"),
        Figure("event to receipt p99", percentile(waits, 0.99), "ms", "the same"),
        Figure("tasks without a subscription", median(bare), "/s", "the same tasks", None, spread(bare)),
        Figure("tasks with one to three events", median(hooked), "/s", "the same tasks", None, spread(hooked)),
        Figure("lost through kill -9", lost, "", f"of {sent:,} events, three kills under load; {twice} came twice"),
    ]


@contextmanager
def _serving(data_dir: Path, port: int = 0) -> Iterator[Service]:
    service = _start(data_dir, port)
    try:
        yield service
    finally:
        stop_process(service.process)


def _start(data_dir: Path, port: int) -> Service:
    with (data_dir.parent / "serve.log").open("a") as log:
        process = subprocess.Popen(
            command(data_dir, port), stdout=subprocess.PIPE, stderr=log, text=True, env=environment() | ALLOW
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if "gateway" not in line:
        raise RuntimeError(line + (data_dir.parent / "serve.log").read_text())
    host, found = json.loads(line)["gateway"].removeprefix("http://").split(":")
    return Service(process, host, int(found))


class Sink:
    """The receiver: a process of its own that writes one line per delivery; see `_receive`."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "bench.webhooks"]
        self._process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self.got: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.got.append(json.loads(line))

    def wait(self, count: int) -> None:
        """Until so many different events came."""
        until = time.monotonic() + PATIENCE
        while len({(one["id"]) for one in self.got}) < count:
            if time.monotonic() > until:
                return
            time.sleep(0.02)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextmanager
def _sink() -> Iterator[Sink]:
    made = Sink()
    try:
        yield made
    finally:
        made.close()


def _load(service: Service, kind: str, count: int, number: int) -> dict[str, Any]:
    words = [sys.executable, "-m", "bench.load", kind, service.host, str(service.port), str(count), str(number)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _subscribe(service: Service, url: str, events: list[str]) -> None:
    with service.connect() as client:
        client.send("POST", "/api/v1/webhooks", json.dumps({"url": url, "events": events}).encode())


def _bare(folder: Path, count: int) -> float:
    folder.parent.mkdir(exist_ok=True)
    with _serving(folder) as service:
        _load(service, "closed", 100, CONCURRENCY)
        return count / float(_load(service, "closed", count, CONCURRENCY)["seconds"])


def _hooked(folder: Path, count: int) -> dict[str, float]:
    with _serving(folder) as service, _sink() as sink:
        _load(service, "closed", 100, CONCURRENCY)
        _subscribe(service, sink.url, EVENTS)
        started = time.time()
        tasks = count / float(_load(service, "closed", count, CONCURRENCY)["seconds"])
        sink.wait(count * len(EVENTS))
        last = max(one["at"] for one in sink.got)
        first = min(one["at"] for one in sink.got)
        assert first >= started
        return {"tasks": tasks, "rate": len(sink.got) / (last - first)}


def _latency(folder: Path, count: int) -> list[float]:
    """Milliseconds from the time of each event, which its transaction began at, to its receipt."""
    with _serving(folder) as service, _sink() as sink:
        _load(service, "closed", 100, CONCURRENCY)
        _subscribe(service, sink.url, ["task.submitted"])
        _load(service, "paced", count, 100)
        sink.wait(count)
        return [(one["at"] - one["event_at"]) * 1000 for one in sink.got]


def _killed(folder: Path, count: int) -> tuple[int, int, int]:
    """Events lost, deliveries that came again, and events in all."""
    with _sink() as sink:
        service = _start(folder, 0)
        _subscribe(service, sink.url, EVENTS)
        body = {"type": "summarize", "input": "Agents do tasks.", "required_capabilities": ["summarize"]}
        accepted = 0
        kills = [count // 4, count // 2, 3 * count // 4]
        while accepted < count:
            try:
                with service.connect() as client:
                    while accepted < count:
                        if kills and accepted == kills[0]:
                            kills.pop(0)
                            os.kill(service.process.pid, signal.SIGKILL)
                        task = body | {"id": f"t-{accepted}"}
                        client.send("POST", "/api/v1/tasks", json.dumps(task).encode())
                        accepted += 1
            except OSError:
                service.process.wait()
                stop_process(service.process)
                service = _start(folder, service.port)
        sink.wait(count * len(EVENTS))
        stop_process(service.process)
        seen = {(one["task"], one["event"]) for one in sink.got}
        return count * len(EVENTS) - len(seen), len(sink.got) - len(seen), count * len(EVENTS)


def _receive() -> None:
    """A receiver on a free port: prints its address, then a line for each delivery."""
    import asyncio
    from datetime import datetime

    from aiohttp import web

    async def take(request: web.Request) -> web.Response:
        payload = json.loads(await request.read())
        shown = {
            "id": request.headers["webhook-id"],
            "task": payload["data"].get("task_id"),
            "event": payload["event"],
            "event_at": datetime.fromisoformat(payload["timestamp"]).timestamp(),
            "at": time.time(),
        }
        print(json.dumps(shown), flush=True)
        return web.Response(status=204)

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/", take)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}/", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    _receive()
