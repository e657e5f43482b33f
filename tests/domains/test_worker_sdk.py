"""The SDK's worker against a service of a few lines: what it asks for, and when."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stentor.worker import Task, Worker

SOON = 20
"""Seconds."""


class Stub(ThreadingHTTPServer):
    """Hands out one task after the other; keeps the answers to `complete` back until it is told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Calls)
        self.claimed = 0
        self.ended: list[str] = []
        self.held = threading.Event()
        self.changed = threading.Condition()

    def wait_for(self, claimed: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.claimed >= claimed, SOON)

    def answer(self, path: str) -> dict[str, Any]:
        if not path.endswith("/claims"):
            self.ended.append(path.split("/")[-2])
            assert self.held.wait(SOON)
            return {}
        with self.changed:
            self.claimed += 1
            self.changed.notify_all()
        names = ("type", "input", "timeout_seconds", "idempotency_key")
        return {"tasks": [{"task_id": f"t{self.claimed}", "epoch": 1, "metadata": {}, **dict.fromkeys(names, "x")}]}


class Calls(BaseHTTPRequestHandler):
    server: Stub

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps(self.server.answer(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.held.set()
    server.shutdown()
    server.server_close()


def test_the_next_task_is_fetched_while_the_end_of_the_last_one_is_reported(stub: Stub) -> None:
    worker = Worker(f"http://127.0.0.1:{stub.server_address[1]}", "key", "agent", concurrency=1)
    done: list[str] = []
    third = threading.Event()

    @worker.handler
    def work(task: Task) -> str:
        done.append(task.id)
        if len(done) == 3:
            worker.stop()
            third.set()
        return "done"

    running = threading.Thread(target=worker.run)
    running.start()
    assert stub.wait_for(2), "the report of the first one is under way still"
    while len(done) < 2:
        assert running.is_alive()
    assert not third.wait(0.5), "one report at a time may be under way for one place: a third task would wait with us"
    assert (stub.claimed, stub.ended) == (2, ["t1"])
    stub.held.set()
    assert third.wait(SOON)
    running.join(SOON)
    assert not running.is_alive()
    assert sorted(stub.ended)[:3] == ["t1", "t2", "t3"]
