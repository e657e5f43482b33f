"""Worker processes that are killed while tasks wait for them: the tasks are done by who is left, once each."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.domains.routing import explain
from tests.conftest import Service
from tests.faults.checker import check
from tests.patience import until
from tests.processes.conftest import Start, start
from tests.requirements import requirement

pytestmark = pytest.mark.fault
__all__ = ["start"]

BRIEF = {"SERVICE_WORKER_OFFLINE_SECONDS": "3", "SERVICE_LEASE_SECONDS": "3"}
WORKER = Path(__file__).with_name("named_worker.py")


@contextmanager
def working(service: Service, agent_id: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process of the SDK, one task at a time; it is there from here on."""
    command = [sys.executable, str(WORKER), service.address, service.key, agent_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def registered(client: httpx.Client, name: str, score: float) -> str:
    scores = dict.fromkeys(("alignment_score", "accuracy_score", "efficiency_score"), score)
    answer = client.post("/api/v1/registry/agents", json={"name": name, "capabilities": ["echo"], **scores})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["agent_id"])


def submitted(client: httpx.Client, number: int) -> list[str]:
    body = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    answers = [client.post("/api/v1/tasks", json=body) for _ in range(number)]
    assert all(answer.status_code == 202 for answer in answers)
    return [str(answer.json()["task_id"]) for answer in answers]


def done(client: httpx.Client, task_id: str) -> dict[str, Any]:
    return dict(
        until(lambda: (found := client.get(f"/api/v1/tasks/{task_id}").json())["status"] == "completed" and found)
    )


def decisions(client: httpx.Client, task_id: str) -> list[dict[str, Any]]:
    """The routing decisions of a task; each is recomputed from the log."""
    events = client.get(f"/api/v1/tasks/{task_id}/activity", params={"limit": 500}).json()["events"]
    decided = [event["metadata"] for event in events if event["event_type"] == "routing_decision"]
    assert all(explain.check_decision(made["routing"]).is_reproduced for made in decided)
    return decided


def moves(client: httpx.Client, task_id: str) -> list[dict[str, Any]]:
    """The decisions of a task that moved it."""
    return [made for made in decisions(client, task_id) if "rerouted_from" in made]


@requirement("routing.offline-again")
def test_what_waited_for_a_killed_worker_is_done_by_the_one_that_is_left(serve: Callable[..., Service]) -> None:
    service = serve(**BRIEF)
    with service.client() as client:
        one, two = registered(client, "one", 0.9), registered(client, "two", 0.6)
        with working(service, one) as first:
            first.kill()
        ids = submitted(client, 20)
        before = Counter(client.get(f"/api/v1/tasks/{task_id}").json()["assigned_agent"] for task_id in ids)
        assert before[one] > 0
        with working(service, two):
            ends = [done(client, task_id) for task_id in ids]
            assert {end["assigned_agent"] for end in ends} == {two}
            assert all(end["attempts"] == 1 for end in ends)
            # Until it is offline the killed one may look idle, and get what waits for the other before that is there.
            assert sum(len(moves(client, task_id)) for task_id in ids) >= before[one]
            assert all(len(moves(client, task_id)) <= 2 for task_id in ids)
    service.kill()
    assert check(service.database, ids) == []


@pytest.mark.slow
@requirement("routing.offline-again")
def test_a_worker_that_comes_back_at_the_same_moment_and_the_other_do_each_task_once(
    serve: Callable[..., Service],
) -> None:
    service = serve(**BRIEF)
    with service.client() as client:
        one, two = registered(client, "one", 0.9), registered(client, "two", 0.6)
        ids = submitted(client, 30)
        # Nobody has polled yet, so both go offline, one after the other on a busy machine; then both come at once, and
        # both may have all of it.
        until(lambda: client.get(f"/api/v1/tasks/{ids[0]}").json()["notice"] == "no worker online")
        before = {task_id: len(moves(client, task_id)) for task_id in ids}
        with working(service, one), working(service, two):
            ends = [done(client, task_id) for task_id in ids]
        assert all(end["attempts"] == 1 for end in ends)
        assert all(len(moves(client, task_id)) <= before[task_id] + 1 for task_id in ids)
    service.kill()
    assert check(service.database, ids) == []


@pytest.mark.slow
@requirement("routing.offline-again", "scale.dispatch-across-machines")
@pytest.mark.together("processes")
def test_of_several_processes_one_moves_each_task_once(start: Start) -> None:
    gateways = [start("gateway", **BRIEF) for _ in range(2)]
    with gateways[0].client() as client, gateways[1].client() as second:
        one, two = registered(client, "one", 0.9), registered(client, "two", 0.6)
        until(lambda: second.get("/api/v1/registry/agents").text.count(two))
        ids = [*submitted(client, 20), *submitted(second, 20)]
        with working(gateways[1], two):
            ends = [done(client, task_id) for task_id in ids]
            assert {end["assigned_agent"] for end in ends} == {two}
            # From the log: on a busy machine tasks move before all are submitted.
            given = {tuple(made["routing"]["agent_id"] for made in decisions(client, task_id)) for task_id in ids}
            assert (one, two) in given
            assert given <= {(two,), (one, two)}
    for gateway in gateways:
        gateway.kill()
    assert check(gateways[0].database, ids) == []
