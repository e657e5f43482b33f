"""A claimed task in the hands of a handler, and the ways that a handler ends."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from stentor.worker.client import Client, ServiceError, segment

EMIT_EVERY = 0.05
"""Seconds that tokens are collected before they are sent."""


class TaskCancelled(Exception):
    """The task is not ours any more: cancelled, timed out, or given to another worker."""


class Failed(Exception):
    """Raise it to say that the task cannot be done; the message is shown to the caller."""

    outcome_class = "agent_failure"

    def __init__(self, message: str, code: str = "AGENT_ERROR") -> None:
        super().__init__(message)
        self.code = code


class ProviderFailed(Failed):
    """What the agent depends on failed; nothing is learned against the agent."""

    outcome_class = "provider_failure"


@dataclass(frozen=True)
class Result:
    """A value with the agent's own judgement: `performance` in (0,1], `degraded` for a makeshift answer, and the `cost`
    of the work in US dollars.
    """

    value: Any
    performance: float | None = None
    degraded: bool = False
    cost: float | None = None


class Task:
    """What a handler gets. `idempotency_key` is the same for every delivery of this attempt."""

    def __init__(self, client: Client, claim: dict[str, Any]) -> None:
        self._client = client
        self._lost = threading.Event()
        self._tokens: list[str] = []
        self._sent_at = 0.0
        self.id: str = claim["task_id"]
        self.epoch: int = claim["epoch"]
        self.type: str = claim["type"]
        self.input: Any = claim["input"]
        self.metadata: dict[str, Any] = claim["metadata"]
        self.timeout_seconds: int = claim["timeout_seconds"]
        self.idempotency_key: str = claim["idempotency_key"]

    @property
    def cancelled(self) -> bool:
        """True once the task is not ours any more; a long handler looks at it now and then."""
        return self._lost.is_set()

    def emit(self, text: str) -> None:
        """Send a piece of the answer to whoever watches. Raises TaskCancelled."""
        self._tokens.append(text)
        if time.monotonic() - self._sent_at >= EMIT_EVERY:
            self.flush()

    def flush(self) -> None:
        """Send what was emitted and not sent yet. Raises TaskCancelled."""
        self.check()
        if self._tokens:
            tokens, self._tokens = self._tokens, []
            self._sent_at = time.monotonic()
            self.post("tokens", {"tokens": tokens})

    def check(self) -> None:
        """Raises TaskCancelled when the task is not ours any more."""
        if self.cancelled:
            raise TaskCancelled(self.id)

    def heartbeat(self, lease_seconds: int) -> None:
        try:
            self.post("heartbeat", {"lease_seconds": lease_seconds}, tries=3)
        except TaskCancelled:
            return
        except ServiceError:
            return  # the next beat tries again; the lease is longer than several beats

    def post(self, verb: str, body: dict[str, Any], *, tries: int = 1_000_000) -> None:
        """A call for this attempt. Raises TaskCancelled when the lease is lost."""
        try:
            self._client.call("POST", f"/tasks/{segment(self.id)}/{verb}", {"epoch": self.epoch, **body}, tries=tries)
        except ServiceError as error:
            if error.status in (404, 409):
                self._lost.set()
                raise TaskCancelled(self.id) from None
            raise
