"""The dispatch engine of one process: a lane per agent, the most urgent and oldest task first.

It holds what waits in memory and can be rebuilt from the rows at any time. Agents whose work runs
inside the service are driven from here; workers come and claim.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable

from stentor.core.errors import StoreUnavailable
from stentor.domains.execution.attempt import Attempts
from stentor.domains.tasks.model import Queued

Key = tuple[str, str]
log = logging.getLogger(__name__)


class Lane:
    """What waits for one agent, and how many of its tasks run in this process."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, str, Queued]] = []
        self.running = 0
        self.arrived = asyncio.Event()

    def push(self, queued: Queued) -> None:
        heapq.heappush(self.heap, (queued.priority, queued.queued_at, queued.task_id, queued))
        self.arrived.set()

    def pop(self) -> Queued:
        queued = heapq.heappop(self.heap)[-1]
        if not self.heap:
            self.arrived.clear()
        return queued


class Dispatcher:
    def __init__(self, attempts: Attempts, concurrency: int) -> None:
        self._attempts = attempts
        self._concurrency = concurrency
        self._lanes: dict[str, Lane] = {}
        self._waiting: dict[Key, int] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._open = True

    def offer(self, queued: Queued) -> None:
        """Let a task wait for its agent. An offer that is known already changes nothing."""
        key = (queued.tenant, queued.task_id)
        if self._waiting.get(key) == queued.queued_at or not self._open:
            return
        self._waiting[key] = queued.queued_at
        lane = self._lanes.setdefault(queued.agent_id, Lane())
        lane.push(queued)
        if queued.runtime_kind != "worker":
            self._pump(queued.agent_id, lane)

    def stop(self, tenant: str, task_id: str) -> None:
        """End the work on a task at once; one that waits is passed over when its turn comes."""
        self._waiting.pop((tenant, task_id), None)
        running = self._running.get((tenant, task_id))
        if running is not None:
            running.cancel()

    def ahead(self, agent_id: str) -> int:
        lane = self._lanes.get(agent_id)
        return len(lane.heap) + lane.running if lane else 0

    def lanes(self, agent_id: str) -> int:
        """Tasks of an agent that run at a time; what a worker can do at a time it decides itself."""
        return self._concurrency

    def depth(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return len(self._running)

    def take(self, agent_id: str, most: int) -> list[Queued]:
        """Remove up to `most` waiting tasks of an agent, the most urgent first."""
        lane = self._lanes.get(agent_id)
        taken: list[Queued] = []
        while lane and lane.heap and len(taken) < most:
            queued = lane.pop()
            if self._waiting.pop((queued.tenant, queued.task_id), None) == queued.queued_at:
                taken.append(queued)
        return taken

    async def arrival(self, agent_id: str, seconds: float) -> bool:
        """Wait until something waits for the agent, at most `seconds`."""
        lane = self._lanes.setdefault(agent_id, Lane())
        try:
            async with asyncio.timeout(seconds):
                await lane.arrived.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Take no more; stop what runs. Its tasks stay executing and are taken up at the next start."""
        self._open = False
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _pump(self, agent_id: str, lane: Lane) -> None:
        while self._open and lane.running < self._concurrency and (taken := self.take(agent_id, 1)):
            lane.running += 1
            queued = taken[0]
            key = (queued.tenant, queued.task_id)
            task = self._running[key] = asyncio.create_task(self._attempts.run(queued))
            task.add_done_callback(self._after(agent_id, lane, key))

    def _after(self, agent_id: str, lane: Lane, key: Key) -> Callable[[asyncio.Task[None]], None]:
        def done(task: asyncio.Task[None]) -> None:
            lane.running -= 1
            if self._running.get(key) is task:
                del self._running[key]
            if not task.cancelled() and (error := task.exception()):
                # In an outage that would be a line for every task, and the database says it already.
                level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.ERROR
                log.log(level, "an attempt at task %s was left to the reconciler: %r", key[1], error)
            self._pump(agent_id, lane)

        return done
