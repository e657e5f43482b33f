"""The SDK's worker against a service of a few lines: what it asks for, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from stentor.worker import Task, Worker
from tests.stub import Answer, Asked, serving

SOON = 60
"""Seconds."""


class Service:
    """Hands out one task after the other; keeps the answers to `complete` back until it is told."""

    def __init__(self) -> None:
        self.address = ""
        self.claimed = 0
        self.ended: list[str] = []
        self.held = threading.Event()
        self.changed = threading.Condition()

    def wait_for(self, claimed: int) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.claimed >= claimed, SOON)

    def answer(self, asked: Asked, _: int) -> Answer:
        if not asked.path.endswith("/claims"):
            self.ended.append(asked.path.split("/")[-2])
            assert self.held.wait(SOON)
            return Answer(body={})
        with self.changed:
            self.claimed += 1
            self.changed.notify_all()
        names = ("type", "input", "timeout_seconds", "idempotency_key")
        task = {"task_id": f"t{self.claimed}", "epoch": 1, "metadata": {}, **dict.fromkeys(names, "x")}
        return Answer(body={"tasks": [task]})


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    with serving(made.answer) as (made.address, _):
        yield made
        made.held.set()


def test_the_next_task_is_fetched_while_the_end_of_the_last_one_is_reported(service: Service) -> None:
    worker = Worker(service.address, "key", "agent", concurrency=1)
    done: list[str] = []
    third = threading.Event()

    @worker.handler
    def work(task: Task) -> str:
        done.append(task.id)
        if len(done) == 3:
            worker.stop()
            third.set()
        return "done"

    running = threading.Thread(target=worker.run)
    running.start()
    assert service.wait_for(2), "the report of the first one is under way still"
    while len(done) < 2:
        assert running.is_alive()
    assert not third.wait(0.5), "one report at a time may be under way for one place: a third task would wait with us"
    assert (service.claimed, service.ended) == (2, ["t1"])
    service.held.set()
    assert third.wait(SOON)
    running.join(SOON)
    assert not running.is_alive()
    assert sorted(service.ended)[:3] == ["t1", "t2", "t3"]
