"""Placement of a task: the routing decision, the initial status that follows from it, and the estimated times.

The ports to the dispatcher and to grants are here too. The choice of the agent itself is in `routing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import RoutingDenied
from stentor.domains.learning.view import LearningView
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.model import Authority, RoutingDecision, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import model
from stentor.domains.tasks.model import QueuedTask, Task, TaskClaim, TaskDraft, TaskStatus

_WAITING: tuple[TaskStatus, ...] = ("waiting", "pending_approval")


class ReservedSlot(Protocol):
    """A slot of an agent in this process, for a task that starts at once."""

    def admit_new(self, tx: Tx, task: Task) -> int | None:
        """Return the end of the lease (microseconds) if the new task may be stored as executing.

        None if that needs checks in the database: store the task, then call `try_start`.
        """
        ...

    def start(self, tx: Tx, claim: TaskClaim) -> None:
        """Start a task that is stored as executing, after the commit."""
        ...

    def try_start(self, tx: Tx, queued: QueuedTask) -> bool:
        """Claim a task that was just stored, to start after the commit; False if it must be queued instead.

        Also True if the claim was denied or a limit is reached: the task then already has its new status.
        """
        ...

    def release(self) -> None:
        """Release the slot, whether the task has started or not. Call it once, after the transaction."""
        ...


class TaskQueue(Protocol):
    """The dispatcher as seen by tasks. The row is authoritative, so a task may be enqueued twice or late."""

    def reserve(self, agent_id: str, runtime_kind: str) -> ReservedSlot | None:
        """Reserve a slot for a task that this process starts at once; None if it must be queued."""
        ...

    def enqueue(self, queued: QueuedTask) -> None: ...

    def stop(self, tenant: str, task_id: str, epoch: int | None) -> None:
        """Stop the attempt of a task that ended or was queued again, unless its epoch is later; None stops any."""
        ...


class StartConditions(Protocol):
    """The journal of a new task, as seen by tasks: what it waits for, and the steps that a rerun takes over."""

    def begin(self, tx: Tx, principal: Principal, task: Task, draft: TaskDraft) -> None:
        """Record what a newly stored task waits for. Raises InvalidRequest if it waits for an unknown task."""
        ...

    def expect_times(self, tx: Tx, draft: TaskDraft) -> None:
        """Announce, after the commit, when a new task starts and when it is late."""
        ...

    def take_over(self, tx: Tx, principal: Principal, task: Task) -> None:
        """Copy the steps before the one from which the task continues. Raises NotFound, Forbidden and Conflict."""
        ...

    def has_open(self, tx: Tx, task: Task) -> bool:
        """Return whether any of these waits is open."""
        ...

    def end(self, tx: Tx, task: Task) -> None:
        """End the open waits."""
        ...


class AuthorityResolver(Protocol):
    """The grants as seen by tasks."""

    async def resolve_authority(self, principal: Principal, grant_id: str) -> tuple[Authority, str | None]:
        """Return what a grant permits the caller now, and the task that it belongs to (None if it permits nothing)."""
        ...


class Placement(msgspec.Struct, frozen=True):
    """A routing result: an agent with the initial status of the task, or a denial.

    `is_unseen`: the agent was registered just now, and no program has connected as it yet.
    """

    status: TaskStatus
    decision: RoutingDecision | None = None
    runtime_kind: str | None = None
    denial: RoutingDenied | None = None
    is_unseen: bool = False

    @property
    def agent_id(self) -> str | None:
        return self.decision.agent_id if self.decision else None


class TaskRouter:
    """Routes drafts and stored tasks, and counts the tasks that each agent got (`RoutingEngine.record_choice`).

    A task counts from its routing on; a refused one is subtracted again. Until it is queued it counts as waiting.
    """

    def __init__(self, routing: RoutingEngine, agents: AgentCache, learning: LearningView) -> None:
        self._routing = routing
        self._agents = agents
        self._learning = learning

    def route(self, principal: Principal, task: TaskDraft | Task, granted: Authority | None = None) -> Placement:
        """Choose an agent. `granted`, the authority of a grant, replaces the caller's own authority.

        A denial is returned, not raised, because the denied task is stored for the record.
        """
        request = RoutingRequest(
            principal.tenant,
            task.type,
            task.required_capabilities,
            granted or self._routing.caller_authority(principal),
            # A task with steps in its journal can continue only with the program that recorded them.
            (task.pinned_agent if isinstance(task, Task) else None) or task.agent_preference,
            task.metadata.prefer or "balanced",
            _starts_later(task),
            task.metadata.input_length,
        )
        try:
            decision = self._routing.decide(request)
        except RoutingDenied as denial:
            return Placement("failed", denial=denial)
        agent = self._agents.get(principal.tenant, decision.agent_id)
        assert agent is not None
        status: TaskStatus = "pending_approval" if agent.trust_tier == "human" else "queued"
        return Placement(status, decision, agent.runtime.kind, is_unseen=self._routing.is_unseen(agent))

    async def place(
        self, principal: Principal, task: TaskDraft | Task, granted: Authority | None = None
    ) -> AbstractContextManager[Placement]:
        """Route a task and return a context manager. While it is open, the task counts toward the agent's load.

        Before a denial it checks for agents that another process has just registered or changed.
        """
        placement = self.route(principal, task, granted)
        if placement.denial is not None and await self._agents.refresh():
            placement = self.route(principal, task, granted)
        return self._counted(principal, task, placement)

    @contextmanager
    def _counted(self, principal: Principal, task: TaskDraft | Task, placement: Placement) -> Iterator[Placement]:
        # Other tasks may be routed before this one is stored.
        waits = placement.status == "pending_approval" or _starts_later(task)
        self._record(principal.tenant, task.type, placement.agent_id, 1, waits=waits)
        try:
            yield placement
        finally:
            self._record(principal.tenant, task.type, placement.agent_id, -1, waits=waits)

    def record_placement(self, tx: Tx, task: Task) -> None:
        """Count a stored task that was placed, from the commit on."""
        tx.after_commit(lambda: self._record_task(task, 1, waits=task.status in _WAITING))

    def record_change(self, tx: Tx, task: Task, status: TaskStatus) -> None:
        """Stop counting a task as waiting when it leaves that status before its first attempt, from the commit on."""
        if task.status not in _WAITING or status in _WAITING or task.epoch != task.retry_epoch:
            return
        tx.after_commit(lambda: self._record_task(task, -1, waits=True))
        if status == "queued":
            tx.after_commit(lambda: self._record_task(task, 1, waits=False))

    def _record_task(self, task: Task, change: int, *, waits: bool) -> None:
        self._record(task.tenant, task.type, task.assigned_agent, change, waits=waits)

    def _record(self, tenant: str, task_type: str, agent_id: str | None, change: int, *, waits: bool) -> None:
        if agent_id is not None:
            self._routing.record_choice(tenant, task_type, agent_id, change, waits=waits)

    def estimate_times(self, now: int, tenant: str, agent_id: str | None, task_type: str) -> tuple[int, int]:
        """Estimate start and completion in microseconds, from the queue lengths and durations that routing uses."""
        agent = self._agents.get(tenant, agent_id or "")
        if agent is None:
            return now, now
        weight = self._learning.records(tenant, task_type).weights_by_agent.get(agent.agent_id)
        mean_ms = weight.mean_ms if weight and weight.samples else model.DEFAULT_MEAN_MS
        load = self._routing.agent_load(agent)
        return model.estimate_times(now, load.ahead, mean_ms, load.concurrency)


def _starts_later(task: TaskDraft | Task) -> bool:
    """Return whether it may have to wait before it is queued; a retry does not wait again."""
    return isinstance(task, TaskDraft) and (bool(task.after) or task.start_at is not None)


def start_or_enqueue(tx: Tx, task: Task, dispatch: TaskQueue, slot: ReservedSlot | None) -> None:
    """Claim a queued task that was just stored if it has a slot, else enqueue it after the commit."""
    if task.status == "queued" and (slot is None or not slot.try_start(tx, model.to_queued_task(task))):
        enqueue_after_commit(tx, task, dispatch)


def enqueue_after_commit(tx: Tx, task: Task, dispatch: TaskQueue) -> None:
    """Enqueue a queued task at the dispatcher after the commit: before it, the dispatcher could not claim the row."""
    if task.status == "queued":
        queued = model.to_queued_task(task)
        tx.after_commit(lambda: dispatch.enqueue(queued))
