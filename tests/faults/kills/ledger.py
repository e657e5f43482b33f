"""The world outside the programs: records each call with its key, takes keys, and can be asked about one.

It lives in the process of the test, which nothing kills; workers reach it over a socket, one line of JSON each way.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stentor_worker import EffectFailed, Task
from tests.faults.journal.programs import Node, value_of
from tests.faults.kills.mortality import Mortality

SLEEP_SECONDS = 0.2


class Ledger:
    """What happened outside. Thread-safe."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        """How often the function of a step ran, by its node."""
        self.acknowledged: dict[str, int] = {}
        """Attempts that first got the value of a step, by its node."""
        self.outcomes: dict[str, Any] = {}
        """What programs went on with, by the node."""
        self.sent: dict[str, list[str]] = defaultdict(list)
        """Keys with which an effect happened, by its node."""
        self.wrong: list[str] = []
        self.late: Counter[str] = Counter()
        """What attempts did that had lost their lease."""
        self._settled: dict[str, int] = {}
        """Attempts that first went on with an outcome of a node, whose step runs no more then."""
        self._tasks: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._epochs: Counter[str] = Counter()
        self._fences: Counter[str] = Counter()
        self._expected: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def call(self, op: str, task: str, epoch: int, **fields: Any) -> Any:
        with self._lock:
            self._epochs[task] = max(epoch, self._epochs[task])
            return getattr(self, f"_{op}")(task, epoch, **fields)

    def take_expected(self) -> list[tuple[str, str]]:
        """Return the signals that tasks are about to wait for, each once."""
        with self._lock:
            expected, self._expected = self._expected, set()
            return sorted(expected)

    def look_up(self, task: str, key: str) -> str | None:
        """Return the value of the effect with this key for a person. Attempts so far do not send it any more."""
        with self._lock:
            return self._find(task, self._epochs[task] + 1, key)

    def _run(self, task: str, epoch: int, node: str) -> None:
        if self._tasks.setdefault(node, task) != task:
            self.wrong.append(f"the step {node} ran in the tasks {self._tasks[node]} and {task}")
        first = self.acknowledged.get(node)
        if first is not None and epoch >= first:
            self.wrong.append(f"the step {node} ran in attempt {epoch}, after its record was acknowledged in {first}")
        settled = self._settled.get(node)
        if settled is not None and epoch >= settled:
            self.wrong.append(
                f"the step {node} ran in attempt {epoch}, after attempt {settled} went on with its outcome"
            )
        self.late["steps"] += first is not None and epoch < first
        self.runs[node] += 1

    def _acknowledge(self, task: str, epoch: int, node: str) -> None:
        self.acknowledged.setdefault(node, epoch)

    def _settle(self, task: str, epoch: int, node: str, outcome: Any, *, runs_again: bool = False) -> None:
        if self.outcomes.setdefault(node, outcome) != outcome:
            self.wrong.append(f"{node} was {self.outcomes[node]!r}, and {outcome!r} in attempt {epoch}")
        if not runs_again:
            self._settled.setdefault(node, epoch)

    def _complain(self, task: str, epoch: int, text: str) -> None:
        self.wrong.append(f"{task}, attempt {epoch}: {text}")

    def _expect(self, task: str, epoch: int, signal: str) -> None:
        self._expected.add((task, signal))

    def _send(self, task: str, epoch: int, key: str, node: Node) -> bool:
        """Return whether the effect happens. One that was asked about by a later attempt does not."""
        if epoch < self._fences[key]:
            self.late["effects"] += 1
            return False
        if not (node["kind"] == "keys" and key in self.sent[node["id"]]):
            self.sent[node["id"]].append(key)
            self._values[key] = value_of(node["id"])
        return True

    def _find(self, task: str, epoch: int, key: str) -> str | None:
        self._fences[key] = max(epoch, self._fences[key])
        return self._values.get(key)


@contextmanager
def listening(ledger: Ledger, path: Path) -> Iterator[None]:
    """Answer calls at a socket."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            # A caller that is killed leaves half a line, or none.
            while (line := self.rfile.readline()).endswith(b"\n"):
                self.wfile.write(json.dumps(ledger.call(**json.loads(line))).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            return  # the caller has died

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


class RemoteOutside:
    """The ledger as an attempt in a worker's process sees it."""

    sleep_seconds = SLEEP_SECONDS

    def __init__(self, task: Task, path: str, mortality: Mortality) -> None:
        self._who = {"task": task.id, "epoch": task.epoch}
        self._mortality = mortality
        self._wire = socket.socket(socket.AF_UNIX)
        self._wire.connect(path)
        self._file = self._wire.makefile("rwb")

    def close(self) -> None:
        self._file.close()
        self._wire.close()

    def run(self, node_id: str) -> str:
        self._call("run", node=node_id)
        return value_of(node_id)

    def acknowledge(self, node_id: str) -> None:
        self._call("acknowledge", node=node_id)

    def settle(self, node_id: str, outcome: Any, *, runs_again: bool = False) -> None:
        """Note what the program goes on with. The step `runs_again` when a person retries the task."""
        self._call("settle", node=node_id, outcome=outcome, runs_again=runs_again)

    def expect(self, task_id: str, signal: str) -> None:
        self._call("expect", signal=signal)

    def complain(self, text: str) -> None:
        """Note what must not happen."""
        self._call("complain", text=text)

    def send(self, key: str, node: Node) -> str:
        if node["kind"] == "declined":
            raise EffectFailed("no")
        if not self._call("send", key=key, node=node):
            raise EffectFailed("a later attempt has asked about it")
        return value_of(node["id"])

    def find(self, key: str) -> str | None:
        value: str | None = self._call("find", key=key)
        return value

    def _call(self, op: str, **fields: Any) -> Any:
        with self._mortality.around(f"outside {op}"):
            self._file.write(json.dumps({"op": op, **self._who, **fields}).encode() + b"\n")
            self._file.flush()
            return json.loads(self._file.readline())
