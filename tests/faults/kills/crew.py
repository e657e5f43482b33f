"""Workers, each a process, forked from one that has imported it, and forked again when they die.

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
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from stentor_worker import Task, Worker
from stentor_worker.http.client import Client
from tests.faults.journal.programs import run_program
from tests.faults.kills.coroutines import Run
from tests.faults.kills.ledger import RemoteOutside
from tests.faults.kills.mortality import KillLog, Mortality
from tests.faults.kills.plain import Connection, PlainWorker
from tests.faults.kills.plants import PLANTS

PLAIN = 2
"""Which of the agents has workers without the SDK."""
IDLE_SHARE = 0.2
"""How much less often a worker dies at a request that is about no task."""


@dataclass(frozen=True)
class Orders:
    """`chance` of a kill is for each request about a task, and each call of the world outside."""

    addresses: list[str]
    key: str
    agents: list[str]
    """Of programs, of programs in coroutines, and of programs without the SDK."""
    ledger: str
    log: str
    workers: int
    lease_seconds: int
    chance: float
    plant: str = ""


class MortalClient(Client):
    """Sends requests during which its process may die."""

    busy: Mortality
    idle: Mortality

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        verb = path.partition("?")[0].split("/")[3:4] or [path.split("/")[1]]
        with (self.busy if path.startswith("/tasks") else self.idle).around(f"{method} {verb[0]}"):
            return super().call(method, path, body, **options)


def work(orders: Orders, chance: float, at: int) -> None:
    """Be a worker."""
    logging.getLogger("stentor_worker").addHandler(logging.NullHandler())
    if orders.plant in PLANTS:
        PLANTS[orders.plant][0]()
    log = KillLog(Path(orders.log))
    mortality, idle = (Mortality("worker", log, chance * share) for share in (1, IDLE_SHARE))
    kind = at % len(orders.agents)
    if kind == PLAIN:
        busy, rarely = (Connection(orders.addresses, orders.key, mortal) for mortal in (mortality, idle))
        PlainWorker(busy, rarely, orders.agents[kind], orders.lease_seconds).run(orders.ledger, mortality)
    url = orders.addresses[at // len(orders.agents) % len(orders.addresses)]
    worker = Worker(url, orders.key, orders.agents[kind], concurrency=1 + 2 * kind, lease_seconds=orders.lease_seconds)
    client = MortalClient(url, orders.key, worker._stopping)
    client.busy, client.idle = mortality, idle
    worker._client = client

    def run(task: Task) -> Any:
        with closing(RemoteOutside(task, orders.ledger, mortality)) as outside:
            return run_program(task, task.input, outside)

    async def run_coroutines(task: Task) -> Any:
        with closing(RemoteOutside(task, orders.ledger, mortality)) as outside:
            return await Run(task, outside).program(task.input)

    worker.handler(run_coroutines if kind else run)
    worker.run()


class Crew:
    """In the parent of the workers."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._chance = orders, orders.chance
        self._workers: dict[int, int] = {}
        """Their numbers, by pid."""
        self._stopped: dict[int, float] = {}
        """When those that a SIGSTOP holds go on."""

    def run(self) -> None:
        while True:
            while len(self._workers) < self._orders.workers:
                self._fork()
            if select.select([0], [], [], 0.01)[0]:
                if not os.read(0, 4096):
                    break
                self._calm()
            self._reap()
        for pid in list(self._workers):
            self._kill(pid)

    def _calm(self) -> None:
        self._chance = 0
        for pid in list(self._workers):
            self._kill(pid)

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        del self._workers[pid]
        self._stopped.pop(pid, None)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (pid_status := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
                pid, status = pid_status
                if os.WIFSTOPPED(status):
                    self._stopped[pid] = time.monotonic() + random.uniform(0, 3) * self._orders.lease_seconds
                else:
                    del self._workers[pid]
                    self._stopped.pop(pid, None)
        for pid in [pid for pid, until in self._stopped.items() if until < time.monotonic()]:
            del self._stopped[pid]
            os.kill(pid, signal.SIGCONT)

    def _fork(self) -> None:
        # In the place of one that died, so that programs of each kind go on.
        at = min(set(range(self._orders.workers)) - set(self._workers.values()))
        if pid := os.fork():
            self._workers[pid] = at
            return
        os.close(0)
        random.seed()
        try:
            work(self._orders, self._chance, at)
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
    Crew(Orders(**json.loads(line))).run()
    sys.exit()


if __name__ == "__main__":
    main()
