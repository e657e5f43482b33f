"""Moves tasks that wait for an agent which went offline to one that is online.

Each process looks by itself, in memory, once a second and when somebody comes; rows are read only for an agent that is
offline and has tasks, when that is news. The row decides: of two processes one moves a task, and none moves what was
claimed. A task moves at most once in the time after which a worker counts as offline, so processes that disagree on who
is online cannot throw it to and fro. Nobody learns from a move.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import StoreUnavailable
from stentor.core.runlog import RunLog, read_latest_events
from stentor.core.timers import wait_until_tick
from stentor.domains.execution.dispatcher import Dispatcher
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.routing.model import Authority, RoutingDecision, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import events, model, queries, store
from stentor.domains.tasks.grants import GrantService
from stentor.domains.tasks.model import QueuedTask, Task

INTERVAL_SECONDS = 1.0
DEBOUNCE_SECONDS = 0.05
"""Between two looks, however many come."""
PAGE_SIZE = 200
"""Tasks moved in one transaction, at most."""
RECENT_EVENTS = 4
"""Events of a waiting task among which its last decision is: `task_queued` alone comes after it."""
log = logging.getLogger(__name__)

TaskMove = tuple[Task, RoutingDecision]


class QueueCheck(msgspec.Struct, frozen=True):
    """What was known when an agent's tasks were last looked at. `until`, in microseconds, is when those that had moved
    a moment ago may move again.
    """

    arrivals: int
    waiting: int
    until: int | None = None


class TaskRerouter:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        routing: RoutingEngine,
        snapshot: AgentCache,
        presence: Presence,
        dispatcher: Dispatcher,
        grants: GrantService,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._routing = routing
        self._snapshot = snapshot
        self._presence = presence
        self._dispatcher = dispatcher
        self._grants = grants
        self._looks: dict[str, QueueCheck] = {}
        snapshot.listeners.append(lambda _: presence.notify_arrival())

    async def run(self) -> None:
        """For ever; an outage of the store is waited out."""
        while True:
            await wait_until_tick(self._presence.changed, INTERVAL_SECONDS)
            if self._presence.changed.is_set():
                await asyncio.sleep(DEBOUNCE_SECONDS)  # who comes together is looked at together
            try:
                await self.tick()
            except StoreUnavailable:
                continue  # the database says in the log that it is out
            except Exception:
                # Fails open: the tasks wait where they are, and the next look tries again.
                log.exception("tasks of offline agents could not be routed again")

    async def tick(self) -> int:
        """Look at the agents whose tasks wait for nobody; answers how many tasks were moved."""
        self._presence.changed.clear()
        self._dispatcher.resume_agents(self._presence.release_endpoints())
        moved = 0
        for agent, waiting in self._offline():
            # Counted before the look: who comes meanwhile, agent or task, is a reason for another one.
            arrivals = self._presence.arrival_count
            number, until = await self._look_at(agent)
            self._looks[agent.agent_id] = QueueCheck(arrivals, waiting - number, until)
            moved += number
        return moved

    def _offline(self) -> list[tuple[Agent, int]]:
        """Those whose tasks are to be looked at now, and how many wait for each. Where everybody is online that is one
        look-up for each queue.
        """
        queues, now = self._dispatcher.queue_depths(), self._clock.now()
        found: list[tuple[Agent, int]] = []
        for agent_id, waiting in queues.items():
            agent = self._snapshot.find_in_any_tenant(agent_id)
            if agent is None or self._presence.is_online(agent):
                self._looks.pop(agent_id, None)
                continue
            last = self._looks.get(agent_id)
            known = last is not None and (last.arrivals, last.waiting) == (self._presence.arrival_count, waiting)
            if not known or (last is not None and last.until is not None and last.until <= now):
                found.append((agent, waiting))
        for agent_id in self._looks.keys() - queues.keys():
            del self._looks[agent_id]
        return found

    async def _look_at(self, agent: Agent) -> tuple[int, int | None]:
        """How many tasks were moved, and when those that moved a moment ago may move again."""
        moved, until = 0, None
        if agent.trust_tier == "human":
            return moved, until  # what waits for it was approved for it
        nobody: set[RoutingRequest] = set()
        after: Task | None = None
        while True:
            found = await self._db.read(partial(self._page, agent=agent, after=after))
            moves = self._moves(found, nobody)
            if moves:
                number, later = await self._db.write(partial(self._move, agent=agent, moves=moves), ())
                moved += number
                until = min((moment for moment in (until, later) if moment is not None), default=None)
            if len(found) < PAGE_SIZE:
                break
            after = found[-1][0]
        if moved:
            log.info("tasks routed again: offline=%s tasks=%d", agent.agent_id, moved)
        return moved, until

    def _page(self, tx: Tx, agent: Agent, after: Task | None) -> list[tuple[Task, Authority]]:
        tasks = store.list_reassignable(tx, agent.tenant, agent.agent_id, after, PAGE_SIZE)
        return [(task, self._grants.resolve_task_authority(tx, task)) for task in tasks]

    def _moves(self, found: list[tuple[Task, Authority]], nobody: set[RoutingRequest]) -> list[TaskMove]:
        """Decisions for the tasks that somebody may have. For a request in `nobody` there was none; alike ones share
        that answer.
        """
        planned, moves = Counter[str](), []
        for task, authority in found:
            prefer = task.metadata.prefer or "balanced"
            request = RoutingRequest(task.tenant, task.type, task.required_capabilities, authority, None, prefer)
            decision = None if request in nobody else self._routing.decide_for_waiting(request, planned)
            if decision is None:
                nobody.add(request)
                continue
            # The agent came back after it was found offline. A move to itself would race with its own claim, which
            # continues the chain of events from the entry of its queue and not from the row.
            if decision.agent_id == task.assigned_agent:
                continue
            planned[decision.agent_id] += 1
            moves.append((task, decision))
        return moves

    def _move(self, tx: Tx, agent: Agent, moves: list[TaskMove]) -> tuple[int, int | None]:
        done: list[QueuedTask] = []
        moments = []
        for task, decision in moves:
            moment = self._movable_from(tx, task)
            if moment > tx.now:
                moments.append(moment)
            elif (queued := self._reassign(tx, task, decision, agent)) is not None:
                done.append(queued)
        if done:
            tx.after_commit(partial(self._dispatcher.reassign, agent.agent_id, done))
        return len(done), min(moments, default=None)

    def _reassign(self, tx: Tx, task: Task, decision: RoutingDecision, offline: Agent) -> QueuedTask | None:
        """None when somebody else was faster: a claim, a cancellation, another process."""
        taker = self._snapshot.get(task.tenant, decision.agent_id)
        if taker is None:
            return None
        drafts = events.rerouting_events(decision, task.priority, offline)
        head = drafts[-1].event_id
        # The row first: where it is not changed, nothing may be recorded.
        if not store.reassign(tx, task, taker.agent_id, taker.runtime.kind, head):
            return None
        self._runlog.append(tx, task.tenant, drafts, task_id=task.task_id, parent=task.head_id)
        changes = ("queued", offline.agent_id, -1), ("queued", taker.agent_id, 1)
        queries.update_counts(tx, task.tenant, task.created_at, *changes)
        fresh = msgspec.structs.replace(
            task, assigned_agent=taker.agent_id, runtime_kind=taker.runtime.kind, head_id=head
        )
        return model.to_queued_task(fresh)

    def _movable_from(self, tx: Tx, task: Task) -> int:
        """When the task may move, in microseconds; 0 for one that has not moved since it was last submitted."""
        for event in reversed(read_latest_events(tx, task.tenant, task.task_id, RECENT_EVENTS)):
            if event.event_type == "routing_decision":
                return event.happened_at + self._presence.offline_after_us if "rerouted_from" in event.metadata else 0
        return 0
