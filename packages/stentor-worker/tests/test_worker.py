"""The worker with a minimal service: its claims, its reports and their order."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from worker_service import TIMEOUT_S, Reply, Service, run_once, run_service

from stentor_worker import Failed, ProviderFailed, Result, ServiceError, Task, TaskCancelled, Worker


def idle_worker(service: Service, key: str) -> Worker:
    worker = Worker(service.url, key, "agent")
    worker.handler(lambda task: 1)
    return worker


def test_a_text_in_place_of_a_list_is_refused_and_not_taken_apart() -> None:
    _, _, body = run_once(lambda task: task.ask("Go on?", "yes"))[-1]
    assert body["error"]["message"].startswith("TypeError: options must be a list")
    _, _, body = run_once(lambda task: task.child("x", 1, capabilities="slug"))[-1]
    assert body["error"]["message"].startswith("TypeError: capabilities must be a list")


@pytest.mark.parametrize(
    ("wait", "message"),
    [
        (lambda task: task.gather([]), "TypeError: Pass children one by one"),
        (lambda task: task.sleep(float("inf")), "ValueError: A task cannot wait inf s."),
        (lambda task: task.wait_for("paid", timeout=float("inf")), "ValueError: A task cannot wait inf s."),
    ],
)
def test_a_wait_that_cannot_be_is_an_error_that_names_it(wait: Callable[[Task], Any], message: str) -> None:
    _, verb, body = run_once(wait)[-1]
    assert verb == "fail"
    assert body["error"]["message"].startswith(message)


def test_a_second_handler_is_refused() -> None:
    worker = Worker("http://127.0.0.1:9", "key", "agent")
    worker.handler(lambda task: 1)
    with pytest.raises(ValueError, match="A worker has one handler"):
        worker.handler(lambda task: 2)


def test_a_worker_without_a_handler_does_not_run() -> None:
    with run_service(Service(tasks=1)) as service:
        with pytest.raises(ValueError, match="has no handler"):
            Worker(service.url, "key", "agent").run()
        assert service.requests == []


class _Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class _Codeless(Failed):
    def __init__(self) -> None:
        """Without that of its base, as a program may forget it."""


def raise_in_handler(error: BaseException) -> Callable[[Task], Any]:
    def handler(task: Task) -> Any:
        raise error

    return handler


async def async_handler(task: Task) -> str:
    return f"{task.input}!"


@pytest.mark.parametrize(
    ("handler", "verb", "body"),
    [
        (lambda task: {"words": 3}, "complete", {"result": {"words": 3}}),
        (async_handler, "complete", {"result": "x!"}),
        (
            lambda task: Result("ok", performance=0.8, cost=0.02),
            "complete",
            {"result": "ok", "degraded": False, "performance": 0.8, "cost": 0.02},
        ),
        (
            raise_in_handler(Failed("no source", "NO_SOURCE")),
            "fail",
            {"error": {"code": "NO_SOURCE", "message": "no source"}, "outcome_class": "agent_failure"},
        ),
        (
            raise_in_handler(ProviderFailed("quota")),
            "fail",
            {"error": {"code": "AGENT_ERROR", "message": "quota"}, "outcome_class": "provider_failure"},
        ),
        (
            raise_in_handler(Failed("no source", cost=0.02)),
            "fail",
            {
                "error": {"code": "AGENT_ERROR", "message": "no source"},
                "outcome_class": "agent_failure",
                "cost": 0.02,
            },
        ),
        (raise_in_handler(KeyError("x")), "fail", {"error": {"code": "HANDLER_FAILED", "message": "KeyError: 'x'"}}),
    ],
)
def test_result_or_error_of_the_handler_is_reported(
    handler: Callable[[Task], Any], verb: str, body: dict[str, Any]
) -> None:
    assert run_once(handler) == [("t1", verb, {"epoch": 1, **body})]


def ask(task: Task) -> Any:
    return task.ask("ok?")


@pytest.mark.parametrize(("end", "verbs"), [(ask, ["waits", "suspend"]), (raise_in_handler(Failed("no")), ["fail"])])
def test_text_emitted_just_before_a_wait_or_an_error_is_sent(end: Callable[[Task], Any], verbs: list[str]) -> None:
    def handler(task: Task) -> Any:
        task._sent_at = float("inf")
        task.emit("first ")
        task.emit("second")
        return end(task)

    reports = run_once(handler, lambda verb: (200, {"state": "started"}))
    assert [verb for _, verb, _ in reports if verb != "tokens"] == verbs
    assert [body["tokens"] for _, verb, body in reports[:-1] if verb == "tokens"] == [["first second"]]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("x\0y"), "HANDLER_FAILED", "ValueError: x\N{REPLACEMENT CHARACTER}y"),
        (OSError("no file \udcff"), "HANDLER_FAILED", "OSError: no file ?"),
        (_Wordless(), "HANDLER_FAILED", "_Wordless: its text cannot be read"),
        (Failed("a\0b", "a\nb"), "a?b", "a\N{REPLACEMENT CHARACTER}b"),
        (Failed("", ""), "AGENT_ERROR", "no reason given"),
        (Failed("gone", 404), "404", "gone"),  # type: ignore[arg-type]
        (_Codeless(), "AGENT_ERROR", "no reason given"),
        (SystemExit(3), "HANDLER_FAILED", "SystemExit: 3"),
        (KeyboardInterrupt(), "HANDLER_FAILED", "KeyboardInterrupt"),
        (GeneratorExit(), "HANDLER_FAILED", "GeneratorExit"),
    ],
)
def test_any_error_of_a_handler_is_reported_as_a_text_that_the_service_accepts(
    error: BaseException, code: str, message: str
) -> None:
    _, verb, body = run_once(raise_in_handler(error))[-1]
    assert (verb, body["error"]) == ("fail", {"code": code, "message": message})


@pytest.mark.parametrize(
    "handler",
    [
        raise_in_handler(type("Odd", (Failed,), {"outcome_class": "my own"})("gone")),
        lambda task: float("nan"),
        lambda task: {"a lock": threading.Lock()},
        lambda task: "half of a pair \udcff",
        lambda task: functools.reduce(lambda inner, _: [inner], range(100_000), []),
    ],
    ids=["outcome class", "not a number", "object", "surrogate", "depth"],
)
def test_an_end_that_cannot_be_reported_is_reported_as_a_failure(handler: Callable[[Task], Any]) -> None:
    _, verb, body = run_once(handler)[-1]
    assert (verb, body["error"]["code"]) == ("fail", "REPORT_REJECTED")


@pytest.mark.parametrize("cost", [float("nan"), Decimal("0.02")], ids=["not a number", "decimal"])
def test_a_cost_that_cannot_be_reported_does_not_hide_why_the_task_failed(cost: Any) -> None:
    _, verb, body = run_once(raise_in_handler(ProviderFailed("quota", cost=cost)))[-1]
    error = {"code": "AGENT_ERROR", "message": "quota"}
    assert (verb, body) == ("fail", {"epoch": 1, "error": error, "outcome_class": "provider_failure"})


async def _forget_await() -> int:
    return 1


@pytest.mark.filterwarnings("ignore:coroutine")
def test_the_log_says_why_a_task_failed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stentor_worker")

    async def handler(task: Task) -> Any:
        return {"sum": _forget_await()}

    run_once(handler)
    run_once(raise_in_handler(Failed("no money", "POOR")))
    text = "The result could not be reported: Object of type coroutine is not JSON serializable (is an await missing?)"
    assert f"worker: report rejected task_id=t1 error={text}" in caplog.messages
    assert "worker: handler failed task_id=t1 error=POOR: no money" in caplog.messages


def test_a_number_that_json_cannot_have_is_named_in_the_failure() -> None:
    _, _, body = run_once(lambda task: {"scores": [float("nan")]})[-1]
    assert "float values are not JSON compliant" in body["error"]["message"]


def test_lost_lease_cancels_the_task_in_the_handler_and_is_not_renewed() -> None:
    with run_service(Service(tasks=1)) as service:
        service.reply = lambda verb: (200, {}) if verb == "claims" else (409, {"error": {"code": "LEASE_LOST"}})
        worker = Worker(service.url, "key", "agent")
        cancelled_flags: list[bool] = []

        @worker.handler
        def work(task: Task) -> str:
            with pytest.raises(TaskCancelled):
                task.emit("a")
            cancelled_flags.append(task.cancelled)
            task.heartbeat(30)
            worker.stop()
            return "too late"

        worker.run()
        assert cancelled_flags == [True]
        assert [verb for _, verb, _ in service.reports] == ["tokens"], "no lease is renewed, no result reported"


def test_a_worker_for_more_tasks_than_one_claim_may_have_claims_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker("http://127.0.0.1:9", "key", "agent", concurrency=150)
    claims: list[int] = []
    claim = dict.fromkeys(("task_id", "epoch", "type", "input", "timeout_seconds", "idempotency_key"), "x")

    def poll(body: dict[str, Any]) -> list[Any]:
        claims.append(body["max"])
        return [{**claim, "metadata": {}}] * claims[-1]

    monkeypatch.setattr(worker, "_poll", poll)
    assert [len(worker._claim()) for _ in range(2)] == claims == [100, 50]


def test_worker_retries_claims_after_an_outage() -> None:
    statuses = iter([503, 429, 200])

    def reply(verb: str) -> Reply:
        return (next(statuses, 200), {}) if verb == "claims" else (200, {})

    assert run_once(lambda task: 1, reply) == [("t1", "complete", {"epoch": 1, "result": 1})]


def test_rejected_key_ends_the_program_with_a_line_and_a_thread_with_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with run_service(Service(tasks=0)) as service:
        service.reply = lambda verb: (401, {"error": "Invalid API key", "message": "no such key"})
        with pytest.raises(SystemExit) as exit_:
            idle_worker(service, "wrong").run()
        assert exit_.value.code == 1
        assert caplog.messages == [f"worker: rejected by {service.url} error=UNAUTHORIZED: no such key"]
        with ThreadPoolExecutor(1) as pool, pytest.raises(ServiceError) as error:
            pool.submit(idle_worker(service, "wrong").run).result(TIMEOUT_S)
        assert error.value.status == 401


def test_next_task_is_claimed_while_a_report_is_pending() -> None:
    with run_service(Service(tasks=5)) as service:
        release_reports = threading.Event()

        def reply(verb: str) -> Reply:
            assert verb == "claims" or release_reports.wait(TIMEOUT_S)
            return 200, {}

        service.reply = reply
        worker = Worker(service.url, "key", "agent", concurrency=1)
        finished: list[str] = []
        second_finished, third_started = threading.Event(), threading.Event()

        @worker.handler
        def work(task: Task) -> str:
            finished.append(task.id)
            if len(finished) == 2:
                second_finished.set()
            if len(finished) == 3:
                worker.stop()
                third_started.set()
            return "done"

        thread = threading.Thread(target=worker.run)
        thread.start()
        assert service.wait_until(lambda: service.claimed >= 2), "the first report is still held"
        assert second_finished.wait(TIMEOUT_S)
        assert not third_started.wait(0.5), "with one slot, one report at a time may be open"
        assert (service.claimed, service.reports) == (2, [])
        release_reports.set()
        assert third_started.wait(TIMEOUT_S)
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert sorted(task_id for task_id, _, _ in service.reports)[:3] == ["t1", "t2", "t3"]


def run_until_reported(service: Service, worker: Worker) -> None:
    """Run a worker in a thread until it has reported its first task, and stop it."""
    worker.handler(lambda task: 1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert service.wait_until(lambda: bool(service.reports))
    worker.stop()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_worker_logs_that_it_is_connected_and_what_it_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stentor_worker")
    with run_service(Service(tasks=1)) as service:
        run_until_reported(service, Worker(service.url, "key", "agent", concurrency=1))
        assert caplog.messages == [
            f"worker: connected to {service.url} as counter; waiting for tasks (count, sum)",
            "worker: task reported task_id=t1 outcome=complete",
        ]


@pytest.mark.parametrize("reply", [(200, {}), (404, {})], ids=["new", "old"])
def test_a_worker_that_ends_says_so_last_and_ends_with_an_older_service_too(reply: Reply) -> None:
    with run_service(Service(tasks=1)) as service:
        service.reply = lambda verb: reply if verb == "leave" else (200, {})
        run_until_reported(service, Worker(service.url, "key", "counter", concurrency=1))
        assert service.requests[-1] == "POST /api/v1/agents/agent/leave"


def test_a_heartbeat_without_a_response_is_given_up_and_not_repeated_before_the_next() -> None:
    responded = threading.Event()

    def reply(verb: str) -> Reply:
        if verb == "heartbeat":
            responded.wait(TIMEOUT_S)
        return 200, {}

    def handler(task: Task) -> str:
        task.heartbeat(30, timeout_s=0.1)
        responded.set()
        return "done"

    reports = run_once(handler, reply)
    assert sorted(verb for _, verb, _ in reports) == ["complete", "heartbeat"]


@pytest.mark.parametrize(("status", "body"), [(400, [1]), (400, "no"), (403, None)])
def test_an_error_of_another_program_is_a_service_error(status: int, body: Any) -> None:
    with run_service(Service(tasks=0)) as service:
        service.reply = lambda verb: (status, body)
        with ThreadPoolExecutor(1) as pool, pytest.raises(ServiceError) as error:
            pool.submit(idle_worker(service, "key").run).result(TIMEOUT_S)
        assert (error.value.status, error.value.code) == (status, f"HTTP_{status}")
        assert "the address of Stentor's gateway" in str(error.value)
