"""Use cases of delegated authority: hand it on, look at it, take it back, and ask what it gives."""

from __future__ import annotations

from typing import Any

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, DelegationDenied, Forbidden, LeaseLost, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.registry import standing
from stentor.domains.registry.model import Agent
from stentor.domains.registry.snapshot import Snapshot
from stentor.domains.routing.model import Authority
from stentor.domains.routing.service import Routing
from stentor.domains.tasks import sight
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.grants import model, store
from stentor.domains.tasks.grants.model import NOTHING, Grant, Wish
from stentor.domains.tasks.model import MAX_ID, Task
from stentor.domains.tasks.service import require, require_seen


class Grants:
    def __init__(self, db: Database, runlog: RunLog, snapshot: Snapshot, routing: Routing) -> None:
        self._db = db
        self._runlog = runlog
        self._snapshot = snapshot
        self._routing = routing

    async def grant(self, principal: Principal, task_id: str, epoch: int, wish: Wish) -> Grant:
        """Hand on authority for a task that is being worked on, by the key of the agent that works on it or an admin.

        Raises NotFound, Forbidden, LeaseLost, DelegationDenied.
        """

        def work(tx: Tx) -> Grant:
            task, agent = self._held(tx, principal, task_id, epoch)
            if self._snapshot.get(principal.tenant, wish.to_agent) is None:
                raise NotFound(f"No agent has the id {wish.to_agent!r}.")
            chain = store.chain(tx, task.tenant, task.metadata.grant_id)
            if task.metadata.grant_id is not None and not chain:
                raise Forbidden("The authority that the task was submitted with cannot be read.")
            if chain and not _authority(tx, chain).active:
                raise DelegationDenied("The authority that the task was submitted with has ended.")
            depth, end = model.narrowed(wish, task, chain, self._own(agent, task), tx.now)
            grant = _grant(principal, task, agent, wish, chain[0].grant_id if chain else None, depth, tx.now, end)
            store.insert(tx, grant)
            self._record(tx, task, grant, "authority_granted", f"Authority handed on to {wish.to_agent}.", principal)
            return grant

        return await self._db.write(work)

    async def revoke(self, principal: Principal, grant_id: str) -> Grant:
        """Take it back, and all that came from it; again is no error. Raises NotFound, Forbidden."""

        def work(tx: Tx) -> Grant:
            grant = self._find(tx, principal.tenant, grant_id)
            giver = self._snapshot.get(principal.tenant, grant.from_agent)
            if principal.is_bound_agent and (giver is None or giver.key_name != principal.name):
                raise Forbidden("Only the agent that handed it on, or an admin, takes authority back.")
            if store.revoke(tx, principal.tenant, grant_id):
                task = require(tx, principal.tenant, grant.task_id)
                self._record(tx, task, grant, "authority_revoked", "Authority taken back.", principal)
            return self._find(tx, principal.tenant, grant_id)

        return await self._db.write(work)

    async def get(self, tenant: str, grant_id: str) -> Grant:
        """Raises NotFound, the same for a foreign grant as for none."""
        return await self._db.read(lambda tx: self._find(tx, tenant, grant_id))

    async def of_task(self, principal: Principal, task_id: str) -> list[Grant]:
        """Raises NotFound, the same for a task that the caller neither sees nor holds a grant of as for none."""

        def read(tx: Tx) -> list[Grant]:
            task = require(tx, principal.tenant, task_id)
            found = store.of_task(tx, principal.tenant, task_id)
            if not sight.sees(tx, principal, task) and not any(self._holds(principal, grant) for grant in found):
                raise NotFound("No task has this id.")
            return found

        return await self._db.read(read)

    async def to_agents(self, tenant: str, agents: list[str]) -> list[Grant]:
        """What these agents hold now."""
        if not agents:
            return []
        return await self._db.read(lambda tx: [grant for one in agents for grant in store.to_agent(tx, tenant, one)])

    async def authority(self, principal: Principal, grant_id: str) -> tuple[Authority, str | None]:
        """What a grant gives to this caller now, and the task that it is for: nothing to others. Fails closed."""

        def read(tx: Tx) -> tuple[Authority, str | None]:
            grant = store.find(tx, principal.tenant, grant_id)
            if grant is None or not self._holds(principal, grant):
                return NOTHING, None
            return self.authority_in(tx, principal.tenant, grant_id), grant.task_id

        return await self._db.read(read)

    def authority_in(self, tx: Tx, tenant: str, grant_id: str) -> Authority:
        """What it gives to whoever holds it, as a part of somebody's own transaction."""
        return _authority(tx, store.chain(tx, tenant, grant_id))

    def authority_of(self, tx: Tx, task: Task) -> Authority:
        """What a task that waits was submitted with, as far as it can have ended since."""
        grant_id = task.metadata.grant_id
        return Authority() if grant_id is None else self.authority_in(tx, task.tenant, grant_id)

    def _holds(self, principal: Principal, grant: Grant) -> bool:
        agent = self._snapshot.get(principal.tenant, grant.to_agent)
        if agent is None or agent.status != "active":
            return False
        return standing.acts_for(principal, agent)

    def _own(self, agent: Agent, task: Task) -> frozenset[str] | None:
        """What an agent may ask for without a grant; None is everything."""
        if not self._routing.policy.own_authority:
            return None
        return agent.abilities | frozenset(task.required_capabilities)

    def _held(self, tx: Tx, principal: Principal, task_id: str, epoch: int) -> tuple[Task, Agent]:
        task = require_seen(tx, principal, task_id)
        agent = self._snapshot.get(principal.tenant, task.assigned_agent or "")
        if agent is None or not standing.acts_for(principal, agent):
            raise Forbidden("This key may not act for the task's agent.")
        if agent.status != "active":
            raise Conflict(f"The agent is {agent.status} and hands on nothing.")
        if task.status != "executing" or task.epoch != epoch:
            raise LeaseLost(f"The task is {task.status} in epoch {task.epoch}; epoch {epoch} does not hold it.")
        return task, agent

    def _find(self, tx: Tx, tenant: str, grant_id: str) -> Grant:
        grant = store.find(tx, tenant, grant_id) if 0 < len(grant_id) <= MAX_ID else None
        if grant is None:
            raise NotFound("No grant has this id.")
        return grant

    def _record(self, tx: Tx, task: Task, grant: Grant, event: str, message: str, principal: Principal) -> None:
        meta: dict[str, Any] = {"grant_id": grant.grant_id, "to_agent": grant.to_agent, "by": principal.name}
        meta |= {"capabilities": list(grant.capabilities), "depth": grant.depth}
        draft = EventDraft(event, "tasks", message, meta, agent_id=grant.from_agent)  # type: ignore[arg-type]
        self._runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)


def _authority(tx: Tx, chain: list[Grant]) -> Authority:
    return model.authority(chain, [tasks.find(tx, grant.tenant, grant.task_id) for grant in chain], tx.now)


def _grant(
    principal: Principal, task: Task, agent: Agent, wish: Wish, parent: str | None, depth: int, now: int, end: int
) -> Grant:
    return Grant(
        grant_id=ids.new_id(),
        tenant=task.tenant,
        task_id=task.task_id,
        from_agent=agent.agent_id,
        to_agent=wish.to_agent,
        capabilities=wish.capabilities,
        parent_id=parent,
        depth=depth,
        granted_by=principal.name,
        created_at=now,
        expires_at=end,
        revoked_at=None,
        epoch=task.epoch,
    )
