"""What a queued task costs by the number of processes that could take it: statements, claims in vain, wake-ups.

Counts, not times: they are the same on a busy machine. Tasks come one at a time, so that none shares a commit.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Event

from bench.scale.costs.kept import Cost, Costs
from bench.scale.costs.server import Server
from bench.scale.costs.tasks import process
from bench.service import Client, Service
from bench.sizes import Scale

NUMBERS = (1, 2, 4)
"""Processes that could take a task."""
CLAIM = "for update skip locked"
LISTENING = "stentor messages"
_CHANNEL = re.compile(r"\$1 = '\{?([^']*?)\}?'")
INSIDE = {"type": "summarize", "input": "Hello world is here.", "required_capabilities": ["summarize"]}
OUTSIDE = {"type": "x", "input": 1, "required_capabilities": ["outside"]}


@dataclass(frozen=True)
class Counts:
    """For one task: statements of its transactions, claims that found nothing, messages that a process received."""

    statements: float
    vain: float
    wakes: float


def measured(server: Server, folder: Path, scale: Scale) -> Costs:
    count = scale.pick(60, 6)
    costs: Costs = {}
    for number in NUMBERS:
        for name, how, run in (
            ("inside", "run by one of them", _inside),
            ("outside", "claimed at one of them", _outside),
        ):
            found = run(server, folder / f"{name}{number}", number, count)
            method = f"{count} tasks one at a time, sent to a gateway of its own and {how}; processes: {number}"
            costs[f"{name}_statements_{number}"] = Cost(found.statements, "statements", f"{method}; the server's log")
            costs[f"{name}_vain_{number}"] = Cost(found.vain, "claims", f"that found no task; {method}")
            costs[f"{name}_wakes_{number}"] = Cost(found.wakes, "messages", f"received by processes; {method}")
    return costs


def _inside(server: Server, folder: Path, number: int, count: int) -> Counts:
    with _processes(server, folder, number, "worker") as services, services[0].connect() as client:

        def one() -> None:
            task = json.loads(client.send("POST", "/api/v1/tasks", json.dumps(INSIDE).encode()))["task_id"]
            while client.get(f"/api/v1/tasks/{task}")["status"] != "completed":
                time.sleep(0.02)

        return _counted(server, one, count, number)


def _outside(server: Server, folder: Path, number: int, count: int) -> Counts:
    """Each of the processes has one worker of the same agent that waits."""
    with ExitStack() as stack:
        # Before the services, whose end ends the polls of the workers.
        pool = stack.enter_context(ThreadPoolExecutor(number))
        services = stack.enter_context(_processes(server, folder, number, "gateway"))
        client = stack.enter_context(services[0].connect())
        body = {"name": f"outside {number}", "capabilities": ["outside"], "runtime": {"kind": "worker"}}
        agent = json.loads(client.send("POST", "/api/v1/registry/agents", json.dumps(body).encode()))["agent_id"]
        time.sleep(2)  # until all processes know it
        ended = Event()
        for service in services[1:]:
            pool.submit(_work, service.connect(), agent, ended)

        def one() -> None:
            ended.clear()
            client.send("POST", "/api/v1/tasks", json.dumps(OUTSIDE).encode())
            ended.wait(60)

        return _counted(server, one, count, number)


def _work(client: Client, agent: str, ended: Event) -> None:
    """Claims and completes tasks until the service is gone."""
    body = json.dumps({"max": 1, "wait_seconds": 60}).encode()
    with client, suppress(OSError, HTTPException, RuntimeError):
        while True:
            for task in json.loads(client.send("POST", f"/api/v1/agents/{agent}/claims", body))["tasks"]:
                done = json.dumps({"epoch": task["epoch"], "result": 1}).encode()
                client.send("POST", f"/api/v1/tasks/{task['task_id']}/complete", done)
                ended.set()


@contextmanager
def _processes(server: Server, folder: Path, number: int, roles: str) -> Iterator[list[Service]]:
    """A gateway, and `number` processes with the roles beside it."""
    folder.mkdir()
    with ExitStack() as stack:
        first = stack.enter_context(process(server, folder, 0, "gateway"))
        yield [first, *(stack.enter_context(process(server, folder, n, roles)) for n in range(1, number + 1))]


def _counted(server: Server, one: Callable[[], None], count: int, number: int) -> Counts:
    for _ in range(5):  # warm
        one()
    time.sleep(2)
    idle, began = _statements(server, lambda: time.sleep(10)), time.monotonic()

    def all_of_them() -> None:
        for _ in range(count):
            one()
            time.sleep(0.05)

    found = _statements(server, all_of_them)
    background = _count_writing(idle) * (time.monotonic() - began) / 10.3
    claims = sum(CLAIM in text for text in found)
    wakes = sum(_wakes(text, number) for text in server.notified)
    return Counts((_count_writing(found) - background) / count, claims / count - 1, wakes / count)


def _statements(server: Server, run: Callable[[], None]) -> list[str]:
    with server.statements() as found:
        run()
    return found


def _count_writing(found: list[str]) -> int:
    """Without the read-only transactions of polls and of who waits for the end, which have four statements."""
    return len(found) - 4 * sum(text.startswith("begin isolation") for text in found)


def _wakes(parameters: str, others: int) -> int:
    """Messages that processes receive of one statement: those for all of them, and those for one."""
    channels = _CHANNEL.findall(parameters)
    names = channels[0].split(",") if channels else []
    return sum(others if name == "stentor" else 1 for name in names)
