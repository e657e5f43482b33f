"""Outcomes of an attempt and the repair of lost ones, as pure functions.

`outcomes.py` records an outcome; `reconciler.py` applies a repair.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.sessions.model import ItemDraft
from stentor.domains.tasks.model import LEARNABLE_OUTCOMES, OutcomeClass, Task, TaskStatus

DEFAULT_LEASE_SECONDS, MAX_LEASE_SECONDS = 30, 3_600
MAX_CLAIM, MAX_WAIT_SECONDS = 100, 60


class AttemptOutcome(msgspec.Struct, frozen=True):
    """Outcome of one attempt.

    `performance` in (0, 1] is what the agent itself reports; `cost` is in US dollars. `items` are appended to the
    task's session. `is_outage`: whether other callers' tasks would meet the same failure of a provider.
    """

    outcome_class: OutcomeClass
    result: Any = None
    error: JsonObject | None = None
    performance: float | None = None
    cost: float | None = None
    items: tuple[ItemDraft, ...] = ()
    is_outage: bool = True

    @property
    def status(self) -> TaskStatus:
        if self.outcome_class in ("success", "degraded_success"):
            return "completed"
        return "aborted" if self.outcome_class == "timeout" else "failed"

    @property
    def is_learnable(self) -> bool:
        return self.outcome_class in LEARNABLE_OUTCOMES

    @property
    def is_success(self) -> bool:
        return self.outcome_class == "success"


TIMEOUT_OUTCOME = AttemptOutcome(
    "timeout", error={"code": "TIMEOUT", "message": "The task ran longer than its timeout."}
)
QUARANTINED_OUTCOME = AttemptOutcome(
    "agent_failure",
    error={"code": "AGENT_QUARANTINED", "message": "The agent was quarantined while it ran."},
)
"""Outcome of what a worker had in hand. It is not requeued: what made one agent break its rules might do so to more."""


class AgentFailed(Exception):
    """Failure of the agent. The message is returned to the client of the task.

    `was_refused`: the agent certainly did nothing, because it was not reached or refused the task. `cost`: what the
    agent says that its attempt cost, in US dollars.
    """

    outcome_class: OutcomeClass = "agent_failure"

    def __init__(self, code: str, message: str, *, was_refused: bool = False, cost: float | None = None) -> None:
        # PostgreSQL rejects NUL in text; a message may quote what the agent sent.
        message = message.replace("\0", "\N{REPLACEMENT CHARACTER}")
        super().__init__(message)
        self.was_refused = was_refused
        self.outcome = AttemptOutcome(self.outcome_class, error={"code": code, "message": message}, cost=cost)


class ProviderFailed(AgentFailed):
    """Failure of something that the agent depends on. It does not count as evidence about the agent."""

    outcome_class = "provider_failure"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        was_refused: bool = False,
        is_outage: bool = True,
        cost: float | None = None,
    ) -> None:
        super().__init__(code, message, was_refused=was_refused, cost=cost)
        self.outcome = msgspec.structs.replace(self.outcome, is_outage=is_outage)


RepairAction = Literal["abort", "requeue", "fail"]


def choose_repair(task: Task, now: int, max_attempts: int) -> RepairAction | None:
    """Return how to repair an executing task at time `now` (microseconds), or None if it needs no repair."""
    assert task.deadline_at is not None
    assert task.lease_until is not None
    # The deadline first: a task past its timeout must not be requeued, even if its lease has also expired.
    if task.deadline_at <= now:
        return "abort"
    if task.lease_until > now:
        return None
    return requeue_or_fail(task, max_attempts)


def requeue_or_fail(task: Task, max_attempts: int) -> RepairAction:
    """Return the repair of a task whose lease is lost: requeue until `max_attempts` claims were used."""
    # Claims up to `attempt_epoch` do not count: they were retried, waited, or recorded a step.
    return "requeue" if task.epoch - task.attempt_epoch < max_attempts else "fail"


def lease_lost_outcome(task: Task) -> AttemptOutcome:
    """Return the outcome of a task whose lease was lost in every allowed attempt."""
    claims = task.epoch - task.attempt_epoch
    message = f"The task was claimed {claims} times and each claim's lease expired without a result."
    return AttemptOutcome("agent_failure", error={"code": "LEASE_LOST", "message": message})
