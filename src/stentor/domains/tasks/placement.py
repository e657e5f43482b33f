"""Where a task goes: routing's word, the first state that follows from it, and when to expect the result."""

from __future__ import annotations

from typing import Protocol

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import RoutingDenied
from stentor.domains.learning.service import LearningView
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.model import NO_WORKER_ONLINE, Authority, RoutingDecision, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import model
from stentor.domains.tasks.model import QueuedTask, Task, TaskDraft, TaskStatus


class TaskQueue(Protocol):
    """Where queued tasks go; the row stays the truth, so an offer may come twice or late."""

    def enqueue(self, queued: QueuedTask) -> None: ...

    def stop(self, tenant: str, task_id: str) -> None:
        """End the work on a task that is over."""
        ...

    def count_ahead(self, agent_id: str) -> int:
        """Tasks that wait for or run at an agent."""
        ...

    def concurrency(self, agent_id: str) -> int:
        """Tasks that the agent can run at a time."""
        ...


class AuthorityResolver(Protocol):
    """What a grant gives to a caller now, and the task that it is for."""

    async def resolve_authority(self, principal: Principal, grant_id: str) -> tuple[Authority, str | None]: ...


class Placement(msgspec.Struct, frozen=True):
    """What routing made of a request: an agent and a first state, or a denial."""

    status: TaskStatus
    decision: RoutingDecision | None = None
    runtime_kind: str | None = None
    denial: RoutingDenied | None = None

    @property
    def agent_id(self) -> str | None:
        return self.decision.agent_id if self.decision else None


class TaskRouter:
    def __init__(self, routing: RoutingEngine, snapshot: AgentCache, learning: LearningView) -> None:
        self._routing = routing
        self._snapshot = snapshot
        self._learning = learning

    def route(self, principal: Principal, wanted: TaskDraft | Task, granted: Authority | None = None) -> Placement:
        """Route; a denial is a placement too, because the task is stored for the record. `granted` is what a grant
        gives, and takes the place of what the caller may ask for by itself.
        """
        request = RoutingRequest(
            principal.tenant,
            wanted.type,
            wanted.required_capabilities,
            granted or self._routing.caller_authority(principal),
            wanted.agent_preference,
            wanted.metadata.prefer or "balanced",
        )
        try:
            decision = self._routing.decide(request)
        except RoutingDenied as denial:
            return Placement("failed", denial=denial)
        agent = self._snapshot.get(principal.tenant, decision.agent_id)
        assert agent is not None
        status: TaskStatus = "pending_approval" if agent.trust_tier == "human" else "queued"
        return Placement(status, decision, agent.runtime.kind)

    def estimate_times(self, now: int, tenant: str, agent_id: str | None, task_type: str) -> tuple[int, int]:
        """When the task may start and end, in microseconds: from the same queue and durations that routing counts."""
        agent = self._snapshot.get(tenant, agent_id or "")
        if agent is None:
            return now, now
        known = self._learning.records(tenant, task_type).weights_by_agent.get(agent.agent_id)
        mean = known.mean_ms if known and known.samples else model.DEFAULT_MEAN_MS
        ahead, lanes, _ = self._routing.agent_load(agent)
        return model.estimate_times(now, ahead, mean, lanes)

    def notice(self, task: Task) -> str | None:
        """What a caller should know of a task that waits, or None."""
        if task.status != "queued" or task.assigned_agent is None:
            return None
        agent = self._snapshot.get(task.tenant, task.assigned_agent)
        return None if agent is None or self._routing.agent_load(agent)[2] else NO_WORKER_ONLINE


def enqueue_after_commit(tx: Tx, task: Task, dispatch: TaskQueue) -> None:
    """Hand a queued task to the dispatcher once it is durable."""
    if task.status == "queued":
        queued = model.to_queued_task(task)
        tx.after_commit(lambda: dispatch.enqueue(queued))
