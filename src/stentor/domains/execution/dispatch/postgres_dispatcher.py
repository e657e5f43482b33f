"""Dispatcher for several processes on one PostgreSQL database: the task rows are the queue.

A process claims the next tasks in one transaction and skips rows that another process has locked, so no task is handed
out twice and a crashed process leaves nothing to repair. A message wakes one other process (`task_hints.py`); a poll of
the queue depths each second finds what was missed. `in_memory_dispatcher.py` is the variant for one process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout import Fanout, Reconnected, TaskStopped
from stentor.domains.execution.dispatch.dispatcher import RegistryFreshness, RunningTasks, TaskPoll
from stentor.domains.execution.dispatch.task_hints import TaskHints
from stentor.domains.execution.executor import Reservation, TaskExecutor
from stentor.domains.tasks.model import QueuedTask, TaskClaim
from stentor.domains.tasks.queues import queue_store

RETRY_SECONDS = 1.0
LAST_CLAIM_SECONDS = 10.0
"""How long a process that stops waits for a claim that is under way."""
CLAIM_BATCH = 32
"""Maximum number of tasks claimed in one transaction."""
MAX_ROUNDS = 100
"""How often one transaction reads the queue again because no task of the last read could be claimed."""
log = logging.getLogger(__name__)
Look = Callable[[str, int, int], Awaitable[list[TaskClaim] | None]]
"""Claims up to a number of tasks of an agent for a lease; None if the queue could not be read yet."""


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
        self.concurrency = concurrency
        self._runs_agents = runs_agents
        self._depths: dict[str, int] = {}
        self._local_writes = ConcurrentWrites[str]()
        self._hints = TaskHints(fanout, self._take)
        self._polls = ClaimPolls(self._look, lambda agent_id: self._hints.tell(agent_id, inside=False))
        self._hinted: set[str] = set()
        """Agents inside the service whose hints were taken since the last claim."""
        self._unclaimed: set[str] = set()
        """Agents inside the service that have more tasks than this process could take, and others know it."""
        self._wake = asyncio.Event()
        self._may_have_more = False
        self._is_claiming = self._has_refused_hint = False
        self._running = RunningTasks(self._freed)
        self._pump_task: asyncio.Task[None] | None = None
        self._open = True
        self.offline_endpoints: Callable[[], list[str]] = list
        """Set by `bootstrap/parts/tasks.py`."""
        fanout.subscribe(TaskStopped, self._stop_here)
        # Messages were lost while the connection was down.
        fanout.subscribe(Reconnected, lambda _: self._wake.set())

    def enqueue(self, queued: QueuedTask) -> None:
        self._change_depth(queued.agent_id, 1)
        self._hints.tell(queued.agent_id, inside=queued.runtime_kind != "worker")

    def reserve(self, agent_id: str, runtime_kind: str) -> Reservation | None:
        """Reserve a slot for a task that starts at once; None if it must be queued."""
        if runtime_kind == "worker" or self._pump_task is None or not self._open:
            return None
        # Behind the tasks that are already waiting, as far as this process knows. During a claim it is unknown which
        # tasks will be left.
        if self._is_claiming or self._wake.is_set() or self._depths.get(agent_id):
            return None
        if not self._has_free_slot(agent_id):
            return None
        return Reservation(
            agent_id, self._running, self._executor, lambda tx: self._freshness.are_current(tx, [agent_id])
        )

    def stop(self, tenant: str, task_id: str, epoch: int | None) -> None:
        stopped = TaskStopped(tenant, task_id, epoch)
        self._stop_here(stopped)
        self._fanout.send(stopped)

    def _stop_here(self, stopped: TaskStopped) -> None:
        self._running.stop((stopped.tenant, stopped.task_id), stopped.epoch)

    def count_ahead(self, agent_id: str) -> int:
        return self._depths.get(agent_id, 0) + self._running.count_by_agent.get(agent_id, 0)

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

    @contextmanager
    def poll(self, agent_id: str) -> Iterator[TaskPoll]:
        self._hints.worker_waits(agent_id)
        with self._polls.open(agent_id) as poll:
            yield poll

    async def _look(self, agent_id: str, limit: int, lease: int) -> list[TaskClaim] | None:
        if not self._open:
            return []
        # Only then does it matter whether tasks are left over.
        has_others = self._polls.count(agent_id) > 1 or self._hints.has_others(agent_id)

        def work(tx: Tx) -> tuple[int | None, list[TaskClaim], bool]:
            """Return how many tasks were read, the claims, and whether more wait; None if the tasks were not read."""
            if not self._freshness.are_current(tx, [agent_id]):
                return None, [], False
            count, claims = 0, list[TaskClaim]()
            # Rounds, because all may be parked or denied; only an empty queue may give an empty result.
            for _ in range(MAX_ROUNDS):
                tasks = queue_store.next_for_agent(tx, agent_id, limit)
                count, claims = len(tasks), self._executor.claim_all(tx, tasks, lease)
                if claims or not tasks:
                    break
            return count, claims, has_others and count == limit and queue_store.has_queued(tx, agent_id)

        count, claims, has_more = await self._db.write(work, NO_LOCKS)
        # After MAX_ROUNDS the transaction is committed and another one continues, so that none holds its rows for long.
        while self._open and count and not claims:
            count, claims, has_more = await self._db.write(work, NO_LOCKS)
        if claims:
            self._change_depth(agent_id, -len(claims))
        if has_more:
            # Hints of tasks that were queued together may have been sent as one.
            self._hints.tell(agent_id, inside=False)
        return None if count is None else claims

    def refill_query(self) -> PollQuery:
        return self._local_writes.start_poll(queue_store.read_queue_depths, self._refill)

    def _refill(self, depths: dict[str, int], changed: set[str]) -> None:
        """Apply the polled depths. The first call starts the pump."""
        # Do not overwrite what this process changed while the poll was reading.
        self._depths = depths | {agent_id: self._depths[agent_id] for agent_id in changed}
        self._hints.renew()
        for agent_id, depth in self._depths.items():
            if depth:
                self._polls.wake_one(agent_id)
                self._wake.set()
        if self._runs_agents and self._open and self._pump_task is None:
            self._pump_task = asyncio.create_task(self._pump())
            self._hints.start_working()

    def registry_refreshed(self) -> None:
        if self._freshness.skipped_agents:
            self._freshness.skipped_agents.clear()
            self._wake.set()

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        self._open = False
        self._hints.stop_working()
        if self._pump_task is not None:
            self._wake.set()
            # Not cancelled at once: a claim that is in progress would be committed without anything running it.
            await asyncio.wait([self._pump_task], timeout=LAST_CLAIM_SECONDS)
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)
            await asyncio.sleep(0)  # the attempts of that claim begin, and so keep their leases
        await self._running.wait_until_done(seconds, hurry)
        # Before the attempts are cancelled: each removes its own claim when it ends.
        claims = list(self._executor.held_claims.values())
        await self._running.stop_all()
        return claims

    def _take(self, agent_id: str, inside: bool) -> bool:
        """Have this process look for a task of the agent; False if it has no free slot."""
        if not inside:
            return self._polls.wake_one(agent_id)
        if self._pump_task is None or not self._open or not self._has_free_slot(agent_id):
            # The end of an attempt wakes the pump.
            self._may_have_more = self._has_refused_hint = True
            return False
        self._hinted.add(agent_id)
        self._wake.set()
        return True

    def _has_free_slot(self, agent_id: str) -> bool:
        return (
            self._running.taken_by(agent_id) < self.concurrency
            and agent_id not in self._freshness.skipped_agents
            and agent_id not in self.offline_endpoints()
        )

    def _freed(self, agent_id: str) -> None:
        if self._may_have_more:
            self._wake.set()

    def _change_depth(self, agent_id: str, by: int) -> None:
        self._depths[agent_id] = max(0, self._depths.get(agent_id, 0) + by)
        self._local_writes.record_write(agent_id)

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            if not self._open:
                return
            self._wake.clear()
            try:
                for claim in await self._claim_next():
                    key = (claim.tenant, claim.task_id)
                    self._running.start(key, claim.agent_id, claim.epoch, partial(self._executor.run_claim, claim))
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)  # the database logs the outage
                self._wake.set()
            except Exception:
                # Fails open: the tasks stay queued, and the next poll finds them.
                log.exception("dispatcher: claiming the next tasks failed")

    async def _claim_next(self) -> list[TaskClaim]:
        """Claim the next tasks of the agents that are below their concurrency in this process."""
        excluded = {agent_id for agent_id, n in self._running.count_taken().items() if n >= self.concurrency}
        excluded |= {*self._freshness.skipped_agents, *self.offline_endpoints()}
        self._pass_on(self._hinted & excluded)
        self._hinted.clear()

        def work(tx: Tx) -> tuple[int, list[TaskClaim], set[str]]:
            running = self._running.count_taken()
            tasks = queue_store.next_in_process(tx, list(excluded), CLAIM_BATCH)
            current = self._freshness.current_agents(tx, sorted({queued.agent_id for queued in tasks}))
            claims, waiting = list[TaskClaim](), [queued for queued in tasks if queued.agent_id in current]
            # In rounds, because a task that is denied or parked leaves its slot to the next one.
            while fitting := self._fit(waiting, running):
                claimed = self._executor.claim_all(tx, fitting, self._executor.lease_us)
                running.update(claim.agent_id for claim in claimed)
                claims += claimed
                waiting = [queued for queued in waiting if queued not in fitting]
            left = {queued.agent_id for queued in tasks if queued.agent_id not in current or queued in waiting}
            if len(tasks) == CLAIM_BATCH:
                left |= {agent_id for agent_id, n in running.items() if n >= self.concurrency} - excluded
            return len(tasks), claims, left

        # An attempt that ends during the transaction must wake the pump, so assume until then that more tasks wait.
        self._may_have_more, self._has_refused_hint = True, False
        self._is_claiming = True
        try:
            count, claims, left = await self._db.write(work, NO_LOCKS)
        finally:
            self._is_claiming = False
        if count == CLAIM_BATCH:
            self._wake.set()
        # Tasks of excluded agents were not read, and some of those that were read could not be claimed.
        self._may_have_more = bool(excluded) or count > len(claims) or self._has_refused_hint
        # Only new tasks: processes without a free slot already know about the others.
        self._pass_on(left - self._unclaimed)
        self._unclaimed = left | (self._unclaimed & excluded)
        for claim in claims:
            self._change_depth(claim.agent_id, -1)
        return claims

    def _fit(self, waiting: list[QueuedTask], running: Counter[str]) -> list[QueuedTask]:
        """Return the first tasks of each agent for which it has free slots."""
        running, fitting = running.copy(), list[QueuedTask]()
        for queued in waiting:
            if running[queued.agent_id] < self.concurrency:
                running[queued.agent_id] += 1
                fitting.append(queued)
        return fitting

    def _pass_on(self, agent_ids: set[str]) -> None:
        for agent_id in agent_ids:
            self._hints.pass_on(agent_id, inside=True)


class ClaimPoll:
    """The poll of one worker, a `TaskPoll`."""

    def __init__(self, agent_id: str, look: Look) -> None:
        self._agent_id = agent_id
        self._look = look
        self._is_new = True
        self.hinted = asyncio.Event()
        """Set while there may be a task that this poll has not looked for."""

    async def claim(self, limit: int, lease: int) -> list[TaskClaim]:
        """Claim tasks; costs no query unless the poll has just begun or there was a hint since."""
        was_hinted = self.hinted.is_set()
        if not was_hinted and not self._is_new:
            return []
        # Before the query: a hint that arrives while it runs may be for a task that it does not see.
        self.hinted.clear()
        self._is_new = False
        try:
            claims = await self._look(self._agent_id, limit, lease)
        except BaseException:
            if was_hinted:
                self.hinted.set()
            raise
        if claims is None:
            self.hinted.set()
        return claims or []

    async def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for a hint. Return False on a timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self.hinted.wait()
        except TimeoutError:
            return False
        return True


class ClaimPolls:
    """All polls of a process. `hand_back` is called with the agent of a hint whose poll has ended."""

    def __init__(self, look: Look, hand_back: Callable[[str], None]) -> None:
        self._look = look
        self._hand_back = hand_back
        self._by_agent: dict[str, list[ClaimPoll]] = {}

    @contextmanager
    def open(self, agent_id: str) -> Iterator[ClaimPoll]:
        poll = ClaimPoll(agent_id, self._look)
        polls = self._by_agent.setdefault(agent_id, [])
        polls.append(poll)
        try:
            yield poll
        finally:
            polls.remove(poll)
            if not polls:
                del self._by_agent[agent_id]
            if poll.hinted.is_set():
                self._hand_back(agent_id)

    def wake_one(self, agent_id: str) -> bool:
        """Have one poll look for a task; False if none waits that has no hint yet."""
        poll = next((poll for poll in self._by_agent.get(agent_id, ()) if not poll.hinted.is_set()), None)
        if poll is not None:
            poll.hinted.set()
        return poll is not None

    def count(self, agent_id: str) -> int:
        return len(self._by_agent.get(agent_id, ()))
