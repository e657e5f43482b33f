"""The worker while the service is down: what it repeats, what it gives up, and how it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from worker_service import TIMEOUT_S, Reply, Service, run_service

from stentor_worker import Task, Worker

DOWN: Reply = (503, {"error": {"code": "SERVICE_UNAVAILABLE", "message": "down"}})
UP: Reply = (200, {"recorded": True})


def stop_in_handler(handler: Callable[[Task], Any], reply: Callable[[str], Reply]) -> list[Any]:
    """Run a worker that is stopped as its only task begins; return its reports as (task id, verb, body)."""
    with run_service(Service(tasks=1)) as service:
        service.reply = reply
        worker = Worker(service.url, "key", "agent", concurrency=1)

        @worker.handler
        def work(task: Task) -> Any:
            worker.stop()
            return handler(task)

        thread = threading.Thread(target=worker.run)
        thread.start()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        return service.reports


def test_a_worker_that_stops_waits_for_a_service_that_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor_worker.client.LAST_PAUSE", 0.01)
    tries = itertools.count(1)
    reports = stop_in_handler(lambda task: 7, lambda verb: UP if verb != "complete" or next(tries) > 9 else DOWN)
    assert [(verb, body["result"]) for _, verb, body in reports] == [("complete", 7)] * 10


def test_a_worker_that_stops_pauses_between_its_last_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("stentor_worker.client.time.sleep", pauses.append)
    tries = itertools.count(1)
    stop_in_handler(lambda task: 7, lambda verb: UP if verb != "complete" or next(tries) > 6 else DOWN)
    assert len(pauses) == 6
    assert pauses == sorted(pauses)
    assert pauses[0] > 0.05
    assert 1.5 < pauses[-1] <= 2


def test_a_worker_that_stops_gives_a_service_up_once_for_all_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor_worker.client.LAST_SECONDS", 0.01)

    def handler(task: Task) -> str:
        for _ in range(50):
            task.emit("text")
            task.flush()
        return "done"

    *streamed, last = stop_in_handler(handler, lambda verb: UP if verb == "claims" else DOWN)
    assert 50 < len(streamed) < 55, "one try for each but the first"
    assert last == ("t1", "complete", {"epoch": 1, "result": "done"}), "what is shown fails no task"


@pytest.mark.parametrize(
    "use_service",
    [lambda task: task.step("pay", lambda: 1), lambda task: task.start_child("count", "x"), lambda task: task.sleep(9)],
    ids=["step", "child", "wait"],
)
def test_an_outage_as_the_worker_stops_fails_neither_the_task_nor_its_step(
    use_service: Callable[[Task], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor_worker.client.LAST_SECONDS", 0.01)
    is_down = True

    def reply(verb: str) -> Reply:
        return DOWN if is_down and verb in ("steps", "tasks", "waits") else UP

    def handler(task: Task) -> str:
        nonlocal is_down
        try:
            use_service(task)
        except Exception:  # noqa: BLE001 - as programs have it
            return "went on without it"
        finally:
            is_down = False
        return "done"

    reports = stop_in_handler(handler, reply)
    assert {verb for _, verb, _ in reports} <= {"steps", "tasks", "waits"}
    assert not any("error" in body for _, _, body in reports)


def test_a_worker_that_is_stopped_during_an_outage_claims_nothing_more() -> None:
    with run_service(Service(tasks=1)) as service:
        asked = threading.Event()

        def reply(verb: str) -> Reply:
            if verb == "claims":
                asked.set()
            return DOWN if not worker._stopping.is_set() else UP

        service.reply = reply
        worker = Worker(service.url, "key", "agent", concurrency=1)
        worker.handler(lambda task: 1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert asked.wait(TIMEOUT_S)
        worker.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert (service.claimed, service.reports) == (0, [])
