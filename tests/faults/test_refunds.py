"""An effect happens once: refunds, whose worker is killed with SIGKILL after it sent each and before it recorded it.

STENTOR_REFUNDS=1000 pays that many in each test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.databases import thorough
from tests.faults.load import ENDED
from tests.faults.refunds import Bank, run_bank
from tests.patience import until
from tests.requirements import requirement
from tests.service import Service

REFUNDS = int(os.environ.get("STENTOR_REFUNDS", "64" if thorough() else "2"))
ONE = pytest.mark.only("sqlite", reason="where the bank takes keys both are tried")
pytestmark = [pytest.mark.fault, pytest.mark.timeout(1200 + 5 * REFUNDS)]
Start = Callable[..., Service]


class Crew:
    """Workers of which each is replaced when it dies."""

    def __init__(self, command: list[str]) -> None:
        self.command, self.deaths = command, -1
        self.process: subprocess.Popen[str] | None = None

    def tend(self) -> None:
        if self.process is None or self.process.poll() is not None:
            self.deaths += 1
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
            )

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextmanager
def refunded(serve: Start, mode: str) -> Iterator[tuple[Bank, httpx.Client, list[dict[str, Any]], Crew]]:
    """Pay all refunds with workers that are killed in each; yield the bank and the tasks that ended."""
    service = serve(SERVICE_TASK_MAX_ATTEMPTS="100", SERVICE_BUILTIN_AGENTS="0", SERVICE_MEMORY="0")
    with run_bank(Bank(takes_keys=mode == "keys")) as bank, service.client() as api:
        crew = Crew([sys.executable, "-m", "tests.faults.refunds", service.address, service.key, bank.address, mode])
        crew.tend()
        try:
            until(lambda: api.get("/api/v1/registry/agents").json()["agents"])
            ids = [submit(api, f"refund-{mode}", f"order {n}") for n in range(REFUNDS)]

            def ended() -> list[dict[str, Any]]:
                crew.tend()
                done = sum(
                    api.get("/api/v1/tasks", params={"status": status, "limit": 1}).json()["total"] for status in ENDED
                )
                return [] if done < REFUNDS else [api.get(f"/api/v1/tasks/{task_id}").json() for task_id in ids]

            yield bank, api, until(ended, seconds=60 + 5 * REFUNDS), crew
        finally:
            crew.end()


def submit(api: httpx.Client, capability: str, order: str) -> str:
    body = {"type": "refund", "input": order, "required_capabilities": [capability]}
    answer = api.post("/api/v1/tasks", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["task_id"])


def list_held(api: httpx.Client) -> Iterator[str]:
    """Yield the tasks of all effects whose outcome is unknown."""
    page: dict[str, Any] = {"next_cursor": ""}
    while page["next_cursor"] is not None:
        params = {"cursor": page["next_cursor"]} if page["next_cursor"] else {}
        page = api.get("/api/v1/decisions", params=params).json()
        yield from (step["task_id"] for step in page["steps"])


@requirement("steps.effects-once")
@pytest.mark.parametrize("mode", ["keys", pytest.param("ask", marks=ONE)])
def test_no_refund_is_doubled_or_lost_where_the_bank_takes_keys_or_can_be_asked(serve: Start, mode: str) -> None:
    with refunded(serve, mode) as (bank, _, tasks, crew):
        assert {task["status"] for task in tasks} == {"completed"}
        assert len(bank.killed) == REFUNDS
        assert bank.doubled == []
        assert sum(bank.paid.values()) == REFUNDS
        assert crew.deaths > 0


@ONE
@requirement("steps.effects-once")
def test_where_nothing_can_be_known_each_refund_is_held_and_none_is_repeated(serve: Start) -> None:
    with refunded(serve, "blind") as (bank, api, tasks, _):
        assert {task["error"]["code"] for task in tasks if task["status"] == "failed"} == {"EFFECT_UNKNOWN"}
        assert bank.doubled == []
        # What was sent and not recorded is held, so is what was about to be sent when another refund killed its worker.
        held = set(list_held(api))
        failed = {task["task_id"] for task in tasks if task["status"] == "failed"}
        assert held == failed
        assert {task["status"] for task in tasks} <= {"failed", "completed"}
        assert len(failed) > 0


@ONE
def test_the_checker_finds_the_doubles_of_a_worker_that_uses_no_effect(serve: Start) -> None:
    with refunded(serve, "planted") as (bank, _, tasks, _):
        assert {task["status"] for task in tasks} == {"completed"}
        assert len(bank.doubled) >= REFUNDS / 2
