"""Clients that submit with ids of their own, repeat, cancel, read and retry, at whatever gateway answers."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import httpx

from tests.faults.history import History
from tests.faults.soak.members import KEY

TIMEOUT_SECONDS, PAUSE_SECONDS, PATIENCE_SECONDS = 5.0, 0.1, 300.0
TEXT = "Agents do tasks. Stentor routes each task. It records why it did."
EXPECTED = {"submit": (202, 409, 503), "cancel": (200, 409, 503), "retry": (202, 409, 422, 503), "read": (200, 503)}
"""A submit's 409 says that a request with the same key is still under way."""


class Clients:
    """`threads` of them share `tasks` and spread them over `seconds`."""

    def __init__(
        self, addresses: list[str], history: History, tasks: int, seconds: float, seed: int, threads: int = 8
    ) -> None:
        self.addresses = addresses
        self.history = history
        self.pause = seconds * threads / max(1, tasks)
        self.stop = threading.Event()
        shares = [range(tasks)[at::threads] for at in range(threads)]
        self._threads = [
            threading.Thread(target=Client(self, random.Random(f"{seed}-{at}"), share).run, daemon=True)
            for at, share in enumerate(shares)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """No new tasks; wait for what is under way to be answered."""
        self.stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                self.history.flaws.append("a client got no answer in the end")


class Client:
    """One thread, with ids of its own; nobody else asks about its tasks."""

    def __init__(self, of: Clients, chance: random.Random, share: range) -> None:
        self._of = of
        self._history: History = of.history
        self._chance = chance
        self._share = share
        self._done: list[str] = []
        self._open: set[str] = set()
        self._lost = False

    def run(self) -> None:
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS, headers={"X-API-Key": KEY}, trust_env=False)
        began = time.monotonic()
        with self._http:
            for n, number in enumerate(self._share):
                if self._of.stop.wait(max(0.0, began + n * self._of.pause - time.monotonic())):
                    return
                try:
                    self._task(f"task-{number:06}")
                except TimeoutError as error:
                    self._history.was_answered("never", str(error))

    def _task(self, task_id: str) -> None:
        kind = "work" if self._chance.random() < 0.4 else "summarize"
        body = {"id": task_id, "type": kind, "input": TEXT, "required_capabilities": [kind]}
        headers = {"Idempotency-Key": f"key-{task_id}"} if self._chance.random() < 0.5 else {}
        self._submit(body, headers)
        if self._chance.random() < 0.1:
            self._submit(body, headers)
        if self._chance.random() < 0.1:
            time.sleep(self._chance.random() * 0.2)
            self._cancel(task_id)
        self._done.append(task_id)
        if self._chance.random() < 0.3:
            self._look(self._chance.choice(self._done[-200:]))

    def _submit(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        self._history.asked.add(body["id"])
        answer = self._answered("submit", "POST", "/tasks", (202,), json=body, headers=headers)
        self._history.was_accepted(body["id"], answer.json())

    def _cancel(self, task_id: str) -> None:
        """Once a try had no answer, a refusal may come from its success: then the task is read."""
        answer = self._answered("cancel", "POST", f"/tasks/{task_id}/cancel", (200, 409))
        if answer.status_code == 200:
            self._history.was_cancelled(task_id)
        self._look(task_id)

    def _look(self, task_id: str) -> None:
        status = self._answered("read", "GET", f"/tasks/{task_id}", (200,)).json()["status"]
        if task_id not in self._open:
            self._history.was_read(task_id, status)
        if status == "failed" and self._chance.random() < 0.5:
            self._retry(task_id)

    def _retry(self, task_id: str) -> None:
        """One that had no answer may still be done by a gateway that stands still now, so its end is open."""
        self._history.was_retried(task_id)
        self._lost = False  # each try may be a retry of its own, if the one before was done and could not say so
        self._answered("retry", "POST", f"/tasks/{task_id}/retry", (202, 409, 422))
        if self._lost:
            self._open.add(task_id)

    def _answered(self, what: str, method: str, path: str, final: tuple[int, ...], **request: Any) -> httpx.Response:
        """Ask one gateway after the other until one gives a final answer."""
        until = time.monotonic() + PATIENCE_SECONDS
        at = self._chance.randrange(len(self._of.addresses))
        while time.monotonic() < until:
            at += 1
            address = self._of.addresses[at % len(self._of.addresses)]
            try:
                answer = self._http.request(method, f"{address}/api/v1{path}", **request)
            except httpx.TransportError as error:
                self._lost = True
                self._history.was_answered(f"{what} {type(error).__name__}")
            else:
                expected = answer.status_code in EXPECTED[what]
                wrong = None if expected else f"{what} {path} was answered {answer.status_code} {answer.text[:300]}"
                self._history.was_answered(f"{what} {answer.status_code}", wrong)
                if answer.status_code in final or not expected:
                    return answer
            time.sleep(PAUSE_SECONDS * self._chance.uniform(0.5, 1.5))
        raise TimeoutError(f"{what} {path} got no answer for {PATIENCE_SECONDS:.0f} s")
