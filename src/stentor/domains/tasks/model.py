"""Values of the tasks domain: a task, its statuses and outcome classes, its claim, its grade. Pure.

The values of lists are in `list_model`, the SQL is in `store`. docs/state-machines.md draws the transitions between
statuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, get_args

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.costs import TaskBudget
from stentor.domains.routing.penalties import Preference

TaskStatus = Literal[
    "queued", "pending_approval", "executing", "waiting", "completed", "failed", "aborted", "cancelled"
]
TASK_STATUSES: tuple[TaskStatus, ...] = get_args(TaskStatus)
TERMINAL_STATUSES: frozenset[TaskStatus] = frozenset(("completed", "failed", "aborted", "cancelled"))
RETRYABLE_STATUSES: frozenset[TaskStatus] = frozenset(("failed", "aborted"))

OutcomeClass = Literal[
    "success",
    "degraded_success",
    "agent_failure",
    "provider_failure",
    "timeout",
    "cancelled",
    "routing_failed",
]
LEARNABLE_OUTCOMES: frozenset[str] = frozenset(("success", "agent_failure", "timeout"))

PRIORITIES = {"critical": 0, "high": 1, "normal": 2, "low": 3}
DEFAULT_TIMEOUT_SECONDS = 300
MAX_TIMEOUT_SECONDS = 86_400
MAX_QUEUE_TIMEOUT_SECONDS = 2_592_000
MAX_LIMIT = 1_000_000
MAX_LIMIT_SECONDS = 86_400
MAX_ID_LENGTH = 255
DEFAULT_MEAN_MS = 1_000.0
"""Assumed duration of a task of a type without any outcome."""


class TaskLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit that a task keeps among the tasks of its tenant with the same key.

    At most `max` of them execute at the same time; with `per_seconds`, at most `max` start in any such time.
    """

    key: str
    max: int
    per_seconds: int | None = None


class TaskMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a caller may add to a task.

    `parent_task_id` is the task that this one is a subtask of, `sender_agent` the agent that sent it as a message,
    `traceparent` the W3C trace context of the submission, `grant_id` the grant whose authority it uses, `prefer` what
    matters in the choice of the agent, `title` a title that the submitter gave, `rerun_of` the task that it repeats,
    `rerun_from` the step of that task from which it continues, `schedule` the name of the schedule that submitted it,
    `limit` the limit by key that it keeps, `session` the session whose conversation it continues, `max_cost_usd` what
    its model calls and those of its subtasks may cost together, `budgets` that of each task above it that has one, the
    topmost first. `input_length` is the length of the input as JSON, in bytes; None for a task of an earlier version.
    """

    user_id: str | None = None
    priority: Literal["critical", "high", "normal", "low"] | None = None
    retry_count: int | None = None
    tags: tuple[str, ...] = ()
    parent_task_id: str | None = None
    sender_agent: str | None = None
    traceparent: str | None = None
    grant_id: str | None = None
    prefer: Preference | None = None
    title: str | None = None
    rerun_of: str | None = None
    rerun_from: str | None = None
    schedule: str | None = None
    limit: TaskLimit | None = None
    session: str | None = None
    max_cost_usd: float | None = None
    budgets: tuple[TaskBudget, ...] = ()
    input_length: int | None = None

    def budgets_of(self, task_id: str) -> tuple[TaskBudget, ...]:
        """Return the budgets that the model calls of the task with this metadata count against."""
        own = () if self.max_cost_usd is None else (TaskBudget(task_id, self.max_cost_usd),)
        return self.budgets + own

    @property
    def for_agent(self) -> TaskMetadata:
        """The metadata as the agent gets it: without what the service itself added."""
        if self.sender_agent is None and not self.budgets and self.input_length is None:
            return self
        return msgspec.structs.replace(self, sender_agent=None, budgets=(), input_length=None)


class TaskDraft(msgspec.Struct, frozen=True):
    """A requested task, before it is routed and stored.

    It is queued no earlier than `start_at`, when the tasks in `after` have completed, and ends no later than
    `deadline`. Times in microseconds.
    """

    type: str
    input: Any
    id: str | None = None
    required_capabilities: tuple[str, ...] = ()
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    agent_preference: str | None = None
    metadata: TaskMetadata = TaskMetadata()
    queue_timeout_seconds: int | None = None
    start_at: int | None = None
    after: tuple[str, ...] = ()
    deadline: int | None = None

    @property
    def priority(self) -> int:
        return PRIORITIES[self.metadata.priority or "normal"]


class Task(msgspec.Struct, frozen=True):
    """A stored task without its input. Times in microseconds.

    `epoch` counts the claims (a fencing token): lost attempts are counted from `attempt_epoch`, the one at the last
    retry, wait or recorded step, and `retry_epoch` is the one at the last retry. `head_id` is the task's last event in
    the run log. A task with a journal is pinned to the agent that wrote it, because another agent's program has other
    steps. `first_started_at` is the start of its first attempt, `heartbeat_at` when its agent was last heard of.
    `deadline_at` ends the attempt, `end_by` the task.
    """

    tenant: str
    task_id: str
    status: TaskStatus
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
    submitted_status: TaskStatus
    estimated_start: int
    estimated_completion: int
    body_hash: str
    required_capabilities: tuple[str, ...]
    agent_preference: str | None
    metadata: TaskMetadata
    error: Any
    result: Any
    queue_timeout_seconds: int | None = None
    queue_deadline_at: int | None = None
    title: str = ""
    pinned_agent: str | None = None
    retry_epoch: int = 0
    first_started_at: int | None = None
    heartbeat_at: int | None = None
    end_by: int | None = None

    @property
    def sender_agent(self) -> str | None:
        return self.metadata.sender_agent

    @property
    def input_length(self) -> int | None:
        return self.metadata.input_length

    @property
    def duration_ms(self) -> int | None:
        """The duration of the last attempt; None until it has ended."""
        return elapsed_ms(self.start_time, self.completion_time)

    @property
    def total_duration_ms(self) -> int | None:
        """The time from the first start to the end, with all attempts and waits; None until it has ended."""
        return elapsed_ms(self.first_started_at or self.start_time, self.completion_time)


def elapsed_ms(start: int | None, end: int | None) -> int | None:
    """Return the milliseconds between two times in microseconds; None if one of them is None."""
    # A clock that was set back must not make a duration negative.
    return None if start is None or end is None else max(end - start, 0) // 1000


class QueuedTask(msgspec.Struct, frozen=True):
    """A queued task as the dispatcher holds it. `granted`: submitted with a grant, which may expire while it waits."""

    tenant: str
    task_id: str
    priority: int
    queued_at: int
    agent_id: str
    runtime_kind: str
    epoch: int
    head_id: str
    granted: bool = False
    submitted_by: str = ""
    limit: TaskLimit | None = None


class TaskClaim(msgspec.Struct, frozen=True):
    """A claimed task with all that its execution and its outcome need. Every later write is fenced by `epoch`."""

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
    metadata: TaskMetadata
    submitted_by: str
    retry_epoch: int = 0

    @property
    def parent_task_id(self) -> str | None:
        return self.metadata.parent_task_id

    @property
    def sender_agent(self) -> str | None:
        return self.metadata.sender_agent

    @property
    def input_length(self) -> int | None:
        return self.metadata.input_length

    @property
    def idempotency_key(self) -> str:
        """The key that the agent gets; the same for every delivery of one attempt."""
        return f"{self.task_id}:{self.epoch}"

    @property
    def repetition_key(self) -> str:
        """The same key in each attempt that follows a lost one; another one after a person has retried the task."""
        return f"{self.task_id}:{self.retry_epoch + 1}"


class SubmitResult(msgspec.Struct, frozen=True):
    """The result of a submission. Times in microseconds; `provenance_id` is the task's first event."""

    task_id: str
    status: TaskStatus
    estimated_start: int
    estimated_completion: int
    notice: str | None = None
    notice_code: str | None = None
    provenance_id: str = ""
    priority: str | None = None


def compute_body_hash(draft: TaskDraft) -> str:
    """Return a hash of the draft that does not depend on the order of its keys."""
    fields = msgspec.structs.asdict(draft)
    for added_later in ("start_at", "after", "deadline"):
        # Left out when empty, so that a resubmission hashes as it did before these fields existed.
        if not fields[added_later]:
            del fields[added_later]
    return jsontext.sorted_digest(fields)


def estimate_times(now: int, ahead: int, mean_ms: float, concurrency: int) -> tuple[int, int]:
    """Estimate start and completion, in microseconds, from the tasks ahead and the moving average of the duration."""
    mean_us = int(mean_ms * 1000)
    start = now + ahead // max(1, concurrency) * mean_us
    return start, start + mean_us


def to_queued_task(task: Task) -> QueuedTask:
    """Return what the dispatcher holds of a queued task."""
    assert task.assigned_agent is not None
    assert task.runtime_kind is not None
    return QueuedTask(
        task.tenant,
        task.task_id,
        task.priority,
        task.queued_at,
        task.assigned_agent,
        task.runtime_kind,
        task.epoch,
        task.head_id,
        task.metadata.grant_id is not None,
        task.submitted_by,
        task.metadata.limit,
    )


def first_claim(task: Task, content: Any, lease_until: int, head_id: str) -> TaskClaim:
    """Return the claim of a new task that is stored as one that executes; `content` is its input for the agent."""
    assert task.assigned_agent is not None
    assert task.runtime_kind is not None
    return TaskClaim(
        task.tenant,
        task.task_id,
        1,
        task.type,
        content,
        task.assigned_agent,
        task.runtime_kind,
        task.created_at,
        task.created_at,
        task.timeout_seconds,
        lease_until,
        head_id,
        task.required_capabilities,
        task.metadata,
        task.submitted_by,
    )


class TaskStreamStep(msgspec.Struct, frozen=True):
    """An event of a task's stream. A reader resumes from `id`: `<event>`, or `<event>:<attempt>:<n>` after a token."""

    kind: str
    data: JsonObject
    id: str | None = None


TenantTaskStream = Callable[[str, str, str | None], AsyncIterator[TaskStreamStep]]
"""Streams the events of a task, given tenant, task and Last-Event-ID; the last event is terminal."""


class Grade(msgspec.Struct, frozen=True):
    """The grade of a task, in [0,1]. Time in microseconds; `learned`: it counts in the agent's track record."""

    task_id: str
    epoch: int
    agent_id: str
    grade: float
    comment: str | None
    graded_by: str
    graded_at: int
    learned: bool
