"""The engine of several processes on one database: the rows themselves are the queue.

A process claims what is next in one transaction and passes over the rows that another one is taking, so nothing is
handed out twice and nothing has to be repaired when a process dies. Who offers a task tells the others; a look at the
counts each second finds what they were not told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from stentor.core.db import Database, Tx
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout import Fanout, Reconnected, TaskStopped
from stentor.core.fanout import TaskQueued as Told
from stentor.domains.execution.dispatcher import RegistryFreshness, RunningTasks
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.tasks import store
from stentor.domains.tasks.model import QueuedTask, TaskClaim

RETRY_SECONDS = 1.0
CLAIM_BATCH = 32
"""Tasks claimed in one transaction at most."""
log = logging.getLogger(__name__)


class ArrivalEvent(asyncio.Event):
    """Set while something may wait for an agent; `number` counts how often that was said."""

    def __init__(self) -> None:
        super().__init__()
        self.set_count = 0

    def set(self) -> None:
        self.set_count += 1
        super().set()


class PostgresDispatcher:
    """`works`: whether this process runs the agents that live inside the service."""

    refill_ticks = 1

    def __init__(
        self,
        db: Database,
        attempts: TaskExecutor,
        known: RegistryFreshness,
        fanout: Fanout,
        concurrency: int,
        *,
        runs_agents: bool,
    ) -> None:
        self._db = db
        self._attempts = attempts
        self._known = known
        self._fanout = fanout
        self._concurrency = concurrency
        self._works = runs_agents
        self._depths: dict[str, int] = {}
        self._meanwhile = ConcurrentWrites[str]()
        self._arrivals: dict[str, ArrivalEvent] = {}
        self._wake = asyncio.Event()
        self._more = False
        self._running = RunningTasks(self._freed)
        self._pumping: asyncio.Task[None] | None = None
        self._open = True
        self.offline_endpoints: Callable[[], list[str]] = list
        fanout.subscribe(Told, lambda told: self._arrived(told.agent_id, inside=told.in_process))
        fanout.subscribe(TaskStopped, lambda stopped: self._running.stop((stopped.tenant, stopped.task_id)))
        fanout.subscribe(Reconnected, lambda _: self._wake.set())

    def enqueue(self, queued: QueuedTask) -> None:
        inside = queued.runtime_kind != "worker"
        self._move(queued.agent_id, 1)
        self._arrived(queued.agent_id, inside=inside)
        self._fanout.send(Told(queued.agent_id, inside))

    def stop(self, tenant: str, task_id: str) -> None:
        self._running.stop((tenant, task_id))
        self._fanout.send(TaskStopped(tenant, task_id))

    def count_ahead(self, agent_id: str) -> int:
        """As far as this process knows."""
        return self._depths.get(agent_id, 0) + self._running.count_by_agent.get(agent_id, 0)

    def concurrency(self, agent_id: str) -> int:
        return self._concurrency

    def queue_depths(self) -> dict[str, int]:
        return {agent_id: number for agent_id, number in self._depths.items() if number}

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        self._move(agent_id, -len(tasks))
        for queued in tasks:
            self.enqueue(queued)

    def resume_agents(self, agent_ids: list[str]) -> None:
        if agent_ids:
            self._wake.set()

    def count_queued(self) -> int:
        return sum(self._depths.values())

    def count_running(self) -> int:
        return len(self._running)

    async def claim(self, agent_id: str, most: int, lease: int) -> list[TaskClaim]:
        arrival = self._arrivals.setdefault(agent_id, ArrivalEvent())
        if not self._open or not arrival.is_set():
            return []
        seen = arrival.set_count

        def work(tx: Tx) -> tuple[int, list[TaskClaim]]:
            if not self._known.are_current(tx, [agent_id]):
                return most, []
            found = store.next_for_agent(tx, agent_id, most)
            claims = (self._attempts.claim(tx, queued, lease) for queued in found)
            return len(found), [claim for claim in claims if claim is not None]

        found, claims = await self._db.write(work, ())
        if claims:
            self._move(agent_id, -len(claims))
        if found < most and arrival.set_count == seen:
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
        return self._meanwhile.start_poll(store.read_queue_depths, self._refill)

    def _refill(self, depths: dict[str, int], moved: set[str]) -> None:
        """Begins to work, at the first call."""
        self._depths = depths | {agent_id: self._depths[agent_id] for agent_id in moved}
        for agent_id, number in self._depths.items():
            if number:
                self._arrivals.setdefault(agent_id, ArrivalEvent()).set()
                self._wake.set()
        if self._works and self._open and self._pumping is None:
            self._pumping = asyncio.create_task(self._pump())

    def registry_refreshed(self) -> None:
        """The registry was read again."""
        if self._known.skipped_agents:
            self._known.skipped_agents.clear()
            self._wake.set()

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        self._open = False
        if self._pumping is not None:
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)
        await self._running.wait_until_done(seconds, hurry)
        left = list(self._attempts.held_claims.values())
        await self._running.stop_all()
        return left

    def _arrived(self, agent_id: str, *, inside: bool) -> None:
        if inside:
            self._wake.set()
        else:
            self._arrivals.setdefault(agent_id, ArrivalEvent()).set()

    def _freed(self, agent_id: str) -> None:
        if self._more:
            self._wake.set()

    def _move(self, agent_id: str, by: int) -> None:
        self._depths[agent_id] = max(0, self._depths.get(agent_id, 0) + by)
        self._meanwhile.record_write(agent_id)

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                for claim in await self._next():
                    self._running.start((claim.tenant, claim.task_id), claim.agent_id, self._attempts.run_claim(claim))
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)  # the database says in the log that it is out
                self._wake.set()
            except Exception:
                # Fails open: the next look finds them again.
                log.exception("the next tasks could not be taken")

    async def _next(self) -> list[TaskClaim]:
        """Claims for the agents that have a lane free here."""
        full = [agent_id for agent_id, n in self._running.count_by_agent.items() if n >= self._concurrency]
        full += [*self._known.skipped_agents, *self.offline_endpoints()]

        def work(tx: Tx) -> tuple[int, list[TaskClaim]]:
            room = Counter(self._running.count_by_agent)
            claims: list[TaskClaim] = []
            found = store.next_in_process(tx, full, CLAIM_BATCH)
            known = self._known.current_agents(tx, sorted({queued.agent_id for queued in found}))
            for queued in found:
                if queued.agent_id not in known or room[queued.agent_id] >= self._concurrency:
                    continue
                if claim := self._attempts.claim(tx, queued, self._attempts.lease_us):
                    room[queued.agent_id] += 1
                    claims.append(claim)
            return len(found), claims

        self._more = True
        found, claims = await self._db.write(work, ())
        if found == CLAIM_BATCH:
            self._wake.set()
        self._more = bool(full) or found > len(claims)
        for claim in claims:
            self._move(claim.agent_id, -1)
        return claims
