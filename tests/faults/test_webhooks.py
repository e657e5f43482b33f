"""kill -9 while events are delivered, and a database that goes away: every event arrives, under one id, in order."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from tests.conftest import KEYS, Service
from tests.databases import thorough
from tests.faults.load import Load, summaries
from tests.patience import until
from tests.ports import free_port
from tests.processes.calls import register
from tests.requirements import requirement
from tests.service import SHORT_LEASE
from tests.stub import Answer, Asked, serving

TASKS, KILLS = (600, 6) if thorough() else (150, 3)
EVENTS = ["task.submitted", "task.started", "task.completed"]
KEY = KEYS["ADMIN"].split(":")[0]
pytestmark = pytest.mark.fault


@dataclass
class Sink:
    """A receiver in this process; `got` has what came: task, event, message id."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    got: list[tuple[str, str, str]] = field(default_factory=list)

    def answer(self, asked: Asked, _: int) -> Answer:
        payload = json.loads(asked.body)
        self.got.append((payload["data"].get("task_id", ""), payload["event"], asked.headers["webhook-id"]))
        return Answer(204, b"")

    @property
    def tasks(self) -> dict[str, dict[str, set[str]]]:
        """Of each task the events and their message ids."""
        found: dict[str, dict[str, set[str]]] = {}
        for task, event, message in list(self.got):
            found.setdefault(task, {}).setdefault(event, set()).add(message)
        return found


@pytest.fixture
def sink() -> Iterator[Sink]:
    with receiving() as made:
        yield made


@contextmanager
def receiving(port: int = 0) -> Iterator[Sink]:
    sink = Sink()
    with serving(sink.answer, port=port, keep_alive=True) as (sink.url, sink.asked):
        yield sink


def subscribe(service: Service, url: str) -> str:
    with service.client() as client:
        answer = client.post("/api/v1/webhooks", json={"url": url, "events": EVENTS})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["secret"])


def complete(sink: Sink, ids: list[str]) -> bool:
    """Whether every event of every task has arrived."""
    found = sink.tasks
    return all(set(found.get(task, ())) == set(EVENTS) for task in ids)


def in_order(sink: Sink) -> bool:
    """Whether of each task the first arrivals stand in the order of what happened."""
    first: dict[str, list[str]] = {}
    for task, event, _ in sink.got:
        if event not in first.setdefault(task, []):
            first[task].append(event)
    return all(events == EVENTS for events in first.values())


def killed(serve: Callable[..., Service], sink: Sink, tasks: int, kills: int, **environ: str) -> list[str]:
    chance = random.Random()
    environ = {"SERVICE_GATEWAY_PORT": str(free_port()), "SERVICE_OUTBOUND_ALLOW": "127.0.0.1", **environ}
    environ |= {"SERVICE_TASK_MAX_ATTEMPTS": "100", "SERVICE_MEMORY": "0"}
    service = serve(**environ)
    secret = subscribe(service, sink.url)
    load = Load(service.address, KEY, summaries(tasks))
    load.start()
    for moment in sorted(chance.sample(range(5, tasks - 5), kills)):
        until(lambda moment=moment: len(load.accepted) >= moment)
        time.sleep(chance.random() * 0.05)
        service.kill()
        service = serve(data_dir=service.data_dir, **environ)
    load.join()
    until(lambda: complete(sink, load.accepted))
    Webhook(secret).verify(sink.asked[-1].body, sink.asked[-1].headers)
    return load.accepted


@requirement("webhooks.at-least-once", "webhooks.order")
@pytest.mark.only("sqlite", reason="the next test is its like")
def test_every_event_is_delivered_through_kills_of_the_service(serve: Callable[..., Service], sink: Sink) -> None:
    accepted = killed(serve, sink, TASKS, KILLS)
    assert len(accepted) == TASKS
    assert set(sink.tasks) == set(accepted)
    for events in sink.tasks.values():
        assert len(events["task.submitted"]) == len(events["task.completed"]) == 1, "one id, however often it came"
    assert in_order(sink)


@pytest.mark.slow
@requirement("webhooks.at-least-once", "webhooks.several-processes")
@pytest.mark.only("postgresql", reason="the test before is its like")
def test_every_event_is_delivered_through_a_kill_on_postgresql_too(serve: Callable[..., Service], sink: Sink) -> None:
    """What was under way at a kill comes back when its lease ends: other processes may live."""
    accepted = killed(serve, sink, 60, 1, **SHORT_LEASE)
    assert set(sink.tasks) == set(accepted)
    assert in_order(sink)


@requirement("webhooks.at-least-once")
def test_a_delivery_that_a_kill_kept_from_being_recorded_comes_again_with_its_id(serve: Callable[..., Service]) -> None:
    """The receiver has the request, and the service dies before it has the response."""
    answers = threading.Event()

    def hold(asked: Asked, before: int) -> Answer:
        if before == 0:
            answers.wait(60)
        return Answer(204, b"")

    environ = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_MEMORY": "0", **SHORT_LEASE}
    with serving(hold) as (url, asked):
        service = serve(**environ)
        with service.client() as client:
            body = {"url": url, "events": ["task.submitted"]}
            hook = client.post("/api/v1/webhooks", json=body).raise_for_status().json()
            register(service, "ann", capabilities=["echo"])
            task = {"id": "t1", "type": "echo", "input": "x", "required_capabilities": ["echo"]}
            client.post("/api/v1/tasks", json=task).raise_for_status()
        until(lambda: asked)
        service.kill()
        answers.set()
        again = serve(data_dir=service.data_dir, **environ)
        with again.client() as client:
            path = f"/api/v1/webhooks/{hook['id']}/deliveries"
            until(lambda: [d for d in client.get(path).json()["deliveries"] if d["status"] == "delivered"])
    assert len(asked) >= 2
    assert len({(request.headers["webhook-id"], request.body) for request in asked}) == 1
    for request in asked:
        Webhook(hook["secret"]).verify(request.body, request.headers)


@requirement("webhooks.several-processes")
@pytest.mark.only("postgresql", reason="a SQLite file has one service")
def test_two_gateways_on_one_database_deliver_each_event_once(
    serve: Callable[..., Service], sink: Sink, tmp_path: Path
) -> None:
    environ = {
        "SERVICE_OUTBOUND_ALLOW": "127.0.0.1",
        "SERVICE_MEMORY": "0",
        "SERVICE_MASTER_KEY": "one for both of them",
    }
    one = serve(**environ)
    # Before the other one starts: a gateway that runs learns of a new webhook within a second.
    subscribe(one, sink.url)
    two = serve(data_dir=tmp_path / "second", SERVICE_DATABASE_URL=str(one.database), **environ)
    loads = [Load(service.address, KEY, summaries(60, prefix)) for service, prefix in ((one, "a"), (two, "b"))]
    for load in loads:
        load.start()
    for load in loads:
        load.join()
    accepted = [task for load in loads for task in load.accepted]
    until(lambda: complete(sink, accepted))
    assert len(sink.got) == len({(task, event) for task, event, _ in sink.got}) == len(accepted) * len(EVENTS)
    with httpx.Client(base_url=one.address, headers={"X-API-Key": KEY}) as client:
        assert client.get("/api/v1/webhooks").json()["total"] == 1
