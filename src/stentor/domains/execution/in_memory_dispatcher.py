"""Dispatcher for a process that has the database to itself: one queue per agent in memory; its order: `fair_queue.py`.

The queues can be rebuilt from the task rows at any time. Tasks of agents inside the service are started from here;
workers claim theirs. `postgres_dispatcher.py` is the variant for several processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.polling import PollQuery
from stentor.domains.execution.dispatcher import RunningTasks
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.execution.fair_queue import FairQueue
from stentor.domains.tasks import queue_store
from stentor.domains.tasks.model import QueuedTask, TaskClaim
from stentor.domains.tasks.store import TaskRef

REFILL_LIMIT = 20_000
"""Maximum number of queued tasks that one refill reads into memory; the rest follows as these are done."""


class AgentQueue:
    """Tasks that wait for one agent, and an event that is set while there are any."""

    def __init__(self) -> None:
        self.tasks = FairQueue()
        self.arrived = asyncio.Event()

    def push(self, queued: QueuedTask) -> None:
        self.tasks.push(queued)
        self.arrived.set()

    def drop(self, keys: set[TaskRef]) -> None:
        self.tasks.drop(keys)
        if not self.tasks:
            self.arrived.clear()

    def pop(self) -> QueuedTask:
        queued = self.tasks.pop()
        if not self.tasks:
            self.arrived.clear()
        return queued


class InMemoryDispatcher:
    """Dispatcher on queues in memory."""

    refill_ticks = 10

    def __init__(self, db: Database, executor: TaskExecutor, concurrency: int) -> None:
        self._db = db
        self._executor = executor
        self._concurrency = concurrency
        self._queues: dict[str, AgentQueue] = {}
        self._waiting: dict[TaskRef, str] = {}
        """The newest event id of each waiting task. A queue entry with another one is outdated and is skipped."""
        self._running = RunningTasks(self._pump)
        self._open = True
        self.offline_endpoints: Callable[[], list[str]] = list
        """Set by `bootstrap/parts/tasks.py`."""

    def enqueue(self, queued: QueuedTask) -> None:
        """Add a task to the queue of its agent. Idempotent."""
        key = (queued.tenant, queued.task_id)
        # The head differs after each change of the task, so only the very same entry is a repetition.
        if self._waiting.get(key) == queued.head_id or not self._open:
            return
        self._waiting[key] = queued.head_id
        self._queues.setdefault(queued.agent_id, AgentQueue()).push(queued)
        if queued.runtime_kind != "worker":
            self._pump(queued.agent_id)

    def stop(self, tenant: str, task_id: str) -> None:
        """Cancel the attempt of a task. If the task still waits, its queue entry is skipped later."""
        self._waiting.pop((tenant, task_id), None)
        self._running.stop((tenant, task_id))

    def count_ahead(self, agent_id: str) -> int:
        queue = self._queues.get(agent_id)
        return len(queue.tasks) + self._running.count_by_agent.get(agent_id, 0) if queue else 0

    def concurrency(self, agent_id: str) -> int:
        """Return how many tasks of an agent run at a time. A worker decides that itself by how much it claims."""
        return self._concurrency

    def queue_depths(self) -> dict[str, int]:
        return {agent_id: len(queue.tasks) for agent_id, queue in self._queues.items() if queue.tasks}

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        if (queue := self._queues.get(agent_id)) is not None:
            # Drop before enqueueing: a task may move back to this very queue.
            queue.drop({(queued.tenant, queued.task_id) for queued in tasks})
        for queued in tasks:
            self.enqueue(queued)

    def resume_agents(self, agent_ids: list[str]) -> None:
        for agent_id in agent_ids:
            self._pump(agent_id)

    def count_queued(self) -> int:
        return len(self._waiting)

    def count_running(self) -> int:
        return len(self._running)

    async def claim(self, agent_id: str, limit: int, lease: int) -> list[TaskClaim]:
        """Claim queued tasks; puts them back if the store fails."""
        # A refill may enqueue again what was claimed while it read, so all taken tasks may be claimed already. Only an
        # empty queue may give an empty result: otherwise the worker would wait although tasks are queued.
        while taken := self._take(agent_id, limit):
            try:
                if claims := await self._db.write(partial(self._claim, queued=taken, lease=lease), NO_LOCKS):
                    return claims
            except Exception:
                for queued in taken:
                    self.enqueue(queued)
                raise
        return []

    def _claim(self, tx: Tx, queued: list[QueuedTask], lease: int) -> list[TaskClaim]:
        claims = (self._executor.claim(tx, entry, lease) for entry in queued)
        return [claim for claim in claims if claim is not None]

    async def wait_for_task(self, agent_id: str, seconds: float) -> bool:
        queue = self._queues.setdefault(agent_id, AgentQueue())
        try:
            async with asyncio.timeout(seconds):
                await queue.arrived.wait()
        except TimeoutError:
            return False
        return True

    def refill_query(self) -> PollQuery:
        return lambda tx: partial(self._enqueue_all, queue_store.list_queued(tx, REFILL_LIMIT))

    def _enqueue_all(self, tasks: list[QueuedTask]) -> None:
        for queued in tasks:
            self.enqueue(queued)

    def registry_refreshed(self) -> None:
        """Do nothing: no other process changes the registry, so no agent is ever skipped."""

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        self._open = False
        await self._running.wait_until_done(seconds, hurry)
        await self._running.stop_all()
        return []  # cancelled tasks stay executing; the next start recovers them

    def _take(self, agent_id: str, limit: int) -> list[QueuedTask]:
        queue = self._queues.get(agent_id)
        taken: list[QueuedTask] = []
        while queue and queue.tasks and len(taken) < limit:
            queued = queue.pop()
            key = (queued.tenant, queued.task_id)
            # Otherwise the entry is outdated: the task was stopped, or queued again since and has another entry.
            if self._waiting.get(key) == queued.head_id:
                del self._waiting[key]
                taken.append(queued)
        return taken

    def _pump(self, agent_id: str) -> None:
        running = self._running.count_by_agent
        if agent_id in self.offline_endpoints():
            return
        while self._open and running.get(agent_id, 0) < self._concurrency and (taken := self._take(agent_id, 1)):
            queued = taken[0]
            self._running.start((queued.tenant, queued.task_id), agent_id, self._executor.claim_and_run(queued))
