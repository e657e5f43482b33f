"""The dispatch engine: which task is the next for an agent, and what runs in this process.

Two engines stand behind one port: `lanes`, in memory, for a process that has the database to itself; and `rows`, for
several processes on one database. The task's row is the truth for both.

The attempts that run in this process, by task.

Whether what this process knows of an agent is what the registry says, at the moment of a claim.

Another process may have registered the agent, changed it or put it into quarantine a moment ago. Then its tasks are
passed over until the registry was read again.

What metrics tell of the work in this process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from prometheus_client.core import Metric

from stentor.core.db import Tx
from stentor.core.db.polling import PollQuery
from stentor.core.errors import StoreUnavailable
from stentor.core.metrics import gauge_family
from stentor.domains.registry import store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks.model import QueuedTask, TaskClaim
from stentor.domains.tasks.placement import TaskQueue


class Dispatcher(TaskQueue, Protocol):
    """What tasks are offered to, with what execution needs of it besides."""

    refill_ticks: int
    """Ticks of the reconciler."""
    offline_endpoints: Callable[[], list[str]]
    """Agents inside the service whose tasks are to wait, because their endpoint does not answer."""

    def count_queued(self) -> int:
        """Tasks that wait."""
        ...

    def count_running(self) -> int:
        """Tasks that this process carries out itself just now."""
        ...

    async def claim(self, agent_id: str, most: int, lease: int) -> list[TaskClaim]:
        """Claim up to `most` waiting tasks of an agent, the most urgent first; `lease` in microseconds."""
        ...

    async def wait_for_task(self, agent_id: str, seconds: float) -> bool:
        """Wait until something may wait for the agent, at most `seconds`."""
        ...

    def queue_depths(self) -> dict[str, int]:
        """How many tasks wait for each agent that any wait for, as far as this process knows."""
        ...

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        """Tasks that waited for this agent wait for others now, as they say."""
        ...

    def resume_agents(self, agent_ids: list[str]) -> None:
        """Agents are at rest no more."""
        ...

    def refill_query(self) -> PollQuery:
        """A look at the rows for what nobody offered here."""
        ...

    def registry_refreshed(self) -> None:
        """What other processes changed in the registry is known here now."""
        ...

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        """Take no more; what runs has so many seconds to end, less if there is a hurry. Answers what was stopped."""
        ...


TaskRef = tuple[str, str]
log = logging.getLogger(__name__)


class RunningTasks:
    """`freed` is called with an agent's id whenever one of its attempts is over."""

    def __init__(self, freed: Callable[[str], None]) -> None:
        self._freed = freed
        self._tasks: dict[TaskRef, asyncio.Task[None]] = {}
        self.count_by_agent: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, key: TaskRef, agent_id: str, attempt: Coroutine[Any, Any, None]) -> None:
        self.count_by_agent[agent_id] += 1
        task = self._tasks[key] = asyncio.create_task(attempt)
        task.add_done_callback(lambda done: self._after(key, agent_id, done))

    def stop(self, key: TaskRef) -> None:
        if (task := self._tasks.get(key)) is not None:
            task.cancel()

    async def wait_until_done(self, seconds: float, hurry: asyncio.Event) -> None:
        """Wait until all have ended, at most so many seconds."""
        if not self._tasks or seconds <= 0:
            return
        ended = asyncio.ensure_future(asyncio.wait(self._tasks.values(), timeout=seconds))
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait([ended, hurried], return_when=asyncio.FIRST_COMPLETED)
        for waiting in (ended, hurried):
            waiting.cancel()

    async def stop_all(self) -> None:
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _after(self, key: TaskRef, agent_id: str, task: asyncio.Task[None]) -> None:
        self.count_by_agent[agent_id] -= 1
        if not self.count_by_agent[agent_id]:
            del self.count_by_agent[agent_id]
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and (error := task.exception()):
            # In an outage that would be a line for every task, and the database says it already.
            level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.ERROR
            log.log(level, "an attempt at task %s was left to the reconciler: %r", key[1], error)
        self._freed(agent_id)


MAX_SKIPS = 3
"""Times that an agent is passed over; then its tasks are denied or taken by what is known, and do not wait for ever."""


class RegistryFreshness:
    """`stale` has the registry read again; called on the event loop."""

    def __init__(self, snapshot: AgentCache) -> None:
        self._snapshot = snapshot
        self._times: Counter[str] = Counter()
        self.on_stale: Callable[[], None] = lambda: None
        self.skipped_agents: set[str] = set()

    def are_current(self, tx: Tx, agent_ids: list[str]) -> bool:
        return len(self.current_agents(tx, agent_ids)) == len(agent_ids)

    def current_agents(self, tx: Tx, agent_ids: list[str]) -> set[str]:
        """Those whose tasks may be taken now."""
        versions = store.read_versions(tx, agent_ids) if agent_ids else {}
        known = {agent_id for agent_id in agent_ids if self._snapshot.version(agent_id) == versions.get(agent_id)}
        old = [agent_id for agent_id in agent_ids if agent_id not in known]
        if old:
            tx.after_commit(lambda: self._passed(old))
        patient = {agent_id for agent_id in old if self._times[agent_id] < MAX_SKIPS}
        for agent_id in known & self._times.keys():
            del self._times[agent_id]
        return set(agent_ids) - patient

    def _passed(self, agent_ids: list[str]) -> None:
        self._times.update(agent_ids)
        self.skipped_agents.update(one for one in agent_ids if self._times[one] <= MAX_SKIPS)
        self.on_stale()


def collect_metrics(dispatcher: Dispatcher) -> Iterable[Metric]:
    yield gauge_family(
        "stentor_queue_depth",
        "Tasks that wait for their agent, as far as this process knows.",
        dispatcher.count_queued(),
    )
    yield gauge_family(
        "stentor_running", "Tasks that this process carries out itself just now.", dispatcher.count_running()
    )
