"""Grants: an agent delegates part of its authority to another agent, for the task that it executes.

The rules are in `model`; a request is checked against an authority in `routing/model.py`.
See docs/delegation.md.
"""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, DelegationDenied, Forbidden, LeaseLost, NotFound
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agent_store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.routing.model import Authority
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.access import missing_task, require_task, require_task_id, require_visible_task
from stentor.domains.tasks.grants import store as grant_store
from stentor.domains.tasks.grants.model import NO_AUTHORITY, Grant, GrantRequest, effective_authority, limit_grant
from stentor.domains.tasks.model import MAX_ID_LENGTH, Task
from stentor.domains.tasks.reading import visibility_queries


class GrantService:
    """Creates, revokes and reads grants, and resolves what a grant permits."""

    def __init__(self, db: Database, runlog: RunLog, agents: AgentCache, routing: RoutingEngine) -> None:
        self._db = db
        self._runlog = runlog
        self._agents = agents
        self._routing = routing

    async def create(self, principal: Principal, task_id: str, epoch: int, request: GrantRequest) -> Grant:
        """Delegate authority for an executing task. The caller may act for its agent.

        Raises NotFound, Forbidden, LeaseLost, DelegationDenied.
        """

        def work(tx: Tx) -> Grant:
            task, agent = self._require_claim(tx, principal, task_id, epoch)
            # Not only by the cache: another process may have just registered it.
            known = self._agents.get(principal.tenant, request.to_agent)
            if known is None and agent_store.find(tx, principal.tenant, request.to_agent) is None:
                raise NotFound(f"No agent has the id {request.to_agent!r}.")
            chain = grant_store.find_chain(tx, task.tenant, task.metadata.grant_id)
            # Without this check a broken chain would count as no chain, and the agent would delegate its own authority.
            if task.metadata.grant_id is not None and not chain:
                raise Forbidden("A grant that the task was submitted with is missing, so it cannot delegate.")
            if chain and not _chain_authority(tx, chain).is_active:
                raise DelegationDenied("The grant that the task was submitted with is no longer active.")
            depth, expires_at = limit_grant(request, task, chain, self._allowed_capabilities(agent, task), tx.now)
            parent_id = chain[0].grant_id if chain else None
            grant = _new_grant(principal, task, agent, request, parent_id, depth, tx.now, expires_at)
            grant_store.insert_grant(tx, grant)
            message = f"Authority delegated to {request.to_agent}."
            self._record(tx, task, grant, "authority_granted", message, principal)
            return grant

        return await self._db.write(work)

    async def revoke(self, principal: Principal, grant_id: str) -> Grant:
        """Revoke a grant and all that derive from it. Idempotent. Raises NotFound, Forbidden."""

        def work(tx: Tx) -> Grant:
            grant = self._find(tx, principal.tenant, grant_id)
            delegator = self._agents.get(principal.tenant, grant.from_agent)
            if principal.is_bound_agent and (delegator is None or delegator.key_name != principal.name):
                raise Forbidden(
                    "Only the agent that created the grant, a person, or a key with the permission admin may revoke it."
                )
            # The derived grants need no change: a chain with a revoked grant gives no authority.
            if grant_store.mark_revoked(tx, principal.tenant, grant_id):
                task = require_task(tx, principal.tenant, grant.task_id)
                self._record(tx, task, grant, "authority_revoked", "Authority revoked.", principal)
            return self._find(tx, principal.tenant, grant_id)

        return await self._db.write(work)

    async def get(self, tenant: str, grant_id: str) -> Grant:
        """Return a grant. Raises NotFound, also for a grant of another tenant."""
        return await self._db.read(lambda tx: self._find(tx, tenant, grant_id))

    async def list_for_task(self, principal: Principal, task_id: str) -> list[Grant]:
        """List the grants of a task. Raises NotFound unless the caller may read the task or holds one of its grants."""

        def read(tx: Tx) -> list[Grant]:
            task = tasks.find(tx, principal.tenant, require_task_id(task_id))
            if task is None:
                raise missing_task(tx, principal, task_id)
            grants = grant_store.list_task_grants(tx, principal.tenant, task_id)
            is_holder = any(self._holds(principal, grant) for grant in grants)
            if not is_holder and not visibility_queries.can_see(tx, principal, task):
                raise NotFound("No task has this id.")
            return grants

        return await self._db.read(read)

    async def list_for_agents(self, tenant: str, agents: list[str]) -> list[Grant]:
        """List the active grants of these agents."""
        if not agents:
            return []
        return await self._db.read(
            lambda tx: [grant for agent_id in agents for grant in grant_store.list_agent_grants(tx, tenant, agent_id)]
        )

    async def resolve_authority(self, principal: Principal, grant_id: str) -> tuple[Authority, str | None]:
        """Return what a grant permits this caller now, and its task. Fails closed: no authority for other callers."""

        def read(tx: Tx) -> tuple[Authority, str | None]:
            grant = grant_store.find_grant(tx, principal.tenant, grant_id)
            if grant is None or not self._holds(principal, grant):
                return NO_AUTHORITY, None
            return self.resolve_authority_in_tx(tx, principal.tenant, grant_id), grant.task_id

        return await self._db.read(read)

    def resolve_authority_in_tx(self, tx: Tx, tenant: str, grant_id: str) -> Authority:
        """Return what a grant permits its holder, within the caller's transaction. Does not check who the caller is."""
        return _chain_authority(tx, grant_store.find_chain(tx, tenant, grant_id))

    def resolve_task_authority(self, tx: Tx, task: Task) -> Authority:
        """Return what the grant of a queued task permits now; everything for a task submitted without one."""
        grant_id = task.metadata.grant_id
        return Authority() if grant_id is None else self.resolve_authority_in_tx(tx, task.tenant, grant_id)

    def _holds(self, principal: Principal, grant: Grant) -> bool:
        agent = self._agents.get(principal.tenant, grant.to_agent)
        if agent is None or agent.status != "active":
            return False
        return authorization.can_act_for(principal, agent)

    def _allowed_capabilities(self, agent: Agent, task: Task) -> frozenset[str] | None:
        """Return what an agent may request without a grant; None is everything."""
        if not self._routing.policy.own_authority:
            return None
        # The task was given to the agent, so it may pass on what the task needs.
        return agent.capability_set | frozenset(task.required_capabilities)

    def _require_claim(self, tx: Tx, principal: Principal, task_id: str, epoch: int) -> tuple[Task, Agent]:
        """Return a task and its agent. Raises unless the caller acts for the agent and holds the claim `epoch`."""
        task = require_visible_task(tx, principal, task_id)
        agent = self._agents.get(principal.tenant, task.assigned_agent or "")
        if agent is None or not authorization.can_act_for(principal, agent):
            raise Forbidden("This key may not act for the task's agent.")
        if agent.status != "active":
            raise Conflict(f"The agent is {agent.status}; only an active agent can delegate.")
        if task.status != "executing" or task.epoch != epoch:
            raise LeaseLost(f"The task is {task.status} in epoch {task.epoch}; epoch {epoch} has lost the lease.")
        return task, agent

    def _find(self, tx: Tx, tenant: str, grant_id: str) -> Grant:
        # An id of another length cannot exist, so the database is not asked.
        grant = grant_store.find_grant(tx, tenant, grant_id) if 0 < len(grant_id) <= MAX_ID_LENGTH else None
        if grant is None:
            raise NotFound("No grant has this id.")
        return grant

    def _record(self, tx: Tx, task: Task, grant: Grant, event: EventType, message: str, principal: Principal) -> None:
        meta: JsonObject = {
            "grant_id": grant.grant_id,
            "to_agent": grant.to_agent,
            "by": principal.name,
            "capabilities": list(grant.capabilities),
            "depth": grant.depth,
        }
        draft = EventDraft(event, "tasks", message, meta, agent_id=grant.from_agent)
        self._runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)


def _chain_authority(tx: Tx, chain: list[Grant]) -> Authority:
    # An agent that is suspended or quarantined has no authority, so its grants give none either.
    givers = [agent_store.find(tx, grant.tenant, grant.from_agent) for grant in chain]
    if not all(giver is not None and giver.status == "active" for giver in givers):
        return NO_AUTHORITY
    return effective_authority(chain, [tasks.find(tx, grant.tenant, grant.task_id) for grant in chain], tx.now)


def _new_grant(
    principal: Principal,
    task: Task,
    agent: Agent,
    request: GrantRequest,
    parent_id: str | None,
    depth: int,
    now: int,
    expires_at: int,
) -> Grant:
    return Grant(
        grant_id=ids.new_id(),
        tenant=task.tenant,
        task_id=task.task_id,
        from_agent=agent.agent_id,
        to_agent=request.to_agent,
        capabilities=request.capabilities,
        parent_id=parent_id,
        depth=depth,
        granted_by=principal.name,
        created_at=now,
        expires_at=expires_at,
        revoked_at=None,
        epoch=task.epoch,
    )
