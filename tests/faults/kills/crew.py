"""Workers of the SDK, each a process, forked from one that has imported it, and forked again when they die.

`python -m tests.faults.kills.crew`: the first line of its input is its `Orders`, in JSON. A second line ends the kills;
the end of the input ends the workers.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from stentor_worker import Task, Worker
from stentor_worker.client import Client
from tests.faults.journal.programs import run_program
from tests.faults.kills.ledger import RemoteOutside
from tests.faults.kills.mortality import KillLog, Mortality

LONGEST_SECONDS = 0.006
"""How long after the beginning of a request a kill comes at most, if it comes during it."""


@dataclass(frozen=True)
class Orders:
    """`chance` of a kill is for each request, `every` the mean number of seconds between kills at any moment."""

    addresses: list[str]
    key: str
    agent: str
    ledger: str
    log: str
    workers: int
    lease_seconds: int
    chance: float
    every: float


class MortalClient(Client):
    """Sends requests during which its process may die."""

    mortality: Mortality

    def call(
        self, method: str, path: str, body: Any = None, *, tries: int = 1_000_000, idempotency_key: str | None = None
    ) -> Any:
        verb = path.partition("?")[0].split("/")[3:4] or [path.split("/")[1]]
        with self.mortality.around(f"{method} {verb[0]}"):
            return super().call(method, path, body, tries=tries, idempotency_key=idempotency_key)


def work(orders: Orders, chance: float, at: int) -> None:
    """Be a worker."""
    logging.getLogger("stentor_worker").addHandler(logging.NullHandler())
    mortality = Mortality("worker", KillLog(Path(orders.log)), chance, LONGEST_SECONDS)
    url = orders.addresses[at % len(orders.addresses)]
    worker = Worker(url, orders.key, orders.agent, concurrency=1, lease_seconds=orders.lease_seconds)
    client = MortalClient(url, orders.key, worker._stopping)
    client.mortality = mortality
    worker._client = client

    @worker.handler
    def run(task: Task) -> Any:
        outside = RemoteOutside(task, orders.ledger, mortality)
        try:
            return run_program(task, task.input, outside)
        finally:
            outside.close()

    worker.run()


class Crew:
    """In the parent of the workers."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._chance, self._every = orders, orders.chance, orders.every
        self._log, self._dice = KillLog(Path(orders.log)), random.Random()
        self._workers: dict[int, int] = {}
        self._forked = 0

    def run(self) -> None:
        while True:
            while len(self._workers) < self._orders.workers:
                self._fork()
            if select.select([0], [], [], 0.01)[0]:
                if not os.read(0, 4096):
                    break
                self._calm()
            if self._every and self._dice.random() < 0.01 / self._every:
                self._log.note("worker at any moment")
                self._kill(self._dice.choice(list(self._workers)))
            self._reap()
        for pid in list(self._workers):
            self._kill(pid)

    def _calm(self) -> None:
        self._chance = self._every = 0
        for pid in list(self._workers):
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._workers[pid]

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                del self._workers[pid]

    def _fork(self) -> None:
        self._forked += 1
        if pid := os.fork():
            self._workers[pid] = self._forked
            return
        os.close(0)
        random.seed()
        try:
            work(self._orders, self._chance, self._forked)
        finally:
            os._exit(1)


class CrewProcess:
    """The crew, as the test sees it."""

    def __init__(self, orders: Orders, errors: Path) -> None:
        with errors.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.kills.crew"], stdin=subprocess.PIPE, stderr=log, stdout=log
            )
        self._say(json.dumps(asdict(orders)))

    def calm(self) -> None:
        """Kill no worker any more."""
        self._say("calm")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


def main() -> NoReturn:
    # Not a buffered read: what follows the first line is for `select`.
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(0, 1)
    time.sleep(0)
    Crew(Orders(**json.loads(line))).run()
    sys.exit()


if __name__ == "__main__":
    main()
