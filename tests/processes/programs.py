"""A worker's program against a real service, one attempt after another."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import httpx

from stentor_worker import Task, Worker
from tests.patience import until
from tests.service import Service

Handler = Callable[[Task], Any]
_numbers = itertools.count()


class Program:
    """A worker's program whose handler may change from one attempt to the next, and one task for it."""

    def __init__(self, service: Service, api: httpx.Client) -> None:
        self.api, name = api, f"agent-{next(_numbers)}"
        self.worker = Worker.register(service.address, service.key, name, [name], concurrency=1)
        self.body = {"type": "go", "input": "x", "required_capabilities": [name]}
        self.task_id = self.submit()

    def submit(self) -> str:
        return str(self.call("POST", "/tasks", self.body)["task_id"])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.api.request(method, f"/api/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def claim(self) -> Task:
        tasks = until(self.worker._claim)
        assert len(tasks) == 1
        self.worker._free.release()
        return tasks[0]

    def attempt(self, handler: Handler) -> tuple[str, dict[str, Any]]:
        """Claim a task, run the handler, report; return what was reported."""
        self.worker._handler = handler
        task = self.claim()
        verb, body = self.worker._execute(task)
        task.post(verb, body)
        return verb, body

    def result(self, handler: Handler) -> Any:
        verb, body = self.attempt(handler)
        assert verb == "complete", body
        return body["result"]

    def error(self, handler: Handler) -> dict[str, Any]:
        verb, body = self.attempt(handler)
        assert verb == "fail", body
        return dict(body["error"])

    def retry(self) -> None:
        self.call("POST", f"/tasks/{self.task_id}/retry")

    def fail_once(self, handler: Handler) -> None:
        """An attempt of which everything but its end goes well; then a person retries the task."""

        def fails(task: Task) -> None:
            handler(task)
            raise RuntimeError("the end of this attempt")

        async def fails_later(task: Task) -> None:
            await handler(task)
            raise RuntimeError("the end of this attempt")

        error = self.error(fails_later if inspect.iscoroutinefunction(handler) else fails)
        assert error["message"] == "RuntimeError: the end of this attempt"
        self.retry()
