"""Use cases of workers: claim, heartbeat, tokens, complete, fail. Every one carries the claim's epoch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.clock import SECOND
from stentor.core.db import Database, Tx
from stentor.core.errors import AgentUnavailable, Conflict, Forbidden, LeaseLost, NotFound
from stentor.core.live import Hub
from stentor.domains.execution.dispatcher import Dispatcher
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.execution.outcomes import OutcomeRecorder
from stentor.domains.registry import authorization
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.tasks import store
from stentor.domains.tasks.model import Task, TaskClaim
from stentor.domains.tasks.service import require_task, require_visible_task

DISCONNECT_POLL_SECONDS = 1.0
"""How often a waiting claim looks whether its worker is still there."""


class WorkerService:
    def __init__(
        self,
        db: Database,
        snapshot: AgentCache,
        dispatcher: Dispatcher,
        ending: OutcomeRecorder,
        hub: Hub,
        presence: Presence,
    ) -> None:
        self._db = db
        self._presence = presence
        self._snapshot = snapshot
        self._dispatcher = dispatcher
        self._ending = ending
        self._hub = hub

    async def claim(
        self,
        principal: Principal,
        agent_id: str,
        most: int,
        wait: float,
        lease: int,
        gone: Callable[[], Awaitable[bool]],
    ) -> list[TaskClaim]:
        """Up to `most` tasks, waiting up to `wait` seconds for the first; `lease` in seconds.

        `gone` tells that the worker has left: nothing is claimed for nobody.
        Raises NotFound, Forbidden, AgentUnavailable, Conflict for an agent that is no worker.
        """
        waited = 0.0
        try:
            while True:
                self._worker(principal, agent_id)
                self._presence.record_seen(agent_id)
                self._presence.record_poll(agent_id, most)
                if self._hub.closing.is_set() or await gone():
                    return []
                if claims := await self._dispatcher.claim(agent_id, most, lease * SECOND):
                    for claim in claims:
                        self._presence.record_lease(agent_id, claim.task_id, claim.lease_until)
                    return claims
                if waited >= wait:
                    return []
                step = min(DISCONNECT_POLL_SECONDS, wait - waited)
                if not await self._dispatcher.wait_for_task(agent_id, step):
                    waited += step
        finally:
            self._presence.record_poll(agent_id, 0)

    async def heartbeat(self, principal: Principal, task_id: str, epoch: int, lease: int) -> int:
        """Renew the lease; answers when it ends. Raises LeaseLost."""

        def work(tx: Tx) -> int:
            task = self._held(tx, principal, task_id, epoch)
            store.renew_lease(tx, task.tenant, task_id, epoch, lease * SECOND)
            until = tx.now + lease * SECOND
            tx.after_commit(lambda: self._working(task, until))
            return until

        return await self._db.write(work, ())

    async def publish_tokens(self, principal: Principal, task_id: str, epoch: int, tokens: list[str]) -> None:
        """Announce pieces of the answer to whoever watches. Raises LeaseLost."""
        task = await self._db.read(lambda tx: self._held(tx, principal, task_id, epoch))
        for text in tokens:
            self._hub.append_token(task.tenant, task_id, task.head_id, text)

    async def report_outcome(self, principal: Principal, task_id: str, epoch: int, outcome: AttemptOutcome) -> Task:
        """Complete or fail; the same answer twice is taken once. Raises LeaseLost."""

        def work(tx: Tx) -> Task:
            task = self._reachable(tx, principal, task_id)
            if _already(task, epoch, outcome):
                return task
            self._check_epoch(task, epoch)
            assert task.assigned_agent is not None
            tx.after_commit(lambda: self._working(task, None))
            started = task.start_time or tx.now
            self._ending.record(tx, task, task.assigned_agent, started, outcome, ended_by=principal.name)
            return require_task(tx, task.tenant, task_id)

        return await self._db.write(work, ())

    def _working(self, task: Task, until: int | None) -> None:
        """A worker was heard of: it holds its task until then, or has ended it."""
        agent_id = task.assigned_agent or ""
        self._presence.record_seen(agent_id)
        if until is None:
            self._presence.remove_lease(agent_id, task.task_id)
        else:
            self._presence.record_lease(agent_id, task.task_id, until)

    def _worker(self, principal: Principal, agent_id: str) -> Agent:
        agent = self._snapshot.get(principal.tenant, agent_id)
        if agent is None:
            raise NotFound(f"No agent has the id {agent_id!r}.")
        require_can_act_for(principal, agent)
        if agent.runtime.kind != "worker":
            raise Conflict(f"The agent's runtime is {agent.runtime.kind}; only a worker claims tasks.")
        if agent.status != "active":
            raise AgentUnavailable(f"The agent is {agent.status}, so it is given no tasks.", {"status": agent.status})
        return agent

    def _held(self, tx: Tx, principal: Principal, task_id: str, epoch: int) -> Task:
        task = self._reachable(tx, principal, task_id)
        self._check_epoch(task, epoch)
        return task

    def _reachable(self, tx: Tx, principal: Principal, task_id: str) -> Task:
        task = require_visible_task(tx, principal, task_id)
        agent = self._snapshot.get(principal.tenant, task.assigned_agent or "")
        if not (principal.role == "admin" if agent is None else authorization.can_act_for(principal, agent)):
            raise Forbidden("This key may not act for the task's agent.")
        return task

    @staticmethod
    def _check_epoch(task: Task, epoch: int) -> None:
        if task.status != "executing" or task.epoch != epoch:
            details = {"status": task.status, "epoch": task.epoch}
            raise LeaseLost("The task is not in your hands any more.", details)


def require_can_act_for(principal: Principal, agent: Agent) -> None:
    """Raises Forbidden."""
    if not authorization.can_act_for(principal, agent):
        raise Forbidden("This key may not act for this agent.")


def _already(task: Task, epoch: int, outcome: AttemptOutcome) -> bool:
    """Whether this very answer was taken before: a worker may send it again when the first was lost."""
    if task.epoch != epoch or task.status != outcome.status:
        return False
    return bool(
        task.outcome_class == outcome.outcome_class
        and task.result == _stored(outcome.result)
        and task.error == outcome.error
    )


def _stored(result: Any) -> Any:
    return msgspec.to_builtins(result)
