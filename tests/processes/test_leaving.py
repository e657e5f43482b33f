"""Processes that are killed, and processes that are asked to leave."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psycopg
import pytest

from tests.conftest import KEYS, Service
from tests.faults.load import Load, summaries
from tests.patience import until
from tests.processes.calls import Stream, ended, register, submit, task
from tests.processes.conftest import Start
from tests.processes.test_together import sleeper
from tests.requirements import requirement
from tests.service import SHORT_LEASE
from tests.stub import Answer, Asked, serving

pytestmark = pytest.mark.together("leaving")
KEY = KEYS["ADMIN"].split(":")[0]


def asked_to_leave(service: Service) -> int:
    service.process.send_signal(signal.SIGTERM)
    return service.process.wait(200)


def is_ready(service: Service) -> bool:
    """False also where nobody answers any more."""
    try:
        return httpx.get(f"{service.address}/api/v1/health/ready", timeout=200).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def answering_later(seconds: float) -> Iterator[tuple[threading.Event, str]]:
    """An agent that takes its time; the event is set when it was asked."""
    begun = threading.Event()

    def answer(asked: Asked, _: int) -> Answer:
        begun.set()
        time.sleep(seconds)
        return Answer(body={"result": "late"})

    with serving(answer) as (address, _):
        yield begun, f"{address}/do"


@pytest.mark.slow
@requirement("scale.instance-death")
def test_what_a_killed_process_had_in_hand_is_done_by_another_after_its_lease(start: Start) -> None:
    gateway, first = start("gateway"), start("worker", **SHORT_LEASE)
    begun, _, address = sleeper()
    register(gateway, "held", runtime={"kind": "http", "endpoint": address})
    task_id = submit(gateway, type="x", required_capabilities=["held"], timeout_seconds=60)
    assert begun.wait(200)
    second = start("worker")
    first.kill()
    until(lambda: task(gateway, task_id)["attempts"] == 2)
    assert second.process.poll() is None


@requirement("scale.drain")
def test_a_task_that_ends_in_time_is_waited_for_when_its_process_is_asked_to_leave(start: Start) -> None:
    gateway, worker = start("gateway"), start("worker", SERVICE_DRAIN_SECONDS="60")
    with answering_later(1.5) as (begun, address):
        register(gateway, "slow", runtime={"kind": "http", "endpoint": address})
        task_id = submit(gateway, type="x", required_capabilities=["slow"])
        assert begun.wait(200)
        assert asked_to_leave(worker) == 0
    found = task(gateway, task_id)
    assert (found["status"], found["attempts"]) == ("completed", 1)


@requirement("scale.drain")
def test_an_attempt_keeps_its_lease_while_its_process_leaves(start: Start) -> None:
    gateway, first = start("gateway"), start("worker", SERVICE_DRAIN_SECONDS="600", SERVICE_LEASE_SECONDS="9")
    begun, released = threading.Event(), threading.Event()

    def answer(asked: Asked, _: int) -> Answer:
        begun.set()
        released.wait(200)
        return Answer(body={"result": "late"})

    with serving(answer) as (address, asked):
        register(gateway, "slow", runtime={"kind": "http", "endpoint": f"{address}/do"})
        task_id = submit(gateway, type="x", required_capabilities=["slow"])
        assert begun.wait(200)
        start("worker")  # it would take the task over
        first.process.send_signal(signal.SIGTERM)
        until(lambda: not is_ready(first))
        leases = set[tuple[int, int]]()
        with psycopg.connect(gateway.environ["SERVICE_DATABASE_URL"], autocommit=True) as database:

            def is_renewed_or_lost() -> bool:
                query = "select epoch, lease_until from tasks where task_id = %s"
                leases.add(database.execute(query, (task_id,)).fetchone() or (0, 0))
                return len(leases) == 3 or len(asked) > 1

            until(is_renewed_or_lost)
        released.set()
        assert first.process.wait(200) == 0
    found = task(gateway, task_id)
    assert (found["status"], found["attempts"], len(asked)) == ("completed", 1, 1)


@requirement("scale.drain")
def test_a_task_that_does_not_end_in_time_is_given_to_another_at_once(start: Start) -> None:
    gateway, first = start("gateway"), start("worker", SERVICE_DRAIN_SECONDS="0.2", SERVICE_LEASE_SECONDS="600")
    begun, stopped, address = sleeper()
    register(gateway, "stuck", runtime={"kind": "http", "endpoint": address})
    task_id = submit(gateway, type="x", required_capabilities=["stuck"])
    assert begun.wait(200)
    assert asked_to_leave(first) == 0
    assert stopped.wait(200)
    assert task(gateway, task_id)["status"] == "queued"
    start("worker")
    until(lambda: task(gateway, task_id)["attempts"] == 2)


@requirement("scale.drain")
def test_a_second_signal_waits_for_nothing(start: Start) -> None:
    gateway, worker = start("gateway"), start("worker", SERVICE_DRAIN_SECONDS="600")
    begun, _, address = sleeper()
    register(gateway, "patient", runtime={"kind": "http", "endpoint": address})
    submit(gateway, type="x", required_capabilities=["patient"])
    assert begun.wait(200)
    worker.process.send_signal(signal.SIGINT)
    until(lambda: not is_ready(worker))
    assert worker.process.poll() is None
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(200) == 0


@requirement("scale.drain")
def test_a_gateway_that_is_leaving_says_so_to_the_load_balancer_and_goes_on_answering(start: Start) -> None:
    gateway = start("gateway,worker", SERVICE_LEAVE_SECONDS="600")
    with gateway.client() as client:
        assert client.get("/api/v1/health/ready").status_code == 200
        gateway.process.send_signal(signal.SIGTERM)
        until(lambda: client.get("/api/v1/health/ready").status_code == 503)
        assert client.get("/api/v1/health/live").status_code == 200
        task_id = submit(gateway)
        ended(gateway, task_id)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(200) == 0


@pytest.mark.slow
@requirement("scale.rolling-restart")
def test_a_rolling_restart_behind_a_load_balancer_fails_no_request_and_loses_no_task(start: Start) -> None:
    """Here the callers are the load balancer: they send to whoever is ready, and again only what nobody took."""
    gateways = [start("gateway", SERVICE_LEAVE_SECONDS="10") for _ in range(2)]
    start("worker")
    balancer = Balancer(gateways)
    ids: list[str] = []
    done = threading.Event()

    def submitting() -> None:
        while not done.is_set():
            ids.append(balancer.submit())

    clients = [threading.Thread(target=submitting) for _ in range(4)]
    for client in clients:
        client.start()
    for at in range(2):
        until(lambda: len(ids) > 30 * (at + 1))  # noqa: B023 - asked at once
        assert asked_to_leave(gateways[at]) == 0
        gateways[at] = start("gateway", SERVICE_LEAVE_SECONDS="10")
        balancer.back(at, gateways[at])
    done.set()
    for client in clients:
        client.join(200)
    assert balancer.failed == []
    for task_id in ids:
        ended(gateways[0], task_id)


class Balancer:
    """Sends each request to the next gateway that is ready, on a connection of its own, and once."""

    def __init__(self, gateways: list[Service]) -> None:
        self._addresses = [one.address for one in gateways]
        self._ready = [True, True]
        self._next = 0
        self.failed: list[str] = []
        for at in range(len(gateways)):
            threading.Thread(target=self._watch, args=(at,), daemon=True).start()

    def back(self, at: int, service: Service) -> None:
        self._addresses[at] = service.address

    def _watch(self, at: int) -> None:
        while True:
            try:
                url = f"{self._addresses[at]}/api/v1/health/ready"
                self._ready[at] = httpx.get(url, timeout=200).status_code == 200
            except httpx.TransportError:
                self._ready[at] = False
            time.sleep(0.1)

    def submit(self) -> str:
        until(lambda: any(self._ready))
        self._next += 1
        at = self._next % 2 if self._ready[self._next % 2] else (self._next + 1) % 2
        body = {"type": "summarize", "input": "One. Two.", "required_capabilities": ["summarize"]}
        try:
            url = f"{self._addresses[at]}/api/v1/tasks"
            answer = httpx.post(url, json=body, headers={"X-API-Key": KEY}, timeout=200)
        except httpx.TransportError as error:
            self.failed.append(repr(error))
            raise
        if answer.status_code != 202:
            self.failed.append(answer.text)
        return str(answer.json()["task_id"])


@requirement("scale.instance-death")
def test_gateways_and_workers_that_are_killed_in_turn_lose_nothing_that_was_accepted(start: Start) -> None:
    stable = start("gateway")
    bodies = summaries(300)
    load = Load(stable.address, KEY, bodies, pause=0.01)
    load.start()
    for _ in range(3):
        victim = start("gateway,worker", **SHORT_LEASE)
        time.sleep(1)
        victim.kill()
    start("worker")
    load.join()
    for body in bodies:
        found = ended(stable, str(body["id"]))
        assert found["attempts"] >= 1
    kinds = Stream(stable, str(bodies[0]["id"]))
    kinds.join(200)
    assert kinds.kinds().count("task_completed") == 1
