"""kill -9 while messages are carried out: each that was accepted is answered, and has its effect once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from tests.conftest import Service
from tests.databases import thorough
from tests.faults.checker import check
from tests.patience import PATIENCE_SECONDS, until
from tests.ports import free_port
from tests.requirements import requirement
from tests.service import SHORT_LEASE

EACH, KILLS = (120, 6) if thorough() else (30, 3)
TEXT = "Agents do tasks. Stentor routes each task. It records why it did."
pytestmark = pytest.mark.fault


def message(zone: str, action: str, body: dict[str, Any], mode: str = "direct") -> dict[str, Any]:
    header = {"mode": mode, "context": "c", "priority": "normal", "actionType": action, "targetZone": zone}
    if zone == "kernel":
        header["specialNotes"] = "capability=summarize"
    return {"header": header, "payload": {"content": json.dumps(body)}}


def messages(count: int) -> list[dict[str, Any]]:
    """For each number a task, an agent, and a note."""
    found = []
    for n in range(count):
        task = {"type": "summarize", "input": f"{n}. {TEXT}"}
        found.append(message("kernel", "execute", {"task": task}, "async" if n % 2 else "direct"))
        found.append(message("registry", "register", {"name": f"agent-{n}"}))
        found.append(message("memory", "create", {"path": f"N/{n}.md", "content": f"note {n}\n"}))
    return found


@dataclass
class Senders:
    """They send each message, with a key of its own, until it is accepted."""

    address: str
    key: str
    bodies: list[dict[str, Any]]
    accepted: dict[int, str] = field(default_factory=dict)

    def start(self) -> None:
        self._left = list(enumerate(self.bodies))[::-1]
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(3)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        assert len(self.accepted) == len(self.bodies)

    def _run(self) -> None:
        with httpx.Client(base_url=self.address, headers={"X-API-Key": self.key}, timeout=200) as client:
            while self._left:
                try:
                    number, body = self._left.pop()
                except IndexError:
                    return
                while number not in self.accepted:
                    self._send(client, number, body)

    def _send(self, client: httpx.Client, number: int, body: dict[str, Any]) -> None:
        try:
            answer = client.post("/api/v1/atp/send", json=body, headers={"Idempotency-Key": f"{self.address}-{number}"})
        except httpx.TransportError:
            time.sleep(0.02)
            return
        assert answer.status_code in (202, 503), answer.text
        if answer.status_code == 202:
            self.accepted[number] = answer.json()["messageId"]


def responses(
    client: httpx.Client, accepted: dict[int, str], seconds: float = PATIENCE_SECONDS
) -> dict[int, dict[str, Any]]:
    """The final response to each message."""
    found: dict[int, dict[str, Any]] = {}
    until = time.monotonic() + seconds
    while len(found) < len(accepted):
        assert time.monotonic() < until, f"{len(accepted) - len(found)} messages are not answered"
        for number in accepted.keys() - found.keys():
            answer = client.get(f"/api/v1/atp/response/{accepted[number]}")
            if answer.status_code == 200 and answer.json()["data"]["status"] in ("completed", "failed"):
                found[number] = answer.json()["data"]
        time.sleep(0.02)
    return found


def killed_while_sending(serve: Callable[..., Service], kills: int, senders: Senders, **environ: str) -> Service:
    """Sends all, and kills the service at random moments meanwhile; answers the last one."""
    service = serve(**environ)
    chance = random.Random()
    senders.address, senders.key = service.address, service.key
    senders.start()
    for moment in sorted(chance.sample(range(5, len(senders.bodies) - 5), kills)):
        until(lambda moment=moment: len(senders.accepted) >= moment)
        time.sleep(chance.random() * 0.05)
        service.kill()
        service = serve(data_dir=service.data_dir, **environ)
    senders.join()
    return service


def effects(client: httpx.Client, count: int) -> None:
    """Every effect of `messages` is there, and once."""
    agents = client.get("/api/v1/registry/agents", params={"limit": 1000}).json()["agents"]
    names = Counter(agent["name"] for agent in agents if agent["name"].startswith("agent-"))
    assert names == {f"agent-{n}": 1 for n in range(count)}
    assert client.get("/api/v1/tasks", params={"status": "completed", "limit": 1}).json()["total"] == count
    assert client.get("/api/v1/tasks", params={"limit": 1}).json()["total"] == count
    for n in range(count):
        # A write that a kill interrupted between its record and its file is finished when the lease has ended.
        assert until(partial(note, client, n))["content"] == f"note {n}\n"


def note(client: httpx.Client, n: int) -> Any:
    """The document, None as long as there is none."""
    return client.get("/api/v1/memory/read/exact", params={"path": f"N/{n}.md"}).json()["document"]


@requirement("atp.carried-out-once")
@pytest.mark.only("sqlite", reason="the next test is its like")
def test_messages_survive_kills_and_have_their_effect_once(serve: Callable[..., Service]) -> None:
    environ = {"SERVICE_GATEWAY_PORT": str(free_port()), "SERVICE_EMBEDDING_MODEL": "none"}
    senders = Senders("", "", messages(EACH))
    service = killed_while_sending(serve, KILLS, senders, SERVICE_TASK_MAX_ATTEMPTS="100", **environ)
    with service.client() as client:
        answers = responses(client, senders.accepted)
        assert [answer for answer in answers.values() if answer["status"] != "completed"] == []
        effects(client, EACH)
        assert client.get("/api/v1/atp/queue").json()["data"]["depth"] == 0
    service.kill()
    assert check(service.database) == []


@pytest.mark.slow
@requirement("atp.carried-out-once")
@pytest.mark.only("postgresql", reason="the test before is its like")
def test_messages_survive_kills_on_postgresql_too(serve: Callable[..., Service]) -> None:
    """What was in hand at a kill comes back when its lease ends: other processes may live."""
    environ = {"SERVICE_GATEWAY_PORT": str(free_port()), "SERVICE_EMBEDDING_MODEL": "none", **SHORT_LEASE}
    senders = Senders("", "", messages(20))
    service = killed_while_sending(serve, 1, senders, **environ)
    with service.client() as client:
        answers = responses(client, senders.accepted)
        assert [answer for answer in answers.values() if answer["status"] != "completed"] == []
        effects(client, 20)
    service.kill()
    assert check(service.database) == []
