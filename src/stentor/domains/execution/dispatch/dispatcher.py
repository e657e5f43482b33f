"""The interface of the dispatchers, which hand queued tasks to agents, and the parts that both share.

`in_memory_dispatcher.py` serves a process that has the database to itself, `postgres_dispatcher.py` several processes
on one database. For both, the row of a task is the truth. Running an attempt is in `executor.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from prometheus_client.core import Metric

from stentor.core.db import Tx
from stentor.core.db.polling import PollQuery
from stentor.core.errors import StoreUnavailable
from stentor.core.metrics import gauge_family
from stentor.domains.registry import store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.routing.service import AgentLoad, LoadLookup
from stentor.domains.tasks.model import QueuedTask, TaskClaim
from stentor.domains.tasks.store import TaskRef
from stentor.domains.tasks.submission.placement import TaskQueue

MAX_SKIPS = 3
"""How often an agent with an outdated copy is skipped; then the copy decides, so that its tasks do not wait forever."""
log = logging.getLogger(__name__)


class TaskPoll(Protocol):
    """A worker that asks for tasks of its agent, once or for a while."""

    async def claim(self, limit: int, lease: int) -> list[TaskClaim]:
        """Claim up to `limit` queued tasks; `lease` in microseconds."""
        ...

    async def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` until the agent may have a queued task. Return False on a timeout."""
        ...


class Dispatcher(TaskQueue, Protocol):
    """Queue of tasks and hand-out to agents."""

    concurrency: int
    """How many tasks of an agent run at a time. A worker decides that itself by how much it claims."""
    refill_ticks: int
    """Ticks of the reconciler between two refills from the database."""
    offline_endpoints: Callable[[], list[str]]
    """Returns the agents whose tasks must wait because their endpoint is paused after failures."""

    def count_ahead(self, agent_id: str) -> int:
        """Return the number of tasks that are queued for or run at an agent, as far as this process knows."""
        ...

    def count_queued(self) -> int:
        """Return how many tasks wait in the queues."""
        ...

    def count_running(self) -> int:
        """Return how many attempts run in this process."""
        ...

    def poll(self, agent_id: str) -> AbstractContextManager[TaskPoll]:
        """Let a worker of the agent wait for tasks while the block runs."""
        ...

    def queue_depths(self) -> dict[str, int]:
        """Return the number of queued tasks by agent, without empty queues, as far as this process knows."""
        ...

    def reassign(self, agent_id: str, tasks: list[QueuedTask]) -> None:
        """Move tasks from the queue of this agent to the agents that the tasks now name."""
        ...

    def resume_agents(self, agent_ids: list[str]) -> None:
        """Resume agents whose endpoints were paused."""
        ...

    def refill_query(self) -> PollQuery:
        """Return the query that finds queued tasks which were not enqueued in this process."""
        ...

    def registry_refreshed(self) -> None:
        """Continue with agents that were skipped until this process had read the registry again."""
        ...

    async def close(self, seconds: float, hurry: asyncio.Event) -> list[TaskClaim]:
        """Stop claiming and wait `seconds`, or until `hurry` is set, for running attempts; then cancel them.

        Return the claims that others may take over at once.
        """
        ...


Attempt = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
"""An attempt at a task; calls what it gets when its agent has done its work, before the outcome is stored."""


class RunningTasks:
    """Attempts that run in this process, and slots that are reserved for more of them.

    A slot is free again when the agent has done its work; the attempt ends when the outcome is stored. `freed` is
    called with the agent's id when it has a free slot, and after each release.
    """

    def __init__(self, freed: Callable[[str], None]) -> None:
        self._freed = freed
        self._tasks: dict[TaskRef, asyncio.Task[None]] = {}
        self._epochs: dict[TaskRef, int] = {}
        self._working: set[asyncio.Task[None]] = set()
        """Attempts whose agent has not done its work yet, so that they take slots; `_working_by_agent` counts them."""
        self._working_by_agent: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        self.count_by_agent: Counter[str] = Counter()
        """Attempts whose outcome is not stored yet; routing counts their agent as busy."""

    def __len__(self) -> int:
        return len(self._tasks)

    def has(self, key: TaskRef) -> bool:
        return key in self._tasks

    def count_taken(self) -> Counter[str]:
        """Count by agent the slots that are taken or reserved; from any thread."""
        # In this order: an attempt that starts in between may count twice, but is never missed.
        reserved = Counter(self._reserved)
        return reserved + Counter(self._working_by_agent)

    def taken_by(self, agent_id: str) -> int:
        """Return how many slots of one agent are taken or reserved; on the event loop."""
        return self._reserved.get(agent_id, 0) + self._working_by_agent.get(agent_id, 0)

    def reserve(self, agent_id: str) -> None:
        """Reserve a slot for one attempt, until `release`."""
        self._reserved[agent_id] += 1

    def release(self, agent_id: str) -> None:
        _decrement(self._reserved, agent_id)
        self._freed(agent_id)

    def start(self, key: TaskRef, agent_id: str, epoch: int, attempt: Attempt) -> None:
        """Run the attempt of a task whose claim has this epoch."""
        self.count_by_agent[agent_id] += 1
        task = self._tasks[key] = asyncio.create_task(attempt(lambda: self._free_slot(task, agent_id)))
        self._working.add(task)
        self._working_by_agent[agent_id] += 1
        self._epochs[key] = epoch
        task.add_done_callback(lambda done: self._after(key, agent_id, done))

    def stop(self, key: TaskRef, epoch: int | None) -> None:
        """Cancel the attempt of a task, unless its epoch is later; None stops any."""
        task = self._tasks.get(key)
        # A late message must not end a newer attempt than the one it refers to.
        if task is not None and (epoch is None or self._epochs[key] <= epoch):
            task.cancel()

    async def wait_until_done(self, seconds: float, hurry: asyncio.Event) -> None:
        """Wait at most `seconds`, or until `hurry` is set, for all attempts to end."""
        if not self._tasks or seconds <= 0:
            return
        all_done = asyncio.ensure_future(asyncio.wait(self._tasks.values(), timeout=seconds))
        hurried = asyncio.ensure_future(hurry.wait())
        await asyncio.wait([all_done, hurried], return_when=asyncio.FIRST_COMPLETED)
        # Ends the waiting only: `asyncio.wait` never cancels the attempts that it waits for.
        for waiter in (all_done, hurried):
            waiter.cancel()

    async def stop_all(self) -> None:
        running = list(self._tasks.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _free_slot(self, task: asyncio.Task[None], agent_id: str) -> None:
        if task not in self._working:
            return
        self._working.remove(task)
        _decrement(self._working_by_agent, agent_id)
        self._freed(agent_id)

    def _after(self, key: TaskRef, agent_id: str, task: asyncio.Task[None]) -> None:
        _decrement(self.count_by_agent, agent_id)
        # After a requeue a newer attempt of the same task may already have this key.
        if self._tasks.get(key) is task:
            del self._tasks[key], self._epochs[key]
        if not task.cancelled() and (error := task.exception()):
            # In an outage this would be one line per task, and the database already logs the outage.
            level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.ERROR
            log.log(level, "dispatcher: run failed, left to the reconciler task_id=%s error=%r", key[1], error)
        self._free_slot(task, agent_id)


def _decrement(counts: Counter[str], agent_id: str) -> None:
    # Removes the key at 0; otherwise idle and deleted agents would accumulate.
    counts[agent_id] -= 1
    if not counts[agent_id]:
        del counts[agent_id]


class RegistryFreshness:
    """Check that this process has the current version of an agent at the moment of a claim.

    Another process may just have registered, changed or quarantined the agent. Its tasks are then skipped until the
    registry has been read again: `on_stale`, called on the event loop, requests that.
    """

    def __init__(self, agents: AgentCache) -> None:
        self._agents = agents
        self._skips: Counter[str] = Counter()
        self.on_stale: Callable[[], None] = lambda: None
        self.skipped_agents: set[str] = set()

    def are_current(self, tx: Tx, agent_ids: list[str]) -> bool:
        """Return whether the tasks of all these agents may be claimed now."""
        return len(self.current_agents(tx, agent_ids)) == len(agent_ids)

    def current_agents(self, tx: Tx, agent_ids: list[str]) -> set[str]:
        """Return the agents whose tasks may be claimed now."""
        versions = store.read_versions(tx, agent_ids) if agent_ids else {}
        known = {agent_id for agent_id in agent_ids if self._agents.version(agent_id) == versions.get(agent_id)}
        outdated = [agent_id for agent_id in agent_ids if agent_id not in known]
        if outdated:
            # Only after the commit: a transaction that is retried must not count its skip twice.
            tx.after_commit(lambda: self._record_skips(outdated))
        skipped = {agent_id for agent_id in outdated if self._skips[agent_id] < MAX_SKIPS}
        # Not after the commit like the counting above: forgetting a skip twice does no harm.
        for agent_id in known & self._skips.keys():
            del self._skips[agent_id]
        return set(agent_ids) - skipped

    def _record_skips(self, agent_ids: list[str]) -> None:
        self._skips.update(agent_ids)
        self.skipped_agents.update(agent_id for agent_id in agent_ids if self._skips[agent_id] <= MAX_SKIPS)
        self.on_stale()


def create_load_lookup(dispatcher: Dispatcher, presence: Presence) -> LoadLookup:
    """Return the function by which routing asks how busy an agent is."""

    def load(agent: Agent) -> AgentLoad:
        agent_id, online = agent.agent_id, presence.is_online(agent)
        failing = presence.failing_share(agent_id)
        if agent.runtime.kind != "worker":
            ahead = dispatcher.count_ahead(agent_id)
            is_resting = presence.is_resting(agent_id, ahead)
            return AgentLoad(ahead, dispatcher.concurrency, online, is_resting, failing)
        # A worker claims into its own queue, where the dispatcher does not see the tasks that it holds.
        ahead = dispatcher.count_ahead(agent_id) + presence.count_held(agent_id)
        concurrency = presence.concurrency(agent_id) if ahead else 1
        stalled = presence.stalled_ms(agent_id) if ahead >= concurrency else 0.0
        return AgentLoad(ahead, concurrency, online, presence.is_resting(agent_id, ahead), failing, stalled)

    return load


def collect_metrics(dispatcher: Dispatcher) -> Iterable[Metric]:
    """Yield the metrics of the queues and attempts of this process."""
    yield gauge_family(
        "stentor_queue_depth",
        "Queued tasks, as far as this process knows.",
        dispatcher.count_queued(),
    )
    yield gauge_family("stentor_running", "Attempts that run in this process.", dispatcher.count_running())
