"""Text that a task emits: its order, its parts, and what a coroutine notices of its requests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from worker_service import TIMEOUT_S, Reply, Service, run_once, run_service

from stentor_worker import ServiceError, Task, TaskCancelled, Worker


def test_emitted_tokens_are_sent_before_the_result() -> None:
    def handler(task: Task) -> str:
        task.emit("a")
        task.emit("b")
        return "ab"

    *streamed, last = run_once(handler)
    assert "".join(token for _, _, body in streamed for token in body["tokens"]) == "ab"
    assert {verb for _, verb, _ in streamed} == {"tokens"}
    assert last == ("t1", "complete", {"epoch": 1, "result": "ab"})


@pytest.mark.parametrize("text", [None, 5, b"x"])
def test_what_is_no_text_is_refused_where_it_is_emitted(text: Any) -> None:
    def handler(task: Task) -> str:
        with pytest.raises(TypeError, match=f"not {type(text).__name__}"):
            task.emit(text)
        return "done"

    assert run_once(handler) == [("t1", "complete", {"epoch": 1, "result": "done"})]


def test_a_long_text_or_many_at_once_are_sent_in_parts_that_the_service_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stentor_worker.task.EMIT_EVERY", float("inf"))
    texts = ["start ", *["word "] * 3_000, "\U0001f600" * 70_000, "\udcff"]

    def handler(task: Task) -> str:
        for text in texts:
            task.emit(text)
        return "done"

    *streamed, last = run_once(handler)
    sent = "".join(token for _, _, body in streamed for token in body["tokens"])
    assert sent == "".join(texts[:-1]) + "?"
    assert last == ("t1", "complete", {"epoch": 1, "result": "done"})


def test_a_text_is_not_sent_before_those_that_another_thread_is_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor_worker.task.EMIT_EVERY", float("inf"))
    arrived, released = threading.Event(), threading.Event()

    def reply(verb: str) -> Reply:
        if verb == "tokens" and not arrived.is_set():
            arrived.set()
            released.wait(TIMEOUT_S)
        return 200, {}

    def handler(task: Task) -> str:
        def emit_last() -> None:
            task.emit("last")
            task.flush()

        task.emit("first ")
        threads = [threading.Thread(target=task.flush), threading.Thread(target=emit_last)]
        threads[0].start()
        assert arrived.wait(TIMEOUT_S)
        threads[1].start()
        threads[1].join(0.2)
        released.set()
        for thread in threads:
            thread.join()
        return "done"

    *streamed, _ = run_once(handler, reply)
    assert [body["tokens"] for _, _, body in streamed] == [["first "], ["last"]]


def test_a_coroutine_that_emits_text_does_not_stop_the_others_of_its_task() -> None:
    released, in_time = threading.Event(), list[bool]()

    def reply(verb: str) -> Reply:
        if verb == "tokens":
            in_time.append(released.wait(TIMEOUT_S))
        return 200, {}

    async def handler(task: Task) -> str:
        for text in ("first ", "second ", "last"):
            task._sent_at = 0.0
            task.emit(text)
        released.set()
        return "done"

    *streamed, last = run_once(handler, reply)
    assert "".join(token for _, _, body in streamed for token in body["tokens"]) == "first second last"
    assert (len(streamed) <= 2, all(in_time)) == (True, True), "what is emitted during a request is in the next one"
    assert last == ("t1", "complete", {"epoch": 1, "result": "done"})


def test_an_error_of_texts_that_a_coroutine_emitted_is_raised_once() -> None:
    replies = iter([(400, {"error": {"code": "INVALID_REQUEST", "message": "no"}})])
    raised: list[int] = []

    async def handler(task: Task) -> str:
        for text in ("refused", "first", "last"):
            task._sent_at = 0.0
            try:
                task.emit(text)
            except ServiceError as error:
                raised.append(error.status)
            while task._sending is not None and not task._sending.done():
                await asyncio.sleep(0)
        return "done"

    *streamed, last = run_once(handler, lambda verb: next(replies, (200, {})) if verb == "tokens" else (200, {}))
    assert raised == [400]
    assert "".join(token for _, _, body in streamed[1:] for token in body["tokens"]) == "firstlast"
    assert last == ("t1", "complete", {"epoch": 1, "result": "done"})


def test_a_coroutine_that_emits_text_sees_that_its_lease_is_lost() -> None:
    with run_service(Service(tasks=1)) as service:
        service.reply = lambda verb: (200, {}) if verb == "claims" else (409, {"error": {"code": "LEASE_LOST"}})
        worker = Worker(service.url, "key", "agent")
        seen: list[bool] = []

        @worker.handler
        async def work(task: Task) -> str:
            async def emit_for_ever() -> None:
                while True:
                    task._sent_at = 0.0
                    task.emit("a")
                    await asyncio.sleep(0)

            worker.stop()
            with pytest.raises(TaskCancelled):
                await emit_for_ever()
            seen.append(task.cancelled)
            return "too late"

        worker.run()
        assert seen == [True]
        assert {verb for _, verb, _ in service.reports} == {"tokens"}
