"""A task is suspended at one gateway while what it waits for comes in at another: nothing is missed or ends twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, LiteralString

import httpx
import psycopg
import pytest

from stentor.core.db.locks import locks
from tests.patience import until
from tests.processes.calls import claim, known, post, register, submit, task
from tests.processes.conftest import Installation
from tests.requirements import requirement

pytestmark = pytest.mark.together("processes")
ROUNDS = 40
Call = Callable[[], httpx.Response]


class Racers:
    """Requests to both gateways at the same time, in either order."""

    def __init__(self, installation: Installation, capability: str) -> None:
        self.installation, self.capability = installation, capability
        self.agent_id = register(installation.one, capability)
        known(installation.other, self.agent_id)
        self.clients = [service.client() for service in (installation.one, installation.other)]
        self.sent: list[Future[httpx.Response]] = []
        self._pool = ThreadPoolExecutor(2)

    def claim(self, **wait: Any) -> tuple[str, int]:
        """Submit a task, claim it and begin a wait `w`; return its path and its epoch."""
        submit(self.installation.one, type="x", required_capabilities=[self.capability])
        taken = claim(self.installation.one, self.agent_id)
        path = f"/api/v1/tasks/{taken['task_id']}"
        if wait:
            post(self.installation.one, f"{path}/waits", epoch=taken["epoch"], key="w", name="w", **wait)
        return path, taken["epoch"]

    def at_once(self, *requests: tuple[str, dict[str, Any]]) -> list[int]:
        """Send a request to each gateway; return their status codes."""
        sent = [self.send(client, request) for client, request in zip(self.clients, requests, strict=True)]
        return [request.result().status_code for request in sent]

    def send(self, client: httpx.Client, request: tuple[str, dict[str, Any]]) -> Future[httpx.Response]:
        """Send a request through one of `clients`, without waiting for the answer."""
        path, body = request
        self.sent.append(self._pool.submit(client.post, path, json=body))
        return self.sent[-1]

    def close(self) -> None:
        self._pool.shutdown()
        for client in self.clients:
            client.close()


@pytest.fixture
def racers(installation: Installation, request: pytest.FixtureRequest) -> Iterator[Racers]:
    racers = Racers(installation, request.node.name)
    yield racers
    racers.close()


@pytest.mark.slow
@requirement("steps.waits")
def test_a_signal_beside_the_suspension_wakes_the_task(racers: Racers) -> None:
    for _ in range(ROUNDS):
        path, epoch = racers.claim(kind="signal", signal="paid")
        suspend, signal = {"epoch": epoch, "keys": ["w"]}, {"name": "paid"}
        assert racers.at_once((f"{path}/suspend", suspend), (f"{path}/signals", signal)) == [200, 200]
        assert task(racers.installation.one, path.rpartition("/")[2])["status"] == "queued"
        claim(racers.installation.one, racers.agent_id)


@requirement("steps.waits")
def test_a_signal_beside_the_beginning_of_its_wait_is_not_lost(racers: Racers) -> None:
    for _ in range(ROUNDS):
        path, epoch = racers.claim()
        wait = {"epoch": epoch, "key": "w", "name": "w", "kind": "signal", "signal": "paid"}
        assert set(racers.at_once((f"{path}/waits", wait), (f"{path}/signals", {"name": "paid"}))) <= {200, 201}
        post(racers.installation.one, f"{path}/suspend", epoch=epoch, keys=["w"])
        assert task(racers.installation.one, path.rpartition("/")[2])["status"] == "queued"
        claim(racers.installation.one, racers.agent_id)


@pytest.mark.slow
@requirement("steps.waits")
def test_a_time_that_is_over_beside_the_suspension_wakes_the_task(racers: Racers) -> None:
    for _ in range(3):
        paths = [racers.claim(kind="sleep", seconds=0.9) for _ in range(12)]
        for path, epoch in paths:
            post(racers.installation.one, f"{path}/suspend", epoch=epoch, keys=["w"])
        ids = [path.rpartition("/")[2] for path, _ in paths]
        until(partial(all_queued, racers, ids))
        for _ in ids:
            claim(racers.installation.one, racers.agent_id)


def all_queued(racers: Racers, ids: list[str]) -> bool:
    return all(task(racers.installation.one, task_id)["status"] == "queued" for task_id in ids)


def is_cancelled(racers: Racers, task_id: str) -> bool:
    return bool(task(racers.installation.one, task_id)["status"] == "cancelled")


@requirement("steps.questions")
def test_of_two_answers_at_once_one_counts_and_the_other_is_told(racers: Racers) -> None:
    for _ in range(ROUNDS):
        path, epoch = racers.claim(kind="question", question="Well?")
        post(racers.installation.one, f"{path}/suspend", epoch=epoch, keys=["w"])
        answer = f"{path}/steps/w/answer"
        assert sorted(racers.at_once((answer, {"value": "yes"}), (answer, {"value": "no"}))) == [200, 409]
        claim(racers.installation.one, racers.agent_id)


@requirement("steps.waits")
def test_of_waits_that_end_together_at_once_the_last_wakes_the_task(racers: Racers) -> None:
    for _ in range(ROUNDS):
        path, epoch = racers.claim()
        for key in ("a", "b"):
            wait = {"key": key, "name": key, "kind": "signal", "signal": key, "together": "a"}
            post(racers.installation.one, f"{path}/waits", epoch=epoch, **wait)
        post(racers.installation.one, f"{path}/suspend", epoch=epoch, keys=["a", "b"])
        assert racers.at_once((f"{path}/signals", {"name": "a"}), (f"{path}/signals", {"name": "b"})) == [200, 200]
        assert task(racers.installation.one, path.rpartition("/")[2])["status"] == "queued"
        claim(racers.installation.one, racers.agent_id)


@pytest.mark.parametrize(("first", "statuses"), [("child", [202, 200]), ("cancellation", [200, 409])])
@requirement("steps.children")
def test_of_the_cancellation_of_a_task_and_a_new_child_at_the_same_time_one_comes_first(
    racers: Racers, first: str, statuses: list[int]
) -> None:
    for _ in range(5):
        path, _ = racers.claim()
        parent_id = path.rpartition("/")[2]
        child = {"type": "x", "input": 1, "required_capabilities": [racers.capability]}
        child |= {"metadata": {"parent_task_id": parent_id}}
        requests = [("/api/v1/tasks", child), (f"{path}/cancel", {})]
        with held_up(racers, locks.task_lock("default", parent_id)) as wait_for:
            sent = []
            for client, request in zip(racers.clients, requests if first == "child" else requests[::-1], strict=True):
                sent.append(racers.send(client, request))
                # PostgreSQL lets them go on in the order in which they came to wait.
                wait_for(len(sent))
        answers = [request.result() for request in sent]
        assert [answer.status_code for answer in answers] == statuses, [answer.text for answer in answers]
        if first == "child":
            child_id = answers[0].json()["task_id"]
            until(partial(is_cancelled, racers, child_id))


@contextmanager
def held_up(racers: Racers, lock: str) -> Iterator[Callable[[int], None]]:
    """Hold a lock of the database against both gateways; `wait_for(count)` waits until so many requests are held up.

    The first waits for that lock. The next may wait for a row that the first has written, and comes after it as well.
    """
    key = (locks.NAMED_LOCKS, locks.to_number(lock))
    for_lock = (
        "select count(*) from pg_locks where locktype = 'advisory' and not granted "
        "and classid = %s::bigint::oid and objid = (%s::bigint & 4294967295)::oid"
    )
    for_any = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"

    with psycopg.connect(racers.installation.one.environ["SERVICE_DATABASE_URL"], autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(%s, %s)", key)

        def count(query: LiteralString, values: tuple[int, ...] = ()) -> int:
            found = holder.execute(query, values).fetchone()
            assert found is not None
            return int(found[0])

        def wait_for(number: int) -> None:
            def are_held_up() -> bool:
                ended = [request.result().text for request in racers.sent[-number:] if request.done()]
                assert not ended, ended
                return count(for_lock, key) > 0 and count(for_any) >= number

            until(are_held_up)

        yield wait_for
