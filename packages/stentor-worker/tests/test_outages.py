"""The worker while the service is down: what it repeats, what it gives up, and how it ends."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from worker_service import TIMEOUT_S, Reply, Service, run_service

from stentor_worker import ServiceError, Task, Worker
from stentor_worker.http.client import MAX_PAGES, Client
from stentor_worker.running import REPEAT_SECONDS
from stentor_worker.worker import _Interrupted

DOWN: Reply = (503, {"error": {"code": "SERVICE_UNAVAILABLE", "message": "down"}})
TIME = "2026-01-01T00:00:00.000000Z"
UP: Reply = (200, {"recorded": True, "kind": "step", "epoch": 1, "started_at": TIME, "ended_at": TIME})
PROXY_ANSWERS: list[Reply] = [
    (200, "maintenance"),
    (302, None),
    (404, "404 page not found"),
    (404, {"status": "error", "code": 404, "message": "Application not found"}),
    (404, {"error": {"code": 404, "message": "not found"}}),
    (521, None),
]
"""Of proxies whose service is down."""


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
    monkeypatch.setattr("stentor_worker.http.client.LAST_PAUSE", 0.01)
    tries = itertools.count(1)
    reports = stop_in_handler(lambda task: 7, lambda verb: UP if verb != "complete" or next(tries) > 9 else DOWN)
    assert [(verb, body["result"]) for _, verb, body in reports] == [("complete", 7)] * 10


def test_a_worker_that_stops_pauses_between_its_last_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("stentor_worker.http.client.time.sleep", pauses.append)
    tries = itertools.count(1)
    stop_in_handler(lambda task: 7, lambda verb: UP if verb != "complete" or next(tries) > 6 else DOWN)
    assert len(pauses) == 6
    assert pauses == sorted(pauses)
    assert pauses[0] > 0.05
    assert 1.5 < pauses[-1] <= 2


def test_a_worker_that_stops_gives_a_service_up_once_for_all_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor_worker.http.client.LAST_SECONDS", 0.01)

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
    monkeypatch.setattr("stentor_worker.http.client.LAST_SECONDS", 0.01)
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


@pytest.mark.parametrize("answer", [(500, {"error": {"code": "INTERNAL"}}), *PROXY_ANSWERS])
def test_an_answer_of_a_service_or_proxy_in_trouble_does_not_end_a_connected_worker(
    answer: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor_worker.worker.RETRY_SECONDS", 0.01)
    answers = iter([answer] * 3)
    with run_service(Service(tasks=1)) as service:
        monkeypatch.setattr(service, "_claim", lambda claim=service._claim: next(answers, None) or claim())
        worker = Worker(service.url, "key", "agent", concurrency=1)
        worker.handler(lambda task: worker.stop())
        thread = threading.Thread(target=worker.run)
        thread.start()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert [verb for _, verb, _ in service.reports] == ["complete"]


@pytest.mark.parametrize("answer", PROXY_ANSWERS)
def test_what_a_proxy_answers_for_a_service_that_is_down_costs_no_result_and_no_step(
    answer: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor_worker.http.client.LAST_PAUSE", 0.01)
    answers = {verb: iter([answer] * 2) for verb in ("heartbeat", "steps", "complete")}
    cancelled: list[bool] = []

    def handler(task: Task) -> Any:
        task.heartbeat(30)
        value = task.step("count", lambda: 7)
        cancelled.append(task.cancelled)
        return value

    reports = stop_in_handler(handler, lambda verb: next(answers.get(verb, iter([])), UP))
    assert [verb for _, verb, _ in reports] == ["heartbeat", *["steps"] * 3, *["complete"] * 3]
    assert reports[-1] == ("t1", "complete", {"epoch": 1, "result": 7})
    assert cancelled == [False]


def test_a_worker_at_an_address_without_the_service_ends() -> None:
    for answer in PROXY_ANSWERS:
        with run_service(Service(tasks=0)) as service, ThreadPoolExecutor(1) as pool:
            service.respond = lambda *_, answer=answer: answer  # type: ignore[method-assign]
            worker = Worker(service.url, "key", "agent")
            worker.handler(lambda task: 1)
            with pytest.raises(ServiceError) as error:
                pool.submit(worker.run).result(TIMEOUT_S)
            assert (error.value.status, error.value.is_foreign) == (answer[0], True)


def test_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("http://127.0.0.1:9", "key", "agent")
    for _ in range(3):
        with pytest.raises(ServiceError):
            worker._client.call("GET", "/x", tries=2)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "http://127.0.0.1:9" in caplog.text


def test_a_call_that_waits_for_its_rate_limit_says_so(caplog: pytest.LogCaptureFixture) -> None:
    replies = iter([(429, {"code": "RATE_LIMITED", "message": "used up"})])
    with run_service(Service(tasks=0)) as service:
        service.reply = lambda verb: next(replies, (200, {}))
        assert Worker(service.url, "key", "agent")._client.call("POST", "/tasks/t1/waits", {}) == {}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "path=/tasks/t1/waits error=RATE_LIMITED: used up" in caplog.text


def test_an_outage_behind_a_proxy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "stentor_worker")
    answers = iter([UP, (404, "404 page not found"), (502, None), (429, None), UP])
    with run_service(Service(tasks=0)) as service:
        service.reply = lambda verb: next(answers)
        client = Worker(service.url, "key", "agent")._client
        for _ in range(2):
            client.call("POST", "/tasks/t1/waits", {})
    first, limit, last = caplog.messages
    assert first.startswith(f"worker: service unreachable, retrying url={service.url} error=HTTP_404: ")
    assert limit.startswith("worker: rate limited, ")
    assert last == f"worker: service reachable again url={service.url}"


def test_a_page_for_one_call_alone_is_not_taken_for_an_outage_without_end() -> None:
    """A proxy answers with one when a result is too large for it."""
    tries = itertools.count(1)
    with run_service(Service(tasks=0)) as service:
        service.reply = lambda verb: (500, "<html>") if verb == "complete" and next(tries) else UP
        client = Worker(service.url, "key", "agent")._client
        # Other calls are answered during each pause.
        client._stopping = SimpleNamespace(  # type: ignore[assignment]
            is_set=lambda: False, wait=lambda _: client.call("POST", "/tasks/t1/heartbeat", {})
        )
        client.call("POST", "/tasks/t1/heartbeat", {})
        with pytest.raises(ServiceError, match="HTTP_500"):
            client.call("POST", "/tasks/t1/complete", {})
    assert next(tries) == MAX_PAGES + 2


def test_heartbeats_of_all_tasks_are_sent_side_by_side() -> None:
    worker = Worker("http://127.0.0.1:9", "key", "agent", lease_seconds=1)
    all_at_once = threading.Barrier(9, action=worker._ended.set)

    class Held:
        def heartbeat(self, lease_seconds: int, timeout_s: float) -> None:
            all_at_once.wait(TIMEOUT_S)

    worker._tasks = {Held() for _ in range(8)}  # type: ignore[misc]
    thread = threading.Thread(target=worker._send_heartbeats)
    thread.start()
    all_at_once.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)


def test_a_heartbeat_that_fails_in_any_way_ends_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_service(Service(tasks=0)) as service:
        worker = Worker(service.url, "key", "agent")
        fields: dict[str, Any] = dict.fromkeys(("type", "input", "timeout_seconds", "idempotency_key"), "x")
        task = Task(worker._client, {"task_id": "t1", "epoch": 1, "metadata": {}, **fields})
        with monkeypatch.context() as patch:
            patch.setattr(worker._client._pool, "request", lambda *_, **__: 1 // 0)
            task.heartbeat(30)
        task.heartbeat(30)
        assert [verb for _, verb, _ in service.reports] == ["heartbeat"]


def test_the_handlers_of_signals_are_those_of_the_program_again_after_a_run() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with run_service(Service(tasks=1)) as service:
        worker = Worker(service.url, "key", "agent")
        worker.handler(lambda task: signal.raise_signal(signal.SIGTERM))
        worker.run()
    assert [signal.getsignal(number) for number in numbers] == before


def _reports_of_hangup(worker_stops_itself: bool) -> tuple[list[str], bool]:
    """Run a worker that gets a SIGHUP during its task; return its reports and whether it took the signal for an end."""
    with run_service(Service(tasks=1)) as service:
        worker = Worker(service.url, "key", "agent")

        @worker.handler
        def handler(task: Task) -> None:
            signal.raise_signal(signal.SIGHUP)
            if worker_stops_itself:
                worker.stop()

        worker.run()
        return [verb for _, verb, _ in service.reports], worker._interrupted_at is not None


@pytest.fixture
def restored_sighup() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_closes_stops_a_worker_unless_nohup_ignores_it(ignored: bool, restored_sighup: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    assert _reports_of_hangup(worker_stops_itself=ignored) == (["complete"], not ignored)


def test_a_worker_leaves_sighup_to_a_program_that_handles_it_itself(restored_sighup: None) -> None:
    """Such a program reads its settings again, as services do."""
    reloads = list[int]()
    signal.signal(signal.SIGHUP, lambda number, frame: reloads.append(number))
    assert _reports_of_hangup(worker_stops_itself=True) == (["complete"], False)
    assert reloads == [signal.SIGHUP]


def test_a_signal_ends_the_workers_of_all_threads() -> None:
    claimed = threading.Event()

    def reply(verb: str) -> Reply:
        if verb == "claims":
            claimed.set()
        return UP

    with run_service(Service(tasks=1)) as service, run_service(Service(tasks=0)) as other:
        other.reply = reply
        idle, busy = Worker(other.url, "key", "agent"), Worker(service.url, "key", "agent")
        idle.handler(lambda task: 1)
        busy.handler(lambda task: claimed.wait(TIMEOUT_S) and signal.raise_signal(signal.SIGTERM))
        thread = threading.Thread(target=idle.run)
        thread.start()
        busy.run()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        assert other.requests[-1].endswith("/leave")


def test_an_interrupted_worker_says_what_it_waits_for_and_a_later_interrupt_ends_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, pausing, later, changed = (threading.Event() for _ in range(4))
    log, change_handler = logging.getLogger("stentor_worker.running"), signal.signal
    pauses, waited, on_next = list[float](), list[float](), list[object]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        pausing.set()
        assert later.wait(TIMEOUT_S)

    def change(number: signal.Signals, to: Any) -> Any:
        before = change_handler(number, to)
        if to is signal.SIG_DFL:
            waited.append(sum(pauses))
            changed.set()
        return before

    monkeypatch.setattr(log, "info", lambda text, *args: said.set() if "stopping" in text and args == (1,) else None)
    monkeypatch.setattr("stentor_worker.running.time", SimpleNamespace(sleep=pause))
    monkeypatch.setattr("stentor_worker.worker.time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(signal, "signal", change)

    def handler(task: Task) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert pausing.wait(TIMEOUT_S)
        # The same one, which the terminal has sent to the program that started this one, too.
        os.kill(os.getpid(), signal.SIGINT)
        on_next.append(signal.getsignal(signal.SIGINT))
        later.set()
        assert changed.wait(TIMEOUT_S)
        on_next.append(signal.getsignal(signal.SIGINT))

    with run_service(Service(tasks=1)) as service:
        worker = Worker(service.url, "key", "agent")
        worker.handler(handler)
        worker.run()
        assert [verb for _, verb, _ in service.reports] == ["complete"]
    assert said.is_set()
    assert on_next == [worker._on_signal, signal.SIG_DFL]
    assert waited[0] == pytest.approx(REPEAT_SECONDS)


def test_an_interrupt_that_comes_twice_aborts_a_long_poll_once() -> None:
    worker = Worker("http://127.0.0.1:1", "key", "agent")
    worker._polling = True
    with pytest.raises(_Interrupted):
        worker._on_signal(signal.SIGINT)
    worker._on_signal(signal.SIGINT)


def test_a_later_interrupt_ends_the_program_also_if_the_worker_was_stopped_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = Worker("http://127.0.0.1:1", "key", "agent")
    now, done = [0.0], list[object]()
    monkeypatch.setattr("stentor_worker.worker.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(signal, "signal", lambda number, to: done.append(to))
    monkeypatch.setattr(signal, "raise_signal", done.append)
    worker.stop()
    for number, moment in ((signal.SIGINT, 0.0), (signal.SIGINT, 0.9), (signal.SIGTERM, 5.0)):
        now[0] = moment
        worker._on_signal(number)
    assert done == []
    worker._on_signal(signal.SIGINT)
    assert done == [signal.SIG_DFL, signal.SIGINT]


def test_https_in_the_address_of_a_service_without_tls_is_told_as_such() -> None:
    with run_service(Service(tasks=0)) as service:
        client = Client(service.url.replace("http://", "https://"), "key", threading.Event())
        with pytest.raises(ServiceError, match="without TLS: use http://"):
            client.call("GET", "/api/v1/whoami", tries=1)
        client.close()


def test_a_task_for_which_python_starts_no_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12.0 and 3.12.1 start none after the end of the main thread, which then waits for the tasks."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("stentor_worker.worker.ThreadPoolExecutor.submit", refuse)
    with run_service(Service(tasks=1)) as service:
        worker = Worker(service.url, "key", "agent")
        worker.handler(lambda task: 1)
        with pytest.raises(RuntimeError, match="new thread"):
            worker.run()
    assert worker.count_tasks() == 0
