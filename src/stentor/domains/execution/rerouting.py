"""Moves tasks that wait for an offline or a suspended agent to one that is online, and tasks that wait for a busy agent
to an idle one, if that one is the best now.

Each process checks in memory once a second and when an agent becomes available; it reads rows only for an offline agent
with tasks, and only after a change, and for a busy agent with tasks while another one idles. `task_moves` moves them.
A task moves at most once per offline timeout, so that processes which disagree on who is online cannot move it back and
forth. A move is not evidence about any agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from stentor.core.clock import SECOND, Clock
from stentor.core.timers import tick_forever, wait_until_tick
from stentor.domains.execution.dispatch.dispatcher import Dispatcher
from stentor.domains.execution.task_moves import PAGE_SIZE, TaskMove, TaskMover
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.routing.model import RoutingDecision, RoutingRequest
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks.model import Task

INTERVAL_SECONDS = 1.0
DEBOUNCE_SECONDS = 0.05
"""Wait before a check, so that agents which become available together are checked together."""
MIN_WAIT_US = SECOND
"""How long a task waits for a busy agent before it may move, in microseconds: most get their turn sooner."""
MAX_PAGES = 10
"""How many pages of a busy agent's queue are read for tasks that an idle one can do."""
MAX_COMPARED = 10_000
"""How many agents are compared for the tasks of busy ones at one check: about 0.15 s of processor time."""
MAX_AHEAD_MS = 5_000
"""For how long an idle agent gets tasks at one check, in milliseconds, if its speed is known."""
MAX_LISTED = 5_000
"""How many agents of a tenant are looked through for idle ones in a second."""
MAX_PAUSE_US = 32 * SECOND
"""The longest pause between two checks of the queue of a busy agent from which nothing moved, in microseconds."""
log = logging.getLogger(__name__)


class QueueCheck(msgspec.Struct, frozen=True):
    """State at the last check of an agent's queue.

    `until`, in microseconds, is when tasks that had moved too recently may move again.
    """

    arrivals: int
    waiting: int
    until: int | None = None


class BacklogCheck(msgspec.Struct, frozen=True):
    """The last check of a busy agent's queue: which agents were idle, and when the next check is due, after which
    pause, in microseconds, unless another agent becomes idle.
    """

    idle: frozenset[str]
    due_at: int
    pause: int


class Relief:
    """The new choices for the tasks of a busy agent: `planned` tasks by agent, and the `moves` to idle ones."""

    def __init__(self, agent: Agent, idle: Mapping[str, Agent]) -> None:
        self.idle = idle
        self.planned = Counter[str]()
        self.moves: list[TaskMove] = []
        self._agent = agent
        self._free_slots: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Whether no idle agent has a free slot."""
        return len(self._free_slots) == len(self.idle) and not any(self._free_slots.values())

    def count(
        self, task: Task, decision: RoutingDecision | None, count_slots: Callable[[Agent, RoutingDecision], int]
    ) -> None:
        """Count a task for the chosen agent, None for the one that has it; move it to one that has a free slot."""
        # Counted even if the agent is not idle; otherwise all the following tasks would be assigned to it.
        self.planned[self._agent.agent_id if decision is None else decision.agent_id] += 1
        if decision is None or (peer := self.idle.get(decision.agent_id)) is None:
            return
        if peer.agent_id not in self._free_slots:
            self._free_slots[peer.agent_id] = count_slots(peer, decision)
        if self._free_slots[peer.agent_id]:
            self.moves.append((task, decision))
            self._free_slots[peer.agent_id] -= 1


class TaskRerouter:
    """Background job that reroutes the tasks of agents that are offline, suspended or busy."""

    def __init__(
        self,
        mover: TaskMover,
        clock: Clock,
        routing: RoutingEngine,
        agents: AgentCache,
        presence: Presence,
        dispatcher: Dispatcher,
    ) -> None:
        self._mover = mover
        self._clock = clock
        self._routing = routing
        self._agents = agents
        self._presence = presence
        self._dispatcher = dispatcher
        self._checks: dict[str, QueueCheck] = {}
        self._backlogs: dict[str, BacklogCheck] = {}
        self._comparisons_left = 0
        self._idle_agents: dict[str, tuple[int, list[Agent]]] = {}
        """The idle agents of a tenant, and until when the list is kept for later checks."""
        agents.listeners.append(lambda _: presence.notify_arrival())

    async def run(self) -> None:
        """Run forever. After a tick that failed the tasks stay where they are until the next one."""

        async def wait() -> None:
            await wait_until_tick(self._presence.changed, INTERVAL_SECONDS)
            if self._presence.changed.is_set():
                await asyncio.sleep(DEBOUNCE_SECONDS)

        await tick_forever("rerouting", wait, self.tick)

    async def tick(self) -> int:
        """Move the tasks of such agents that another agent should do. Return how many were moved."""
        self._presence.changed.clear()
        self._dispatcher.resume_agents(self._presence.release_endpoints())
        moved = 0
        for agent, waiting in self._list_due():
            # Read before the check: an agent or a task that arrives during it must cause another check.
            arrivals = self._presence.arrival_count
            count, until = await self._reroute_queue(agent)
            self._checks[agent.agent_id] = QueueCheck(arrivals, waiting - count, until)
            moved += count
        return moved + await self._relieve_busy_agents()

    def _list_due(self) -> list[tuple[Agent, int]]:
        """Return the agents whose queue must be checked now, with its depth.

        Costs one lookup per queue if all agents are active and online.
        """
        queues, now = self._dispatcher.queue_depths(), self._clock.now()
        due: list[tuple[Agent, int]] = []
        for agent_id, waiting in queues.items():
            agent = self._agents.find_in_any_tenant(agent_id)
            if agent is None or self._can_claim(agent):
                self._checks.pop(agent_id, None)
                continue
            last = self._checks.get(agent_id)
            unchanged = last is not None and (last.arrivals, last.waiting) == (self._presence.arrival_count, waiting)
            if not unchanged or (last is not None and last.until is not None and last.until <= now):
                due.append((agent, waiting))
        for agent_id in self._checks.keys() - queues.keys():
            del self._checks[agent_id]
        return due

    async def _relieve_busy_agents(self) -> int:
        """Move tasks from agents that have all they can do to idle ones, where those are the best now."""
        queues, now, moved = self._dispatcher.queue_depths(), self._clock.now(), 0
        self._comparisons_left, monotonic = MAX_COMPARED, self._clock.monotonic()
        self._idle_agents = {tenant: known for tenant, known in self._idle_agents.items() if known[0] > monotonic}
        for agent_id in self._backlogs.keys() - queues.keys():
            del self._backlogs[agent_id]
        # The ones checked longest ago come first, because there may not be time for all.
        for agent_id in sorted(queues, key=lambda id_: self._backlogs[id_].due_at if id_ in self._backlogs else 0):
            agent, last = self._agents.find_in_any_tenant(agent_id), self._backlogs.get(agent_id)
            if agent is None or agent.trust_tier == "human" or not self._can_claim(agent) or self._has_free_slot(agent):
                continue
            # Without the agent itself, which may have been idle when they were listed: see `_decide_moves`.
            idle = {
                peer.agent_id: peer
                for peer in self._list_idle(agent.tenant)
                if peer.agent_id != agent_id and _share_work(agent, peer)
            }
            if not idle:
                self._backlogs.pop(agent_id, None)  # so that the next idle agent triggers a check at once
                continue
            # A time before the last check: the clock was set back, and `due_at` may be far away.
            if last is not None and last.due_at - last.pause <= now < last.due_at and idle.keys() <= last.idle:
                continue
            if self._comparisons_left <= 0:
                break
            count = await self._relieve(agent, queues[agent_id], idle)
            pause = 0 if count else min(MAX_PAUSE_US, max(SECOND, 2 * last.pause if last else 0))
            self._backlogs[agent_id] = BacklogCheck(frozenset(idle), now + pause, pause)
            moved += count
        return moved

    def _list_idle(self, tenant: str) -> list[Agent]:
        if tenant not in self._idle_agents:
            agents = self._agents.list_capable(tenant, ())
            idle = [agent for agent in agents if agent.status == "active" and self._has_free_slot(agent)]
            # With very many agents, not at each check. An agent that is busy by now is found when the ranking counts
            # its tasks.
            until = self._clock.monotonic() + SECOND * (len(agents) // MAX_LISTED)
            self._idle_agents[tenant] = until, idle
        return self._idle_agents[tenant][1]

    def _has_free_slot(self, agent: Agent) -> bool:
        """Return whether the agent would begin another task at once."""
        if agent.runtime.kind == "worker":
            # Not an agent that was just registered and counts as online: its program may never start.
            return self._presence.has_free_slot(agent.agent_id)
        load = self._routing.agent_load(agent)
        return load.is_online and load.ahead < load.concurrency

    async def _relieve(self, agent: Agent, waiting: int, idle: Mapping[str, Agent]) -> int:
        """Choose again for the tasks that wait first, as if they arrived now, and move those that get an idle agent."""
        relief, after = Relief(agent, idle), None
        for _ in range(MAX_PAGES):
            page = await self._mover.read_page(agent, after, with_parked=False)
            if after is None:
                # None of them is ahead of the first task. In a queue of one page the other tasks are pinned, and stay
                # ahead.
                relief.planned[agent.agent_id] = -len(page) if len(page) < PAGE_SIZE else -waiting
            for task, request in page:
                if relief.is_full:
                    break
                decision = await self._decide_again(task, request, relief)
                relief.count(task, decision, self._count_slots)
            if len(page) < PAGE_SIZE or relief.is_full or self._comparisons_left <= 0:
                break
            after = page[-1][0]
        if not relief.moves:
            return 0
        count, _ = await self._mover.move(agent, relief.moves)
        if count:
            log.info("rerouting: tasks moved from a busy agent from_agent=%s count=%d", agent.agent_id, count)
        return count

    def _count_slots(self, agent: Agent, decision: RoutingDecision) -> int:
        """Return how many tasks an idle agent gets at one check: what it can begin until about the next one."""
        if agent.runtime.kind == "worker":
            slots = self._presence.count_slots(agent.agent_id)
        else:
            slots = self._routing.agent_load(agent).concurrency
        chosen = next(each for each in decision.candidates if each.agent_id == agent.agent_id)
        # Waits until an agent of unknown speed has shown how long it takes: moved tasks stay there for a while.
        rounds = 1 if not chosen.outcomes else 1 + int(MAX_AHEAD_MS / max(1.0, chosen.ready_ms))
        return min(PAGE_SIZE, slots * rounds)

    async def _decide_again(self, task: Task, request: RoutingRequest, relief: Relief) -> RoutingDecision | None:
        """Return which agent should do a task of a busy agent; None if it stays without a decision."""
        # The steps of an earlier attempt belong to this agent's program. A time in the future means that the clock was
        # set back.
        is_new = task.epoch == task.retry_epoch and not 0 <= self._clock.now() - task.queued_at < MIN_WAIT_US
        peers = relief.idle.values()
        can_move = is_new and any(peer.capability_set.issuperset(task.required_capabilities) for peer in peers)
        if not can_move or self._comparisons_left <= 0:
            return None
        self._comparisons_left -= len(self._agents.list_capable(task.tenant, task.required_capabilities))
        # Other requests continue in the meantime: with a thousand agents a decision takes some milliseconds.
        await asyncio.sleep(0)
        return self._routing.decide_for_waiting(request, relief.planned)

    def _can_claim(self, agent: Agent) -> bool:
        """Return whether the agent gets its tasks: a suspended worker may be connected, but gets none.

        Tasks of agents that the service calls itself are denied at dispatch, and fail.
        """
        is_refused = agent.runtime.kind == "worker" and agent.status != "active"
        return not is_refused and self._presence.is_online(agent)

    async def _reroute_queue(self, agent: Agent) -> tuple[int, int | None]:
        """Return how many tasks were moved, and when those that had moved too recently may move again."""
        moved, until = 0, None
        if agent.trust_tier == "human":
            return moved, until  # its tasks were approved for this agent only
        unroutable: set[RoutingRequest] = set()
        after: Task | None = None
        while True:
            page = await self._mover.read_page(agent, after)
            moves = self._decide_moves(page, unroutable)
            if moves:
                count, page_until = await self._mover.move(agent, moves)
                moved += count
                until = min((moment for moment in (until, page_until) if moment is not None), default=None)
            if len(page) < PAGE_SIZE:
                break
            after = page[-1][0]
        if moved:
            log.info("rerouting: tasks moved from_agent=%s count=%d", agent.agent_id, moved)
        return moved, until

    def _decide_moves(self, page: list[tuple[Task, RoutingRequest]], unroutable: set[RoutingRequest]) -> list[TaskMove]:
        """Return the decisions for the tasks that another agent can do.

        `unroutable` collects the requests without a candidate, so that equal ones are not ranked again.
        """
        planned, moves = Counter[str](), []
        for task, request in page:
            # Whether there is a candidate does not depend on the length.
            kind = msgspec.structs.replace(request, input_length=None)
            decision = None if kind in unroutable else self._routing.decide_for_waiting(request, planned)
            if decision is None:
                unroutable.add(kind)
                continue
            # The agent came back after it was found offline. A move to itself would race with its own claim, which
            # continues the chain of events from the entry of its queue and not from the row.
            if decision.agent_id == task.assigned_agent:
                continue
            planned[decision.agent_id] += 1
            moves.append((task, decision))
        return moves


def _share_work(agent: Agent, peer: Agent) -> bool:
    """Return whether some work may be for both: work that requires nothing is for agents that declare nothing, too."""
    mine, others = agent.capability_set, peer.capability_set
    return not mine or not others or not mine.isdisjoint(others)
