"""The worker against a service of a few lines: what it asks for, what it reports, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from worker_service import SOON, Reply, Service, serving

from stentor_worker import Failed, ProviderFailed, Result, ServiceError, Task, TaskCancelled, Worker


def run_once(handler: Callable[[Task], Any], reply: Callable[[str], Reply] | None = None) -> list[Any]:
    """Run a worker for one task; return its reports as (task id, verb, body)."""
    with serving(Service(tasks=1)) as service:
        if reply is not None:
            service.reply = reply
        worker = Worker(service.url, "key", "agent", concurrency=1)
        worker.handler(handler)
        running = threading.Thread(target=worker.run)
        running.start()
        assert service.wait_until(lambda: any(verb in ("complete", "fail") for _, verb, _ in service.reports))
        worker.stop()
        running.join(SOON)
        assert not running.is_alive()
        return service.reports


def fail(error: Exception) -> Callable[[Task], Any]:
    def handler(task: Task) -> Any:
        raise error

    return handler


async def answer_later(task: Task) -> str:
    return f"{task.input}!"


@pytest.mark.parametrize(
    ("handler", "verb", "body"),
    [
        (lambda task: {"words": 3}, "complete", {"result": {"words": 3}}),
        (answer_later, "complete", {"result": "x!"}),
        (
            lambda task: Result("ok", performance=0.8, cost=0.02),
            "complete",
            {"result": "ok", "degraded": False, "performance": 0.8, "cost": 0.02},
        ),
        (
            fail(Failed("no source", "NO_SOURCE")),
            "fail",
            {"error": {"code": "NO_SOURCE", "message": "no source"}, "outcome_class": "agent_failure"},
        ),
        (
            fail(ProviderFailed("quota")),
            "fail",
            {"error": {"code": "AGENT_ERROR", "message": "quota"}, "outcome_class": "provider_failure"},
        ),
        (fail(KeyError("x")), "fail", {"error": {"code": "HANDLER_FAILED", "message": "KeyError: 'x'"}}),
    ],
)
def test_what_a_handler_returns_or_raises_is_reported(
    handler: Callable[[Task], Any], verb: str, body: dict[str, Any]
) -> None:
    assert run_once(handler) == [("t1", verb, {"epoch": 1, **body})]


def test_output_is_streamed_before_the_result() -> None:
    def handler(task: Task) -> str:
        task.emit("a")
        task.emit("b")
        return "ab"

    *streamed, last = run_once(handler)
    assert "".join(token for _, _, body in streamed for token in body["tokens"]) == "ab"
    assert {verb for _, verb, _ in streamed} == {"tokens"}
    assert last == ("t1", "complete", {"epoch": 1, "result": "ab"})


def test_a_handler_notices_that_the_lease_is_lost() -> None:
    with serving(Service(tasks=1)) as service:
        service.reply = lambda verb: (200, {}) if verb == "claims" else (409, {"error": {"code": "LEASE_LOST"}})
        worker = Worker(service.url, "key", "agent")
        noticed: list[bool] = []

        @worker.handler
        def work(task: Task) -> str:
            with pytest.raises(TaskCancelled):
                task.emit("a")
            noticed.append(task.cancelled)
            worker.stop()
            return "too late"

        worker.run()
        assert noticed == [True]
        assert [verb for _, verb, _ in service.reports] == ["tokens"], "the result of a lost task is not reported"


def test_an_outage_is_waited_out() -> None:
    answers = iter([503, 429, 200])

    def reply(verb: str) -> Reply:
        return (next(answers, 200), {}) if verb == "claims" else (200, {})

    assert run_once(lambda task: 1, reply) == [("t1", "complete", {"epoch": 1, "result": 1})]


def test_a_key_that_is_not_accepted_ends_the_worker() -> None:
    with serving(Service(tasks=0)) as service:
        service.reply = lambda verb: (401, {"error": "Unauthorized", "code": "UNAUTHORIZED", "message": "no such key"})
        worker = Worker(service.url, "wrong", "agent")
        with pytest.raises(ServiceError, match="UNAUTHORIZED") as refused:
            worker.run()
        assert refused.value.status == 401


def test_the_next_task_is_fetched_while_the_last_one_is_reported() -> None:
    with serving(Service(tasks=5)) as service:
        held = threading.Event()

        def reply(verb: str) -> Reply:
            assert verb == "claims" or held.wait(SOON)
            return 200, {}

        service.reply = reply
        worker = Worker(service.url, "key", "agent", concurrency=1)
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
        assert service.wait_until(lambda: service.claimed >= 2), "the first report is still held"
        while len(done) < 2:
            assert running.is_alive()
        assert not third.wait(0.5), "with one slot, one report at a time may be open"
        assert (service.claimed, service.reports) == (2, [])
        held.set()
        assert third.wait(SOON)
        running.join(SOON)
        assert not running.is_alive()
        assert sorted(task_id for task_id, _, _ in service.reports)[:3] == ["t1", "t2", "t3"]
