"""Several processes on one PostgreSQL whose server, network and fellows fail: nothing is lost, nothing counts twice."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import KEYS, Service
from tests.databases import thorough
from tests.faults.checker import check
from tests.faults.load import Load, summaries, wait_for
from tests.faults.proxy import Proxy
from tests.faults.server import Server
from tests.patience import until
from tests.processes.calls import ended, register, submit, task
from tests.processes.conftest import Start, database, starting
from tests.requirements import requirement
from tests.service import SHORT_LEASE
from tests.stub import Answer, Asked, serving

KEY = KEYS["ADMIN"].split(":")[0]
TASKS = 150
pytestmark = [pytest.mark.fault, pytest.mark.together("installation")]


@pytest.fixture
def url(postgres_server: str) -> Iterator[str]:
    with database(postgres_server) as address:
        yield address


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as between:
        yield between


@pytest.fixture
def begin(url: str, tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, url, **SHORT_LEASE) as start:
        yield start


def loaded(gateway: Service, tasks: int = TASKS) -> Load:
    load = Load(gateway.address, KEY, summaries(tasks), pause=0.01)
    load.start()
    return load


def all_done(load: Load, gateway: Service, url: str) -> None:
    """Every task was accepted and ends, and the database says nothing else."""
    load.join()
    with gateway.client() as client:
        wait_for(client, len(load.bodies))
    assert check(url, load.accepted) == []


RESTARTS: dict[str, Callable[[Server], Any]] = {
    "stopped at once": lambda it: it.stop(signal.SIGQUIT),
    "restarted": lambda it: it.stop(signal.SIGINT),
    "postmaster killed": lambda it: it.kill(all_of_it=False),
    "killed": lambda it: it.kill(),
}
CHOSEN = tuple(RESTARTS) if thorough() else ("restarted", "killed")


@requirement("scale.faults")
def test_postgresql_is_stopped_and_killed_under_load_and_nothing_is_lost(own_postgres: Server, tmp_path: Path) -> None:
    with starting(tmp_path, own_postgres.url, **SHORT_LEASE) as start:
        gateway, worker = start("gateway"), start("worker")
        load = loaded(gateway, 75 * len(CHOSEN))
        for number, name in enumerate(CHOSEN, 1):
            until(lambda number=number: len(load.accepted) >= 50 * number)
            RESTARTS[name](own_postgres)
            own_postgres.start()
        all_done(load, gateway, own_postgres.url)
        assert gateway.process.poll() is None
        assert worker.process.poll() is None


@pytest.mark.slow
@requirement("scale.faults")
def test_connections_that_break_at_any_moment_lose_nothing(begin: Start, proxy: Proxy, url: str) -> None:
    gateway = begin("gateway", SERVICE_DATABASE_URL=proxy.url)
    begin("worker", SERVICE_DATABASE_URL=proxy.url)
    load = loaded(gateway)
    for moment in range(20, TASKS - 20, 10):
        until(lambda moment=moment: len(load.accepted) >= moment)
        if moment % 20:
            proxy.cut()
        else:
            proxy.cut_answers(3, after=moment % 7)
    all_done(load, gateway, url)


@pytest.mark.slow
@requirement("scale.faults")
def test_a_black_hole_in_the_middle_of_transactions_holds_up_others_for_seconds_at_most(
    begin: Start, proxy: Proxy, url: str
) -> None:
    cut_off = begin("gateway,worker", SERVICE_DATABASE_URL=proxy.url)
    other = begin("gateway,worker")
    load, beside = loaded(cut_off), Load(other.address, KEY, summaries(TASKS, "beside"), pause=0.01)
    until(lambda: len(load.accepted) >= 30)
    with proxy.silent():
        beside.start()
        began = time.monotonic()
        register(other, "newcomer")  # waits for the locks that the one in the hole may hold
        assert time.monotonic() - began < 60
        beside.join()
        time.sleep(max(0.0, 12 - (time.monotonic() - began)))  # past the server's patience, so that it throws it out
    load.join()
    with other.client() as client:
        wait_for(client, 2 * TASKS)
    assert check(url, [*load.accepted, *beside.accepted]) == []


class Echo:
    """An agent over HTTP that answers with the number of the call; the first one only when it is let go."""

    def __init__(self) -> None:
        self.address = ""
        self.begun, self.let_go = threading.Event(), threading.Event()

    def answer(self, asked: Asked, before: int) -> Answer:
        self.begun.set()
        if not before:
            self.let_go.wait(60)
        return Answer(body={"result": before + 1})


@pytest.fixture
def agent() -> Iterator[Echo]:
    made = Echo()
    with serving(made.answer) as (made.address, _):
        yield made


@pytest.mark.slow
@requirement("scale.instance-death", "scale.faults")
def test_the_late_answer_of_a_process_that_slept_past_its_lease_counts_for_nothing(
    begin: Start, url: str, agent: Echo
) -> None:
    gateway, sleeps = begin("gateway"), begin("worker")
    register(gateway, "late", runtime={"kind": "http", "endpoint": agent.address})
    task_id = submit(gateway, type="x", required_capabilities=["late"], timeout_seconds=120)
    assert agent.begun.wait(200)
    sleeps.process.send_signal(signal.SIGSTOP)
    try:
        agent.let_go.set()  # the answer waits in the socket of a process that does not run
        begin("worker")
        found = ended(gateway, task_id)
    finally:
        sleeps.process.send_signal(signal.SIGCONT)
    assert (found["attempts"], found["result"]) == (2, 2)
    after = submit(gateway)
    ended(gateway, after)
    with sleeps.client() as client:
        until(lambda: client.get("/api/v1/health/ready").status_code == 200)
        until(lambda: "stentor_running 0" in client.get("/metrics").text)
    assert task(gateway, task_id)["result"] == 2
    assert check(url, [task_id, after]) == []


@pytest.mark.only("sqlite", reason="the kinds are the test's own")
@pytest.mark.parametrize("kind", ["postgresql", "sqlite"])
@requirement("scale.instance-death", "scale.faults")
def test_a_submit_that_is_repeated_elsewhere_with_its_id_and_key_is_one_task(
    kind: str, request: pytest.FixtureRequest, serve: Callable[..., Service]
) -> None:
    """On SQLite the other gateway is the same one, started again."""
    if kind == "postgresql":
        begin: Start = request.getfixturevalue("begin")
        victim, other = begin("gateway,worker"), begin("gateway,worker")
        where: Path | str = request.getfixturevalue("url")
    else:
        victim = other = serve(SERVICE_MEMORY="0")
        where = victim.data_dir / "stentor.db"
    bodies, kept = summaries(60), dict[str, dict[str, Any]]()
    dies, unanswered = threading.Thread(target=victim.kill), []
    for number, body in enumerate(bodies):
        if number == len(bodies) // 2:
            dies.start()
        if not submitted(victim.address, body, kept):
            unanswered.append(body)
        if number == len(bodies) - 2:
            dies.join()
    if kind == "sqlite":
        other = serve(data_dir=victim.data_dir, SERVICE_MEMORY="0")
    for body in [*bodies, *unanswered]:
        assert submitted(other.address, body, kept)
    with other.client() as client:
        wait_for(client, len(bodies))
        assert client.get("/api/v1/tasks", params={"limit": 1}).json()["total"] == len(bodies)
    other.kill()
    assert unanswered
    assert check(where, list(kept)) == []


def submitted(address: str, body: dict[str, Any], kept: dict[str, dict[str, Any]]) -> bool:
    """Whether it was answered; all answers to one key are the same one."""
    headers = {"X-API-Key": KEY, "Idempotency-Key": f"key-{body['id']}"}
    try:
        answer = httpx.post(f"{address}/api/v1/tasks", json=body, headers=headers, timeout=200)
    except httpx.TransportError:
        return False
    assert answer.status_code == 202, answer.text
    assert kept.setdefault(body["id"], answer.json()) == answer.json()
    return True
