"""kill -9 of the service at random moments: nothing that was accepted is lost, and all of it is done once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import KEYS, Service
from tests.databases import thorough
from tests.faults.checker import check
from tests.faults.load import Load, summaries, wait_for
from tests.patience import until
from tests.ports import free_port
from tests.requirements import requirement
from tests.service import SHORT_LEASE

TASKS, WORKED, KILLS = (1_800, 200, 10) if thorough() else (450, 50, 4)
KEY = KEYS["ADMIN"].split(":")[0]
pytestmark = pytest.mark.fault


@contextmanager
def worker(address: str, capability: str, seconds: float = 0, lease: int = 30) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.faults.worker", address, KEY, capability, str(seconds), str(lease)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


@requirement("execution.survives-restart", "learning.in-outcome-transaction", "provenance.verify-clean")
@pytest.mark.only("sqlite", reason="the next test is its like")
def test_tasks_survive_kills(serve: Callable[..., Service]) -> None:
    seed = random.randrange(10**6)  # other moments each time; a failure tells its seed
    chance, port = random.Random(seed), str(free_port())
    service = serve(SERVICE_GATEWAY_PORT=port, SERVICE_TASK_MAX_ATTEMPTS="100")
    bodies = summaries(TASKS) + [
        {"id": f"work-{i:05}", "type": "work", "input": i, "required_capabilities": ["work"]} for i in range(WORKED)
    ]
    chance.shuffle(bodies)
    load = Load(service.address, KEY, bodies)
    moments = sorted(chance.sample(range(20, len(bodies) - 20), KILLS))
    with worker(service.address, "work"):
        load.start()
        for moment in moments:
            until(lambda moment=moment: len(load.accepted) >= moment, lambda: f"stuck (seed {seed})")
            time.sleep(chance.random() * 0.05)
            service.kill()
            service = serve(data_dir=service.data_dir, SERVICE_GATEWAY_PORT=port, SERVICE_TASK_MAX_ATTEMPTS="100")
        load.join()
        with service.client() as client:
            wait_for(client, len(bodies))
            done = client.get("/api/v1/tasks", params={"status": "completed", "limit": 1}).json()["total"]
    service.kill()
    assert check(service.database, load.accepted) == [], f"seed {seed}"
    assert done == len(bodies)


@requirement("execution.survives-restart")
@pytest.mark.only("postgresql", reason="the test before is its like")
def test_a_kill_on_postgresql_loses_nothing_either(serve: Callable[..., Service]) -> None:
    environ = {"SERVICE_GATEWAY_PORT": str(free_port()), **SHORT_LEASE}
    service = serve(**environ)
    moments = (40, 150, 260) if thorough() else (40,)
    tasks = moments[-1] + 40
    load = Load(service.address, KEY, summaries(tasks))
    load.start()
    for moment in moments:
        until(lambda moment=moment: len(load.accepted) >= moment)
        service.kill()
        service = serve(data_dir=service.data_dir, **environ)
    load.join()
    with service.client() as client:
        wait_for(client, tasks)  # what ran at a kill comes back when its lease ends
    service.kill()
    assert check(service.database, load.accepted) == []
