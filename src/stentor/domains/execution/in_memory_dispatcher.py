"""The engine of a process that has the database to itself: a lane per agent, the most urgent and oldest task first.

It holds what waits in memory and can be rebuilt from the rows at any time. Agents whose work runs
inside the service are driven from here; workers come and claim.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from functools import partial

from stentor.core.db import Database, Tx
from stentor.core.db.polling import PollQuery
from stentor.domains.execution.dispatcher import RunningTasks, TaskRef
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.tasks import store
from stentor.domains.tasks.model import QueuedTask, TaskClaim

REFILL_LIMIT = 20_000
"""Waiting tasks brought back into memory by one scan; the rest follow as these are done."""


class AgentQueue:
    """What waits for one agent."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, str, QueuedTask]] = []
        self.arrived = asyncio.Event()

    def push(self, queued: QueuedTask) -> None:
        heapq.heappush(self.heap, (queued.priority, queued.queued_at, queued.task_id, queued))
        self.arrived.set()

    def drop(self, keys: set[TaskRef]) -> None:
        self.heap = [entry for entry in self.heap if (entry[-1].tenant, entry[-1].task_id) not in keys]
        heapq.heapify(self.heap)
        if not self.heap:
            self.arrived.clear()

    def pop(self) -> QueuedTask:
        queued = heapq.heappop(self.heap)[-1]
        if not self.heap:
            self.arrived.clear()
        return queued


class InMemoryDispatcher:
    refill_ticks = 10

    def __init__(self, db: Database, attempts: TaskExecutor, concurrency: int) -> None:
        self._db = db
        self._attempts = attempts
        self._concurrency = concurrency
        self._lanes: dict[str, AgentQueue] = {}
        self._waiting: dict[TaskRef, str] = {}
        """The newest event of each task that waits: an offer with another one is older or newer."""
        self._running = RunningTasks(self._pump)
        self._open = True
        self.offline_endpoints: Callable[[], list[str]] = list

    def enqueue(self, queued: QueuedTask) -> None:
        """Let a task wait for its agent. An offer that is known already changes nothing."""
        key = (queued.tenant, queued.task_id)
        if self._waiting.get(key) == queued.head_id or not self._open:
            return
        self._waiting[key] = queued.head_id
        self._lanes.setdefault(queued.agent_id, AgentQueue()).push(queued)
        if queued.runtime_kind != "worker":
            self._pump(queued.agent_id)

    def stop(self, tenant: str, task_id: str) -> None:
        """End the work on a task at once; one that waits is passed over when its turn comes."""
        self._waiting.pop((tenant, task_id), None)
        self._running.stop((tenant, task_id))

    def count_ahead(self, agent_id: str) -> int:
        lane = self._lanes.get(agent_id)
        return len(lane.heap) + self._running.count_by_agent.get(agent_id, 0) if lane else 0

    def concurrency(self, agent_id: str) -> int:
        """Tasks of an agent that run at a time; what a worker can do at a time it decides itself."""
        return self._concurrency

    def queue_depths(self) -> dict[str, int]:
        return {agent_id: len(lane.heap) for agent_id, lane in self._lanes.items() if lane.heap}

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        if (lane := self._lanes.get(agent_id)) is not None:
            lane.drop({(queued.tenant, queued.task_id) for queued in tasks})
        for queued in tasks:
            self.enqueue(queued)

    def resume_agents(self, agent_ids: list[str]) -> None:
        for agent_id in agent_ids:
            self._pump(agent_id)

    def count_queued(self) -> int:
        return len(self._waiting)

    def count_running(self) -> int:
        return len(self._running)

    async def claim(self, agent_id: str, most: int, lease: int) -> list[TaskClaim]:
        """What is not claimed after all, because the store failed, waits again."""
        # A scan of the rows may offer again what was claimed while it read: an empty answer is for an empty lane.
        while taken := self._next(agent_id, most):
            try:
                if claims := await self._db.write(partial(self._claim, queued=taken, lease=lease), ()):
                    return claims
            except Exception:
                for queued in taken:
                    self.enqueue(queued)
                raise
        return []

    def _claim(self, tx: Tx, queued: list[QueuedTask], lease: int) -> list[TaskClaim]:
        claims = (self._attempts.claim(tx, one, lease) for one in queued)
        return [claim for claim in claims if claim is not None]

    async def wait_for_task(self, agent_id: str, seconds: float) -> bool:
        lane = self._lanes.setdefault(agent_id, AgentQueue())
        try:
            async with asyncio.timeout(seconds):
                await lane.arrived.wait()
        except TimeoutError:
            return False
        return True

    def refill_query(self) -> PollQuery:
        return lambda tx: partial(self._take_up, store.list_queued(tx, REFILL_LIMIT))

    def _take_up(self, found: list[QueuedTask]) -> None:
        for queued in found:
            self.enqueue(queued)

    def registry_refreshed(self) -> None:
        """Nothing waits for that where nobody else changes anything."""

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        self._open = False
        await self._running.wait_until_done(seconds, hurry)
        await self._running.stop_all()
        return []  # they stay executing, and are taken up at the next start

    def _next(self, agent_id: str, most: int) -> list[QueuedTask]:
        lane = self._lanes.get(agent_id)
        taken: list[QueuedTask] = []
        while lane and lane.heap and len(taken) < most:
            queued = lane.pop()
            key = (queued.tenant, queued.task_id)
            if self._waiting.get(key) == queued.head_id:
                del self._waiting[key]
                taken.append(queued)
        return taken

    def _pump(self, agent_id: str) -> None:
        running = self._running.count_by_agent
        if agent_id in self.offline_endpoints():
            return
        while self._open and running.get(agent_id, 0) < self._concurrency and (taken := self._next(agent_id, 1)):
            queued = taken[0]
            self._running.start((queued.tenant, queued.task_id), agent_id, self._attempts.claim_and_run(queued))
