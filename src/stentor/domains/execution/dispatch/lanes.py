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
from stentor.domains.execution.attempt import Attempts
from stentor.domains.execution.dispatch.running import Key, Running
from stentor.domains.tasks import store
from stentor.domains.tasks.model import Claim, Queued

SCAN = 20_000
"""Waiting tasks brought back into memory by one scan; the rest follow as these are done."""


class Lane:
    """What waits for one agent."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, str, Queued]] = []
        self.arrived = asyncio.Event()

    def push(self, queued: Queued) -> None:
        heapq.heappush(self.heap, (queued.priority, queued.queued_at, queued.task_id, queued))
        self.arrived.set()

    def drop(self, keys: set[Key]) -> None:
        self.heap = [entry for entry in self.heap if (entry[-1].tenant, entry[-1].task_id) not in keys]
        heapq.heapify(self.heap)
        if not self.heap:
            self.arrived.clear()

    def pop(self) -> Queued:
        queued = heapq.heappop(self.heap)[-1]
        if not self.heap:
            self.arrived.clear()
        return queued


class Lanes:
    refill_every = 10

    def __init__(self, db: Database, attempts: Attempts, concurrency: int) -> None:
        self._db = db
        self._attempts = attempts
        self._concurrency = concurrency
        self._lanes: dict[str, Lane] = {}
        self._waiting: dict[Key, str] = {}
        """The newest event of each task that waits: an offer with another one is older or newer."""
        self._running = Running(self._pump)
        self._open = True
        self.resting: Callable[[], list[str]] = list

    def offer(self, queued: Queued) -> None:
        """Let a task wait for its agent. An offer that is known already changes nothing."""
        key = (queued.tenant, queued.task_id)
        if self._waiting.get(key) == queued.head_id or not self._open:
            return
        self._waiting[key] = queued.head_id
        self._lanes.setdefault(queued.agent_id, Lane()).push(queued)
        if queued.runtime_kind != "worker":
            self._pump(queued.agent_id)

    def stop(self, tenant: str, task_id: str) -> None:
        """End the work on a task at once; one that waits is passed over when its turn comes."""
        self._waiting.pop((tenant, task_id), None)
        self._running.stop((tenant, task_id))

    def ahead(self, agent_id: str) -> int:
        lane = self._lanes.get(agent_id)
        return len(lane.heap) + self._running.of_agent.get(agent_id, 0) if lane else 0

    def lanes(self, agent_id: str) -> int:
        """Tasks of an agent that run at a time; what a worker can do at a time it decides itself."""
        return self._concurrency

    def queues(self) -> dict[str, int]:
        return {agent_id: len(lane.heap) for agent_id, lane in self._lanes.items() if lane.heap}

    def reassigned(self, agent_id: str, tasks: list[Queued]) -> None:
        if (lane := self._lanes.get(agent_id)) is not None:
            lane.drop({(queued.tenant, queued.task_id) for queued in tasks})
        for queued in tasks:
            self.offer(queued)

    def resume(self, agent_ids: list[str]) -> None:
        for agent_id in agent_ids:
            self._pump(agent_id)

    def depth(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return len(self._running)

    async def take(self, agent_id: str, most: int, lease: int) -> list[Claim]:
        """What is not claimed after all, because the store failed, waits again."""
        # A scan of the rows may offer again what was claimed while it read: an empty answer is for an empty lane.
        while taken := self._next(agent_id, most):
            try:
                if claims := await self._db.write(partial(self._claim, queued=taken, lease=lease), ()):
                    return claims
            except Exception:
                for queued in taken:
                    self.offer(queued)
                raise
        return []

    def _claim(self, tx: Tx, queued: list[Queued], lease: int) -> list[Claim]:
        claims = (self._attempts.claim(tx, one, lease) for one in queued)
        return [claim for claim in claims if claim is not None]

    async def arrival(self, agent_id: str, seconds: float) -> bool:
        lane = self._lanes.setdefault(agent_id, Lane())
        try:
            async with asyncio.timeout(seconds):
                await lane.arrived.wait()
        except TimeoutError:
            return False
        return True

    def waiting(self) -> PollQuery:
        return lambda tx: partial(self._take_up, store.waiting(tx, SCAN))

    def _take_up(self, found: list[Queued]) -> None:
        for queued in found:
            self.offer(queued)

    def fresh(self) -> None:
        """Nothing waits for that where nobody else changes anything."""

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[Claim]:
        self._open = False
        await self._running.end(seconds, hurry)
        await self._running.stop_all()
        return []  # they stay executing, and are taken up at the next start

    def _next(self, agent_id: str, most: int) -> list[Queued]:
        lane = self._lanes.get(agent_id)
        taken: list[Queued] = []
        while lane and lane.heap and len(taken) < most:
            queued = lane.pop()
            key = (queued.tenant, queued.task_id)
            if self._waiting.get(key) == queued.head_id:
                del self._waiting[key]
                taken.append(queued)
        return taken

    def _pump(self, agent_id: str) -> None:
        running = self._running.of_agent
        if agent_id in self.resting():
            return
        while self._open and running.get(agent_id, 0) < self._concurrency and (taken := self._next(agent_id, 1)):
            queued = taken[0]
            self._running.start((queued.tenant, queued.task_id), agent_id, self._attempts.run(queued))
