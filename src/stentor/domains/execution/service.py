"""What an external worker can do: claim tasks, send heartbeats and tokens, report an outcome.

Every call after the claim names the claim's epoch, so that a worker that lost its lease cannot write. Agents that run
inside the service go through `executor.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from stentor.auth.principal import Principal
from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import AgentUnavailable, Conflict, Forbidden, LeaseLost, NotFound
from stentor.core.fanout.live import QUIET_SECONDS, Hub
from stentor.core.timers import sleep_until_tick, tick_forever
from stentor.domains.execution.dispatch.dispatcher import Dispatcher, TaskPoll
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.execution.outcomes import OutcomeRecorder
from stentor.domains.execution.spans import TaskSpans
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agent_store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.tasks import queries
from stentor.domains.tasks.access import check_epoch, require_held, require_task, require_writable
from stentor.domains.tasks.model import Task, TaskClaim
from stentor.domains.tasks.queues import lease_store
from stentor.domains.tasks.service import is_late

DISCONNECT_POLL_SECONDS = 1.0
"""How often a waiting claim checks whether its client has disconnected."""


class WorkerService:
    """Claims, heartbeats and outcomes of workers. `spans` is None in a service without a collector."""

    def __init__(
        self,
        db: Database,
        agents: AgentCache,
        dispatcher: Dispatcher,
        outcomes: OutcomeRecorder,
        hub: Hub,
        presence: Presence,
        spans: TaskSpans | None,
    ) -> None:
        self._db = db
        self._presence = presence
        self._agents = agents
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._hub = hub
        self._spans = spans
        self._polls: dict[str, list[Callable[[], Awaitable[bool]]]] = {}
        """Agent id -> for each claim that waits here, what returns whether its client has disconnected."""

    async def claim(
        self,
        principal: Principal,
        agent_id: str,
        limit: int,
        wait: float,
        lease: int,
        gone: Callable[[], Awaitable[bool]],
    ) -> list[TaskClaim]:
        """Claim up to `limit` tasks, waiting up to `wait` seconds for the first; `lease` in seconds.

        `gone` returns whether the client has disconnected or its key has ended; then nothing is claimed.
        Raises NotFound, Forbidden, AgentUnavailable, and Conflict for an agent that is not a worker.
        """
        # Before anything is recorded: the agent may belong to another caller, or may not exist.
        await self._agents.retry_after_refresh(lambda: self.require_worker(principal, agent_id))
        polls = self._polls.setdefault(agent_id, [])
        polls.append(gone)
        try:
            with self._dispatcher.poll(agent_id) as poll:
                return await self._claim(principal, agent_id, limit, wait, lease, gone, poll)
        finally:
            polls.remove(gone)
            if not polls:
                self._polls.pop(agent_id, None)
            self._presence.remove_poll(agent_id, gone)

    async def _claim(
        self,
        principal: Principal,
        agent_id: str,
        limit: int,
        wait: float,
        lease: int,
        gone: Callable[[], Awaitable[bool]],
        poll: TaskPoll,
    ) -> list[TaskClaim]:
        loop = asyncio.get_running_loop()
        # By the clock and not by the waits: a poll may be woken again and again for tasks that others claim.
        deadline = loop.time() + wait
        while True:
            # In each round: the agent may be suspended or deleted while the request waits.
            agent = self.require_worker(principal, agent_id)
            # Before the worker is recorded as seen: it may have left.
            if self._hub.closing.is_set():
                return []
            if await gone():
                self._presence.record_lost_poll(agent_id)
                return []
            await self._forget_departure(agent)
            self._presence.record_seen(agent_id)
            self._presence.record_poll(agent_id, gone, limit)
            if claims := await poll.claim(limit, lease * SECOND):
                self._presence.record_claim(agent_id)
                for claim in claims:
                    self._presence.record_start(agent_id, claim.task_id, claim.lease_until)
                return claims if self._spans is None else [self._spans.with_trace(claim) for claim in claims]
            left = deadline - loop.time()
            if left <= 0:
                return []
            await poll.wait(min(DISCONNECT_POLL_SECONDS, left))

    async def leave(self, principal: Principal, agent_id: str) -> bool:
        """Record that a worker ends; return whether the agent is still online, because another worker polls or works.

        Raises NotFound, Forbidden, and Conflict for an agent that is not a worker.
        """
        agent = await self._agents.retry_after_refresh(lambda: self._require_own(principal, agent_id))
        # A worker ends its long poll when it leaves; the poll may not have noticed that yet.
        gone = [await is_gone() for is_gone in list(self._polls.get(agent_id, ()))]

        def work(tx: Tx) -> bool:
            if queries.is_executing(tx, agent.tenant, agent_id):
                return False
            agent_store.record_departure(tx, agent.tenant, agent_id)
            return True

        if all(gone) and await self._db.write(work, NO_LOCKS):
            self._presence.record_left(agent_id)
        return self._presence.is_online(agent)

    async def _forget_departure(self, agent: Agent) -> None:
        """Delete that the last worker of an agent left: another one is here."""
        if agent.agent_id not in self._presence.departed:
            return
        # Before the write, not after it: a worker that leaves in between must be forgotten by the next write.
        self._presence.departed.discard(agent.agent_id)
        try:
            await self._db.write(lambda tx: agent_store.forget_departure(tx, agent.tenant, agent.agent_id), NO_LOCKS)
        except BaseException:
            self._presence.departed.add(agent.agent_id)
            raise

    async def heartbeat(self, principal: Principal, task_id: str, epoch: int, lease: int) -> int:
        """Renew the lease and return its end in microseconds. Raises LeaseLost."""

        def work(tx: Tx) -> int:
            task = require_held(tx, self._agents, principal, task_id, epoch)
            if not lease_store.renew_lease(tx, task.tenant, task_id, epoch, lease * SECOND):
                raise LeaseLost("The task changed at the same moment.")
            until = tx.now + lease * SECOND
            # After the commit: a lease that was not renewed must not stay in memory either.
            tx.after_commit(lambda: self._record_activity(task, until))
            return until

        return await self._db.write(work, NO_LOCKS)

    async def publish_tokens(self, principal: Principal, task_id: str, epoch: int, tokens: list[str]) -> None:
        """Send output tokens to the streams of the task. Raises LeaseLost."""
        # Checked without a fence: tokens are only shown, and what is stored is the outcome.
        task = await self._db.read(lambda tx: require_held(tx, self._agents, principal, task_id, epoch))
        for text in tokens:
            self._hub.append_token(task.tenant, task_id, task.head_id, text)
        # The worker's next request may go to another process, which should have these tokens by then.
        await self._hub.wait_tokens_sent(task.tenant, task_id)

    async def run(self) -> None:
        """Delete the tokens of ended attempts at intervals, until cancelled."""
        await tick_forever("tokens of ended attempts", partial(sleep_until_tick, QUIET_SECONDS), self.drop_ended_tokens)

    async def drop_ended_tokens(self) -> None:
        """Delete the tokens of attempts about whose end this process got no message.

        An outcome may be reported to another one, or while this one adds the last tokens.
        """
        quiet = self._hub.quiet_tasks()
        if not quiet:
            return
        executing = await self._db.read(lambda tx: queries.find_executing(tx, quiet))
        # Checks again that there are no tokens: a new attempt may have begun since.
        for key in set(quiet).intersection(self._hub.quiet_tasks()) - executing:
            self._hub.drop_tokens(*key)

    async def find_model_caller(self, principal: Principal, task_id: str) -> LlmCaller:
        """Return the caller of a model for a task that the caller works on; the call becomes a part of its record.

        Raises NotFound, Forbidden, and Conflict for a task that is not being executed.
        """
        task = await self._db.read(lambda tx: require_writable(tx, self._agents, principal, task_id))
        if task.status != "executing":
            raise Conflict(f"The task is {task.status}; a model call can only name a task that is executing.")
        trace = None if self._spans is None else self._spans.traceparent_of(task)
        budgets = task.metadata.budgets_of(task_id)
        return LlmCaller(
            task.tenant,
            principal.name,
            task.assigned_agent,
            task_id,
            task.head_id,
            trace,
            budgets,
            principal.models,
        )

    async def report_outcome(self, principal: Principal, task_id: str, epoch: int, outcome: AttemptOutcome) -> Task:
        """Complete or fail the task. Idempotent for the same outcome. Raises LeaseLost."""

        def work(tx: Tx) -> Task:
            task = require_writable(tx, self._agents, principal, task_id)
            if _is_recorded(task, epoch, outcome):
                return task
            check_epoch(task, epoch)
            if outcome.error is not None and is_late(tx, task):
                # For example for a subtask that was refused because of the deadline: not the agent's fault.
                raise LeaseLost("The deadline of the task has passed, and it is about to be aborted.")
            assert task.assigned_agent is not None
            tx.after_commit(lambda: self._record_activity(task, None))
            started = task.start_time or tx.now
            load = self._presence.load_at_start(task.assigned_agent, task_id)
            self._outcomes.record(tx, task, task.assigned_agent, started, outcome, principal.name, load)
            return require_task(tx, task.tenant, task_id)

        # The agent is known only inside, so its lock is taken there; `run_claim`, which knows it, names it up front.
        return await self._db.write(work, NO_LOCKS)

    def _record_activity(self, task: Task, until: int | None) -> None:
        """Record that the worker is online; `until` is the end of its lease, None when the attempt has ended."""
        agent_id = task.assigned_agent or ""
        self._presence.record_seen(agent_id)
        if until is None:
            self._presence.remove_lease(agent_id, task.task_id)
        else:
            self._presence.record_lease(agent_id, task.task_id, until)

    def require_worker(self, principal: Principal, agent_id: str) -> Agent:
        """Return the agent that the caller claims tasks for.

        Raises NotFound, Forbidden, AgentUnavailable, and Conflict for an agent that is not a worker.
        """
        agent = self._require_own(principal, agent_id)
        if agent.status != "active":
            status = "archived" if agent.is_archived else agent.status
            raise AgentUnavailable(f"The agent is {status}, so it gets no tasks.", {"status": status})
        return agent

    def _require_own(self, principal: Principal, agent_id: str) -> Agent:
        agent = self._agents.get(principal.tenant, agent_id)
        if agent is None:
            raise NotFound(f"No agent has the id {agent_id!r}.")
        require_can_act_for(principal, agent)
        if agent.runtime.kind != "worker":
            raise Conflict(
                f"The agent's runtime is {agent.runtime.kind}; only agents with the runtime worker claim tasks."
            )
        return agent

    async def find_worker(self, principal: Principal, name: str) -> Agent:
        """Return the agent with this id or name that the caller claims tasks for.

        Raises the errors of `require_worker`, and Conflict for a name that several active agents of the caller have.
        """
        return await self._agents.retry_after_refresh(lambda: self._find_worker(principal, name))

    def _find_worker(self, principal: Principal, name: str) -> Agent:
        if self._agents.get(principal.tenant, name) is not None:
            return self.require_worker(principal, name)
        named = [agent for agent in self._agents.list_by_tenant(principal.tenant) if agent.name == name]
        own = [agent for agent in named if authorization.can_act_for(principal, agent)]
        # A second agent that was registered by mistake: suspended or archived, it is not meant by the name.
        own = [agent for agent in own if agent.status == "active"] or own
        if len(own) > 1:
            ids = ", ".join(agent.agent_id for agent in own)
            raise Conflict(
                f"{len(own)} agents have the name {name!r}; use the id of one, or archive the others: {ids}."
            )
        if not own:
            raise NotFound(f"No agent has the id or the name {name!r}, or this key may not act for it.")
        return self.require_worker(principal, own[0].agent_id)


def require_can_act_for(principal: Principal, agent: Agent) -> None:
    """Require that the principal may act on behalf of the agent. Raises Forbidden."""
    if not authorization.can_act_for(principal, agent):
        raise Forbidden("This key may not act for this agent.")


def _is_recorded(task: Task, epoch: int, outcome: AttemptOutcome) -> bool:
    """Return whether this outcome is already recorded: a worker that lost the response sends it again."""
    if task.epoch != epoch or task.status != outcome.status:
        return False
    return bool(
        task.outcome_class == outcome.outcome_class
        # The stored result was read back from JSON, so compare builtins with builtins.
        and task.result == msgspec.to_builtins(outcome.result)
        and task.error == outcome.error
    )
