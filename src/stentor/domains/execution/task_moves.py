"""The move of queued tasks to other agents: which tasks may move, and the transaction that moves them.

`rerouting` decides when and where to.
"""

from __future__ import annotations

from functools import partial

import msgspec

from stentor.auth.principal import RoleRegistry
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.runlog import RunLog, read_latest_events
from stentor.domains.execution.dispatch.dispatcher import Dispatcher
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.routing.model import Authority, RoutingDecision, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import events, model, queries, store
from stentor.domains.tasks.grants.service import GrantService
from stentor.domains.tasks.model import QueuedTask, Task

PAGE_SIZE = 200
"""Maximum number of tasks moved in one transaction."""
RECENT_EVENTS = 4
"""How many of the latest events are searched for the last decision; of a waiting task only `task_queued` follows it."""

TaskMove = tuple[Task, RoutingDecision]


class TaskMover:
    """Reads and moves the queued tasks of an agent. The row decides: of two processes only one moves a task."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        routing: RoutingEngine,
        agents: AgentCache,
        presence: Presence,
        dispatcher: Dispatcher,
        grants: GrantService,
        roles: RoleRegistry,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._routing = routing
        self._agents = agents
        self._presence = presence
        self._dispatcher = dispatcher
        self._grants = grants
        self._roles = roles

    async def read_page(
        self, agent: Agent, after: Task | None, *, with_parked: bool = True
    ) -> list[tuple[Task, RoutingRequest]]:
        """Return the next tasks that may move from the agent, each with the request to route it again."""

        def read(tx: Tx) -> list[tuple[Task, RoutingRequest]]:
            tasks = store.list_reassignable(tx, agent.tenant, agent.agent_id, after, PAGE_SIZE, with_parked=with_parked)
            return [(task, _build_request(task, self._authority(tx, task))) for task in tasks]

        return await self._db.poll(read)

    async def move(self, agent: Agent, moves: list[TaskMove]) -> tuple[int, int | None]:
        """Move tasks from the agent. Return how many were moved, and when those that had moved too recently may move.

        A task that was claimed, cancelled or moved by another process in the meantime stays as it is.
        """
        return await self._db.write(partial(self._move, agent=agent, moves=moves), NO_LOCKS)

    def _authority(self, tx: Tx, task: Task) -> Authority:
        if task.metadata.grant_id is not None or task.required_capabilities or not self._routing.policy.own_authority:
            return self._grants.resolve_task_authority(tx, task)
        # Without capabilities, each agent that it moves to must be one that its submitter could have given it to.
        key = task.tenant, task.submitted_by
        is_free = self._roles.is_person(*key) or self._roles.is_agent_with_admin(*key)
        return Authority() if is_free else self._routing.key_authority(*key)

    def _move(self, tx: Tx, agent: Agent, moves: list[TaskMove]) -> tuple[int, int | None]:
        reassigned: list[QueuedTask] = []
        later = []
        for task, decision in moves:
            movable_at = self._movable_from(tx, task)
            if movable_at > tx.now:
                later.append(movable_at)
            elif (queued := self._reassign(tx, task, decision, agent)) is not None:
                reassigned.append(queued)
        if reassigned:
            # After the commit: an agent must not claim from a row that still names the old one.
            tx.after_commit(partial(self._dispatcher.reassign, agent.agent_id, reassigned))
        return len(reassigned), min(later, default=None)

    def _reassign(self, tx: Tx, task: Task, decision: RoutingDecision, left: Agent) -> QueuedTask | None:
        """Assign the task to another agent. Return None if a claim, a cancellation or another process was faster."""
        target = self._agents.get(task.tenant, decision.agent_id)
        if target is None:
            return None
        reason = left.status if left.status != "active" else "busy" if self._presence.is_online(left) else "offline"
        drafts = events.rerouting_events(decision, task.priority, left, reason)
        head = drafts[-1].event_id
        # The row first: if it is not changed, no event may be recorded.
        if not store.reassign(tx, task, target.agent_id, target.runtime.kind, head):
            return None
        self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        changes = ("queued", left.agent_id, -1), ("queued", target.agent_id, 1)
        queries.update_counts(tx, task.tenant, task.created_at, *changes)
        record = partial(self._routing.record_choice, task.tenant, task.type)
        tx.after_commit(partial(record, target.agent_id))
        # A task that the agent never started does not count as a try.
        if task.epoch == task.retry_epoch:
            tx.after_commit(partial(record, left.agent_id, -1))
        moved = msgspec.structs.replace(
            task, assigned_agent=target.agent_id, runtime_kind=target.runtime.kind, head_id=head
        )
        return model.to_queued_task(moved)

    def _movable_from(self, tx: Tx, task: Task) -> int:
        """Return when the task may move, in microseconds; 0 if it has not moved since its submission or last retry."""
        for event in reversed(read_latest_events(tx, task.tenant, task.task_id, RECENT_EVENTS)):
            if event.event_type == "routing_decision":
                return event.happened_at + self._presence.offline_after_us if "rerouted_from" in event.metadata else 0
        return 0


def _build_request(task: Task, authority: Authority) -> RoutingRequest:
    prefer = task.metadata.prefer or "balanced"
    return RoutingRequest(
        task.tenant,
        task.type,
        task.required_capabilities,
        authority,
        None,
        prefer,
        input_length=task.metadata.input_length,
    )
