"""Limits by key when many workers claim at two gateways at the same time."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.processes.conftest import Start
from tests.requirements import requirement
from tests.service import Service

LIMITS = {"a": 1, "b": 2, "c": 3}
TASKS, CLAIMERS, PATIENCE_SECONDS = 90, 8, 200


class Observer:
    """Counts what workers hold: from the response of the claim until they send the end, so never too much."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.held: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ended: list[str] = []

    def begin(self, key: str) -> None:
        with self._lock:
            self.held[key] += 1
            self.most[key] = max(self.most[key], self.held[key])

    def end(self, key: str, task_id: str) -> None:
        with self._lock:
            self.held[key] -= 1
            self.ended.append(task_id)

    def violations(self) -> list[str]:
        return [f"{key}: {most} at a time" for key, most in self.most.items() if most > LIMITS[key]]


def work(gateway: Service, agent: str, observer: Observer, seed: int) -> None:
    chance, until = random.Random(seed), time.monotonic() + PATIENCE_SECONDS
    with gateway.client() as api:
        while len(observer.ended) < TASKS and time.monotonic() < until:
            body = {"max": chance.randint(1, 3), "wait_seconds": 0.2}
            claimed = api.post(f"/api/v1/agents/{agent}/claims", json=body).raise_for_status().json()["tasks"]
            for task in claimed:
                observer.begin(task["input"])
            for task in claimed:
                time.sleep(chance.random() * 0.03)
                observer.end(task["input"], task["task_id"])
                body = {"epoch": task["epoch"], "result": 1}
                api.post(f"/api/v1/tasks/{task['task_id']}/complete", json=body).raise_for_status()


@pytest.mark.fault
@requirement("limits.concurrency")
def test_claims_at_two_gateways_never_exceed_a_limit_and_every_task_runs_once(start: Start) -> None:
    gateways, observer = (start("gateway"), start("gateway")), Observer()
    with gateways[0].client() as api:
        agent = api.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).json()["agent_id"]
        for number in range(TASKS):
            key = "abc"[number % 3]
            limit = {"key": key, "max": LIMITS[key]}
            body = {"type": "echo", "input": key, "required_capabilities": ["echo"], "limit": limit}
            api.post("/api/v1/tasks", json=body).raise_for_status()
    with ThreadPoolExecutor(CLAIMERS) as pool:
        for done in [pool.submit(work, gateways[n % 2], agent, observer, n) for n in range(CLAIMERS)]:
            done.result()
    assert observer.violations() == []
    assert len(observer.ended) == len(set(observer.ended)) == TASKS


def test_the_observer_finds_one_task_too_many() -> None:
    observer = Observer()
    for _ in range(2):
        observer.begin("a")
    assert observer.violations() == ["a: 2 at a time"]
