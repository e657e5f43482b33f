"""What an attempt can end as, and what follows from it: pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stentor.domains.tasks.model import LEARNABLE_OUTCOMES, OutcomeClass, Task, TaskStatus

DEFAULT_LEASE_SECONDS, MAX_LEASE_SECONDS = 30, 3_600
MAX_CLAIM, MAX_WAIT_SECONDS = 100, 60


class AttemptOutcome(msgspec.Struct, frozen=True):
    """The end of an attempt. `performance` in (0,1] is the agent's own report of its success, `cost` what it
    spent in US dollars.
    """

    outcome_class: OutcomeClass
    result: Any = None
    error: dict[str, Any] | None = None
    performance: float | None = None
    cost: float | None = None

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


class AgentFailed(Exception):
    """The agent could not do the task; the message is shown to the caller."""

    outcome_class: OutcomeClass = "agent_failure"

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.outcome = AttemptOutcome(self.outcome_class, error={"code": code, "message": message})


class ProviderFailed(AgentFailed):
    """What the agent depends on failed; the agent is not to blame and nothing is learned."""

    outcome_class = "provider_failure"


RepairAction = Literal["abort", "requeue", "fail"]


def choose_repair(task: Task, now: int, max_attempts: int) -> RepairAction | None:
    """What to do with an executing task: past its time, its lease lost, or nothing (None)."""
    assert task.deadline_at is not None
    assert task.lease_until is not None
    if task.deadline_at <= now:
        return "abort"
    if task.lease_until > now:
        return None
    return requeue_or_fail(task, max_attempts)


def requeue_or_fail(task: Task, max_attempts: int) -> RepairAction:
    return "requeue" if task.epoch - task.attempt_epoch < max_attempts else "fail"


def lease_lost_outcome(task: Task) -> AttemptOutcome:
    """The end of a task whose leases were lost too often."""
    claims = task.epoch - task.attempt_epoch
    message = f"The task was claimed {claims} times and each claim's lease ended without an answer."
    return AttemptOutcome("agent_failure", error={"code": "LEASE_LOST", "message": message})
