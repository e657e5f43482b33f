"""A claimed task as a handler sees it, and the results and errors of a handler."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from stentor_worker.client import Client, ServiceError, segment

EMIT_EVERY = 0.05
"""Minimum seconds between two batches of streamed tokens."""


class TaskCancelled(Exception):
    """The task is no longer this worker's: it was cancelled, timed out, or went to another worker."""


class Failed(Exception):
    """Raise it in a handler to fail the task; the submitter sees the message."""

    outcome_class = "agent_failure"

    def __init__(self, message: str, code: str = "AGENT_ERROR") -> None:
        super().__init__(message)
        self.code = code


class ProviderFailed(Failed):
    """A dependency of the agent failed; it does not count against the agent."""

    outcome_class = "provider_failure"


@dataclass(frozen=True)
class Result:
    """A value with the agent's own assessment.

    `performance` is in (0, 1], `degraded` marks a fallback result, `cost` is in US dollars.
    """

    value: Any
    performance: float | None = None
    degraded: bool = False
    cost: float | None = None


class Task:
    """A claimed task. `idempotency_key` is the same for every delivery of this attempt."""

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
        """Whether the task is no longer this worker's; long handlers should check it from time to time."""
        return self._lost.is_set()

    def emit(self, text: str) -> None:
        """Stream a part of the output to the watchers of the task. Raises TaskCancelled."""
        self._tokens.append(text)
        if time.monotonic() - self._sent_at >= EMIT_EVERY:
            self.flush()

    def flush(self) -> None:
        """Send the emitted text that is still buffered. Raises TaskCancelled."""
        self.check()
        if self._tokens:
            tokens, self._tokens = self._tokens, []
            self._sent_at = time.monotonic()
            self.post("tokens", {"tokens": tokens})

    def check(self) -> None:
        """Raise TaskCancelled if the task is no longer this worker's."""
        if self.cancelled:
            raise TaskCancelled(self.id)

    def heartbeat(self, lease_seconds: int) -> None:
        """Renew the lease. Never raises; a lost lease shows in `cancelled`."""
        try:
            self.post("heartbeat", {"lease_seconds": lease_seconds}, tries=3)
        except TaskCancelled:
            return
        except ServiceError:
            # The next heartbeat retries; the lease is long enough to miss one or two.
            return

    def post(self, verb: str, body: dict[str, Any], *, tries: int = 1_000_000) -> None:
        """Report on this attempt. Raises TaskCancelled if the lease is lost, and ServiceError."""
        try:
            self._client.call("POST", f"/tasks/{segment(self.id)}/{verb}", {"epoch": self.epoch, **body}, tries=tries)
        except ServiceError as error:
            # 409 is LEASE_LOST or an ended task, 404 a deleted one: either way another report is pointless.
            if error.status in (404, 409):
                self._lost.set()
                raise TaskCancelled(self.id) from None
            raise
