"""Clients that do not give up: they submit with ids of their own until each was answered."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.patience import PATIENCE_SECONDS


@dataclass
class Load:
    """Submits `bodies` from several threads; `accepted` are the ids that were answered with 202."""

    address: str
    key: str
    bodies: list[dict[str, Any]]
    threads: int = 4
    pause: float = 0.0
    again: tuple[int, ...] = (409, 503)
    """Answers after which a client tries again."""
    accepted: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waiting = list(reversed(self.bodies))
        self._running = [threading.Thread(target=self._run, daemon=True) for _ in range(self.threads)]

    def start(self) -> None:
        for thread in self._running:
            thread.start()

    def join(self) -> None:
        """Wait for all to be answered."""
        for thread in self._running:
            thread.join(PATIENCE_SECONDS)
        assert len(self.accepted) == len(self.bodies), f"only {len(self.accepted)} were answered"

    def _run(self) -> None:
        with httpx.Client(base_url=self.address, headers={"X-API-Key": self.key}, timeout=200) as client:
            while self._waiting:
                try:
                    body = self._waiting.pop()
                except IndexError:
                    return
                self._submit(client, body)
                time.sleep(self.pause)

    def _submit(self, client: httpx.Client, body: dict[str, Any]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                answer = client.post("/api/v1/tasks", json=body)
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            self.answers.append(answer.status_code)
            if answer.status_code == 202:
                self.accepted.append(body["id"])
                return
            assert answer.status_code in self.again, answer.text
            time.sleep(0.02)


def summaries(count: int, prefix: str = "sum") -> list[dict[str, Any]]:
    """Short tasks for the agent inside the service."""
    text = "Agents do tasks. Stentor routes each task. It records why it did."
    return [
        {"id": f"{prefix}-{i:05}", "type": "summarize", "input": text, "required_capabilities": ["summarize"]}
        for i in range(count)
    ]


ENDED = ("completed", "failed", "aborted", "cancelled")


def wait_for(client: httpx.Client, count: int, seconds: float = PATIENCE_SECONDS) -> None:
    """Until so many tasks have ended; an outage is waited out."""
    until, ended = time.monotonic() + seconds, -1
    while time.monotonic() < until:
        try:
            # Not those that have not ended: one that is queued again between two requests would be in neither.
            found = [client.get("/api/v1/tasks", params={"status": s, "limit": 1}) for s in ENDED]
            if all(answer.status_code == 200 for answer in found):
                ended = sum(answer.json()["total"] for answer in found)
                if ended >= count:
                    return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"only {ended} of {count} tasks ended within {seconds} s")
