"""Dispatcher for several processes on one PostgreSQL database: the task rows are the queue.

A process claims the next tasks in one transaction and skips rows that another process has locked, so no task is handed
out twice and a crashed process leaves nothing to repair. Fan-out messages wake the other processes; a poll of the queue
depths each second finds what was missed. `in_memory_dispatcher.py` is the variant for one process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout import Fanout, Reconnected, TaskQueued, TaskStopped
from stentor.domains.execution.dispatcher import RegistryFreshness, RunningTasks
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.execution.reservation import Reservation
from stentor.domains.tasks import queue_store
from stentor.domains.tasks.model import QueuedTask, TaskClaim

RETRY_SECONDS = 1.0
CLAIM_BATCH = 32
"""Maximum number of tasks claimed in one transaction."""
MAX_ROUNDS = 100
"""How often one transaction reads the queue again because no task of the last read could be claimed."""
log = logging.getLogger(__name__)


class ArrivalEvent(asyncio.Event):
    """Event that is set while an agent may have queued tasks; `set_count` detects a set() during a claim."""

    def __init__(self) -> None:
        super().__init__()
        self.set_count = 0

    def set(self) -> None:
        self.set_count += 1
        super().set()


class PostgresDispatcher:
    """Dispatcher on task rows. `runs_agents`: whether this process also runs the agents inside the service."""

    refill_ticks = 1

    def __init__(
        self,
        db: Database,
        executor: TaskExecutor,
        freshness: RegistryFreshness,
        fanout: Fanout,
        concurrency: int,
        *,
        runs_agents: bool,
    ) -> None:
        self._db = db
        self._executor = executor
        self._freshness = freshness
        self._fanout = fanout
        self._concurrency = concurrency
        self._runs_agents = runs_agents
        self._depths: dict[str, int] = {}
        self._local_writes = ConcurrentWrites[str]()
        self._arrivals: dict[str, ArrivalEvent] = {}
        self._wake = asyncio.Event()
        self._may_have_more = False
        self._is_claiming = False
        self._running = RunningTasks(self._freed)
        self._pump_task: asyncio.Task[None] | None = None
        self._open = True
        self.offline_endpoints: Callable[[], list[str]] = list
        """Set by `bootstrap/parts/tasks.py`."""
        fanout.subscribe(TaskQueued, lambda message: self._arrived(message.agent_id, inside=message.in_process))
        fanout.subscribe(TaskStopped, lambda stopped: self._running.stop((stopped.tenant, stopped.task_id)))
        # Messages were lost while the connection was down.
        fanout.subscribe(Reconnected, lambda _: self._wake.set())

    def enqueue(self, queued: QueuedTask) -> None:
        inside = queued.runtime_kind != "worker"
        self._change_depth(queued.agent_id, 1)
        self._arrived(queued.agent_id, inside=inside)
        self._fanout.send(TaskQueued(queued.agent_id, inside))

    def reserve(self, agent_id: str, runtime_kind: str) -> Reservation | None:
        """Return room for a task that starts at once, None if it must be queued."""
        if runtime_kind == "worker" or self._pump_task is None or not self._open:
            return None
        # Behind the tasks that wait already, as far as this process knows. While a claim is under way, it is not known
        # what it leaves.
        if self._is_claiming or self._wake.is_set() or self._depths.get(agent_id):
            return None
        if self._running.taken_by(agent_id) >= self._concurrency:
            return None
        if agent_id in self._freshness.skipped_agents or agent_id in self.offline_endpoints():
            return None
        return Reservation(
            agent_id, self._running, self._executor, lambda tx: self._freshness.are_current(tx, [agent_id])
        )

    def stop(self, tenant: str, task_id: str) -> None:
        self._running.stop((tenant, task_id))
        self._fanout.send(TaskStopped(tenant, task_id))

    def count_ahead(self, agent_id: str) -> int:
        """Return the queued and running tasks of the agent, as far as this process knows."""
        return self._depths.get(agent_id, 0) + self._running.count_by_agent.get(agent_id, 0)

    def concurrency(self, agent_id: str) -> int:
        return self._concurrency

    def queue_depths(self) -> dict[str, int]:
        return {agent_id: depth for agent_id, depth in self._depths.items() if depth}

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        self._change_depth(agent_id, -len(tasks))
        for queued in tasks:
            self.enqueue(queued)

    def resume_agents(self, agent_ids: list[str]) -> None:
        if agent_ids:
            self._wake.set()

    def count_queued(self) -> int:
        return sum(self._depths.values())

    def count_running(self) -> int:
        return len(self._running)

    async def claim(self, agent_id: str, limit: int, lease: int) -> list[TaskClaim]:
        arrival = self._arrivals.setdefault(agent_id, ArrivalEvent())
        # Costs no query while nothing is queued, as the workers of all agents ask again and again.
        if not self._open or not arrival.is_set():
            return []
        seen = arrival.set_count

        def work(tx: Tx) -> tuple[int | None, list[TaskClaim]]:
            """Return how many tasks were read, and the claims; None if the tasks were not read."""
            count, claims = None, list[TaskClaim]()
            if self._freshness.are_current(tx, [agent_id]):
                # Rounds, because all may be parked or denied; only an empty queue may give an empty result.
                for _ in range(MAX_ROUNDS):
                    tasks = queue_store.next_for_agent(tx, agent_id, limit)
                    attempts = (self._executor.claim(tx, queued, lease) for queued in tasks)
                    count, claims = len(tasks), [claim for claim in attempts if claim is not None]
                    if claims or not tasks:
                        break
            return count, claims

        count, claims = await self._db.write(work, NO_LOCKS)
        # After MAX_ROUNDS the transaction is committed and another one goes on, so that none holds its rows for long.
        while self._open and count and not claims:
            count, claims = await self._db.write(work, NO_LOCKS)
        if claims:
            self._change_depth(agent_id, -len(claims))
        # The queue is empty, unless a task arrived after the transaction had read it.
        if count is not None and count < limit and arrival.set_count == seen:
            arrival.clear()
        return claims

    async def wait_for_task(self, agent_id: str, seconds: float) -> bool:
        arrival = self._arrivals.setdefault(agent_id, ArrivalEvent())
        try:
            async with asyncio.timeout(seconds):
                await arrival.wait()
        except TimeoutError:
            return False
        return True

    def refill_query(self) -> PollQuery:
        return self._local_writes.start_poll(queue_store.read_queue_depths, self._refill)

    def _refill(self, depths: dict[str, int], changed: set[str]) -> None:
        """Apply the polled depths. The first call starts the pump."""
        # Do not overwrite what this process changed while the poll was reading.
        self._depths = depths | {agent_id: self._depths[agent_id] for agent_id in changed}
        for agent_id, depth in self._depths.items():
            if depth:
                self._arrivals.setdefault(agent_id, ArrivalEvent()).set()
                self._wake.set()
        if self._runs_agents and self._open and self._pump_task is None:
            self._pump_task = asyncio.create_task(self._pump())

    def registry_refreshed(self) -> None:
        if self._freshness.skipped_agents:
            self._freshness.skipped_agents.clear()
            self._wake.set()

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        self._open = False
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)
        await self._running.wait_until_done(seconds, hurry)
        # Before the attempts are cancelled: each removes its own claim when it ends.
        claims = list(self._executor.held_claims.values())
        await self._running.stop_all()
        return claims

    def _arrived(self, agent_id: str, *, inside: bool) -> None:
        if inside:
            self._wake.set()
        else:
            self._arrivals.setdefault(agent_id, ArrivalEvent()).set()

    def _freed(self, agent_id: str) -> None:
        if self._may_have_more:
            self._wake.set()

    def _change_depth(self, agent_id: str, by: int) -> None:
        self._depths[agent_id] = max(0, self._depths.get(agent_id, 0) + by)
        self._local_writes.record_write(agent_id)

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                for claim in await self._claim_next():
                    self._running.start((claim.tenant, claim.task_id), claim.agent_id, self._executor.run_claim(claim))
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)  # the database logs the outage
                self._wake.set()
            except Exception:
                # Fails open: the tasks stay queued, and the next poll finds them.
                log.exception("dispatcher: claiming the next tasks failed")

    async def _claim_next(self) -> list[TaskClaim]:
        """Claim the next tasks of the agents that are below their concurrency in this process."""
        excluded = [agent_id for agent_id, n in self._running.count_taken().items() if n >= self._concurrency]
        excluded += [*self._freshness.skipped_agents, *self.offline_endpoints()]

        def work(tx: Tx) -> tuple[int, list[TaskClaim]]:
            running = self._running.count_taken()
            claims: list[TaskClaim] = []
            tasks = queue_store.next_in_process(tx, excluded, CLAIM_BATCH)
            current = self._freshness.current_agents(tx, sorted({queued.agent_id for queued in tasks}))
            for queued in tasks:
                if queued.agent_id not in current or running[queued.agent_id] >= self._concurrency:
                    continue
                if claim := self._executor.claim(tx, queued, self._executor.lease_us):
                    running[queued.agent_id] += 1
                    claims.append(claim)
            return len(tasks), claims

        # An attempt that ends during the transaction must wake the pump, so assume until then that more tasks wait.
        self._may_have_more = True
        self._is_claiming = True
        try:
            count, claims = await self._db.write(work, NO_LOCKS)
        finally:
            self._is_claiming = False
        if count == CLAIM_BATCH:
            self._wake.set()
        # Tasks of excluded agents were not read, and some of those that were read could not be claimed.
        self._may_have_more = bool(excluded) or count > len(claims)
        for claim in claims:
            self._change_depth(claim.agent_id, -1)
        return claims
