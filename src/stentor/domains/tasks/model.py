"""A task, its states and its outcomes. The moves are drawn in docs/state-machines.md."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stentor.core import jsontext
from stentor.domains.routing.ranking import Prefer

Status = Literal["queued", "pending_approval", "executing", "completed", "failed", "aborted", "cancelled"]
STATUSES: tuple[Status, ...] = Status.__args__  # type: ignore[attr-defined]
TERMINAL: frozenset[Status] = frozenset(("completed", "failed", "aborted", "cancelled"))
RETRYABLE: frozenset[Status] = frozenset(("failed", "aborted"))

OutcomeClass = Literal[
    "success",
    "degraded_success",
    "agent_failure",
    "provider_failure",
    "timeout",
    "cancelled",
    "routing_failed",
]
LEARNABLE: frozenset[str] = frozenset(("success", "agent_failure", "timeout"))

PRIORITIES = {"critical": 0, "high": 1, "normal": 2, "low": 3}
DEFAULT_TIMEOUT, MAX_TIMEOUT, MAX_QUEUE_TIMEOUT = 300, 86_400, 2_592_000
MAX_ID = 255
DEFAULT_MEAN_MS = 1_000.0
"""Expected of a kind of task that was never seen."""


class Metadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the caller says beside the work. `parent_task_id` is the task that led to this one, `sender_agent` the
    agent that sent it as a message, `traceparent` the place of the submit in a distributed trace, `grant_id` the
    delegated authority that it was submitted with, `prefer` what matters in the choice of the agent.
    """

    user_id: str | None = None
    priority: Literal["critical", "high", "normal", "low"] | None = None
    retry_count: int | None = None
    tags: tuple[str, ...] = ()
    parent_task_id: str | None = None
    sender_agent: str | None = None
    traceparent: str | None = None
    grant_id: str | None = None
    prefer: Prefer | None = None

    @property
    def for_agent(self) -> Metadata:
        """Without what came with a message's header."""
        return self if self.sender_agent is None else msgspec.structs.replace(self, sender_agent=None)


class TaskDraft(msgspec.Struct, frozen=True):
    """A task as it was asked for; `timeout_seconds` in seconds."""

    type: str
    input: Any
    id: str | None = None
    required_capabilities: tuple[str, ...] = ()
    timeout_seconds: int = DEFAULT_TIMEOUT
    agent_preference: str | None = None
    metadata: Metadata = Metadata()
    queue_timeout_seconds: int | None = None

    @property
    def priority(self) -> int:
        return PRIORITIES[self.metadata.priority or "normal"]


def traced(draft: TaskDraft, traceparent: str | None) -> TaskDraft:
    """The draft with the place of its submit in a trace, where there is one."""
    if traceparent is None:
        return draft
    return msgspec.structs.replace(draft, metadata=msgspec.structs.replace(draft.metadata, traceparent=traceparent))


def below(draft: TaskDraft, parent_task_id: str | None) -> TaskDraft:
    """The draft as work for another task, where there is one."""
    if parent_task_id is None:
        return draft
    metadata = msgspec.structs.replace(draft.metadata, parent_task_id=parent_task_id)
    return msgspec.structs.replace(draft, metadata=metadata)


class Task(msgspec.Struct, frozen=True):
    """A task's row but for its input. Times in microseconds."""

    tenant: str
    task_id: str
    status: Status
    type: str
    priority: int
    assigned_agent: str | None
    runtime_kind: str | None
    created_at: int
    queued_at: int
    start_time: int | None
    completion_time: int | None
    timeout_seconds: int
    epoch: int
    attempt_epoch: int
    lease_until: int | None
    deadline_at: int | None
    outcome_class: OutcomeClass | None
    learning_eligible: bool | None
    learning_pending: bool
    performance: float | None
    provenance_id: str
    head_id: str
    parent_task_id: str | None
    submitted_by: str
    submitted_status: Status
    estimated_start: int
    estimated_completion: int
    body_hash: str
    required_capabilities: tuple[str, ...]
    agent_preference: str | None
    metadata: Metadata
    error: Any
    result: Any
    queue_timeout_seconds: int | None = None
    queue_deadline_at: int | None = None

    @property
    def sender_agent(self) -> str | None:
        return self.metadata.sender_agent

    @property
    def duration_ms(self) -> int | None:
        """From the start of the last attempt to its end."""
        if self.start_time is None or self.completion_time is None:
            return None
        return (self.completion_time - self.start_time) // 1000


class Queued(msgspec.Struct, frozen=True):
    """A task that waits, as the dispatcher holds it. `granted`: it rests on authority that may have ended meanwhile."""

    tenant: str
    task_id: str
    priority: int
    queued_at: int
    agent_id: str
    runtime_kind: str
    epoch: int
    head_id: str
    granted: bool = False


class Claim(msgspec.Struct, frozen=True):
    """A task in the hands of its agent: all that its end needs. `epoch` fences every later write."""

    tenant: str
    task_id: str
    epoch: int
    type: str
    input: Any
    agent_id: str
    runtime_kind: str
    created_at: int
    start_time: int
    timeout_seconds: int
    lease_until: int
    head_id: str
    required_capabilities: tuple[str, ...]
    metadata: Metadata
    submitted_by: str

    @property
    def parent_task_id(self) -> str | None:
        return self.metadata.parent_task_id

    @property
    def sender_agent(self) -> str | None:
        return self.metadata.sender_agent

    @property
    def idempotency_key(self) -> str:
        """The same for every delivery of this attempt; handed to the agent."""
        return f"{self.task_id}:{self.epoch}"


class Summary(msgspec.Struct, frozen=True):
    """A row of the list."""

    task_id: str
    status: Status
    assigned_agent: str | None
    type: str
    created_at: int
    completed_at: int | None


class Page(msgspec.Struct, frozen=True):
    """Rows of the list, how many match in all, and whether more follow these."""

    rows: list[Summary]
    total: int
    more: bool


class Submitted(msgspec.Struct, frozen=True):
    """The answer to a submit. `provenance_id` is the task's first event."""

    task_id: str
    status: Status
    estimated_start: int
    estimated_completion: int
    notice: str | None = None
    provenance_id: str = ""
    priority: str | None = None


class Filter(msgspec.Struct, frozen=True):
    """What a list shows. `created_after` in microseconds; `before` is the last row of the page before; `key` narrows it
    to the tasks that this key submitted or that are assigned to its agents.
    """

    status: Status | None = None
    agent_id: str | None = None
    created_after: int | None = None
    before: tuple[int, str] | None = None
    key: str | None = None


def body_hash(draft: TaskDraft) -> str:
    """The same for the same body, whatever the order of its keys."""
    return jsontext.sorted_digest(draft)


def estimate(now: int, ahead: int, mean_ms: float, lanes: int) -> tuple[int, int]:
    """When the task may start and end, from the queue ahead and the moving average of its kind."""
    mean = int(mean_ms * 1000)
    start = now + ahead // max(1, lanes) * mean
    return start, start + mean


def queued_of(task: Task) -> Queued:
    """What the dispatcher needs to know of a queued task."""
    assert task.assigned_agent is not None
    assert task.runtime_kind is not None
    return Queued(
        task.tenant,
        task.task_id,
        task.priority,
        task.queued_at,
        task.assigned_agent,
        task.runtime_kind,
        task.epoch,
        task.head_id,
        task.metadata.grant_id is not None,
    )
