"""Dispatcher for a process that has the database to itself: one queue per agent in memory.

The queues (`agent_queues.py`) can be rebuilt from the task rows at any time. Tasks of agents inside the service are
started from here; workers claim theirs. `postgres_dispatcher.py` is the variant for several processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from stentor.core.db import NO_LOCKS, Database
from stentor.core.db.polling import PollQuery
from stentor.domains.execution.dispatch.agent_queues import AgentQueues
from stentor.domains.execution.dispatch.dispatcher import RunningTasks, TaskPoll
from stentor.domains.execution.executor import Reservation, TaskExecutor
from stentor.domains.tasks.model import QueuedTask, TaskClaim


class InMemoryDispatcher:
    """Dispatcher on queues in memory."""

    refill_ticks = 10

    def __init__(self, db: Database, executor: TaskExecutor, concurrency: int) -> None:
        self._db = db
        self._executor = executor
        self.concurrency = concurrency
        self._running = RunningTasks(self._pump)
        self._queues = AgentQueues(db, self._pump, self._running.has)
        self._open = True
        self.offline_endpoints: Callable[[], list[str]] = list
        """Set by `bootstrap/parts/tasks.py`."""

    def enqueue(self, queued: QueuedTask) -> None:
        """Add a task to the queue of its agent. Idempotent."""
        self._queues.add(queued)

    def reserve(self, agent_id: str, runtime_kind: str) -> Reservation | None:
        """Reserve a slot for a task that starts at once; None if it must be queued."""
        is_full = self._running.taken_by(agent_id) >= self.concurrency
        # Behind the tasks that are already waiting.
        if runtime_kind == "worker" or is_full or not self._open or self._queues.depth(agent_id):
            return None
        if agent_id in self.offline_endpoints():
            return None
        # No other process changes the registry.
        return Reservation(agent_id, self._running, self._executor, lambda _: True)

    def stop(self, tenant: str, task_id: str, epoch: int | None) -> None:
        """Cancel the attempt of a task. If the task still waits, its queue entry is skipped later."""
        self._queues.remove((tenant, task_id))
        self._running.stop((tenant, task_id), epoch)

    def count_ahead(self, agent_id: str) -> int:
        return self._queues.depth(agent_id) + self._running.count_by_agent.get(agent_id, 0)

    def queue_depths(self) -> dict[str, int]:
        return self._queues.depths()

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        self._queues.move(agent_id, tasks)

    def resume_agents(self, agent_ids: list[str]) -> None:
        for agent_id in agent_ids:
            self._pump(agent_id)

    def count_queued(self) -> int:
        return sum(self._queues.depths().values())

    def count_running(self) -> int:
        return len(self._running)

    @contextmanager
    def poll(self, agent_id: str) -> Iterator[TaskPoll]:
        yield _Poll(self, agent_id)

    async def claim(self, agent_id: str, limit: int, lease: int) -> list[TaskClaim]:
        """Claim queued tasks; puts them back if the store fails."""
        # A refill may enqueue again what was claimed while it read, so all taken tasks may be claimed already. Only an
        # empty queue may give an empty result: otherwise the worker would wait although tasks are queued.
        while taken := await self._take(agent_id, limit):
            try:
                if claims := await self._db.write(
                    partial(self._executor.claim_all, tasks=taken, lease=lease), NO_LOCKS
                ):
                    return claims
            except Exception:
                # Not on cancellation: the transaction still runs and may commit. If it does not, the refill finds them.
                self._put_back(taken)
                raise
        return []

    async def _take(self, agent_id: str, limit: int) -> list[QueuedTask]:
        """Take up to `limit` tasks; fewer only if the queue has no more or cannot be read."""
        taken = self._queues.take(agent_id, limit)
        try:
            while len(taken) < limit and await self._queues.wait_for_read(agent_id):
                taken += self._queues.take(agent_id, limit - len(taken))
        except asyncio.CancelledError:
            self._put_back(taken)
            raise
        return taken

    def _put_back(self, taken: list[QueuedTask]) -> None:
        for queued in taken:
            self.enqueue(queued)

    async def wait_for_task(self, agent_id: str, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._queues.get(agent_id).arrived.wait()
        except TimeoutError:
            return False
        return True

    def refill_query(self) -> PollQuery:
        return self._queues.refill_query()

    def registry_refreshed(self) -> None:
        """Do nothing: no other process changes the registry, so no agent is ever skipped."""

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        self._open = False
        await self._queues.close()
        await self._running.wait_until_done(seconds, hurry)
        # Before the attempts are cancelled: each removes its own claim when it ends.
        claims = list(self._executor.held_claims.values())
        await self._running.stop_all()
        return claims

    def _pump(self, agent_id: str) -> None:
        if agent_id in self.offline_endpoints():
            return
        while self._open and self._running.taken_by(agent_id) < self.concurrency:
            if not (taken := self._queues.take(agent_id, 1)):
                return
            queued = taken[0]
            key = (queued.tenant, queued.task_id)
            attempt = partial(self._executor.claim_and_run, queued)
            self._running.start(key, agent_id, queued.epoch + 1, attempt)


class _Poll:
    """A `TaskPoll`; it holds nothing, because the queue in memory knows whether it has tasks."""

    def __init__(self, dispatcher: InMemoryDispatcher, agent_id: str) -> None:
        self._dispatcher = dispatcher
        self._agent_id = agent_id

    async def claim(self, limit: int, lease: int) -> list[TaskClaim]:
        return await self._dispatcher.claim(self._agent_id, limit, lease)

    async def wait(self, seconds: float) -> bool:
        return await self._dispatcher.wait_for_task(self._agent_id, seconds)
