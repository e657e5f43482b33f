"""Grants: an agent delegates part of its authority to another agent, for the task that it executes.

In this order: the rules by which a grant can only restrict (pure), the use cases, the SQL. The routes are in
`grants_api`; the check of a request against an authority is in `routing/model.py`. See docs/delegation.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids, jsontext
from stentor.core.clock import SECOND
from stentor.core.db import Database, Sql, Tx
from stentor.core.errors import Conflict, CorruptRecord, DelegationDenied, Forbidden, LeaseLost, NotFound
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.registry import authorization
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent
from stentor.domains.routing.model import Authority
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import queries
from stentor.domains.tasks import store as tasks
from stentor.domains.tasks.model import MAX_ID_LENGTH, Task
from stentor.domains.tasks.service import require_task, require_visible_task

MAX_DELEGATION_DEPTH = 4
"""Longest chain of grants."""
MAX_GRANT_CAPABILITIES = 32
MAX_GRANT_SECONDS = 86_400
MAX_LISTED_GRANTS = 1_000
NO_AUTHORITY = Authority(is_active=False)


class Grant(msgspec.Struct, frozen=True):
    """Capabilities that `to_agent` may request while `from_agent` executes the task in this `epoch`.

    Times in microseconds; `depth` starts at 1.
    """

    grant_id: str
    tenant: str
    task_id: str
    from_agent: str
    to_agent: str
    capabilities: tuple[str, ...]
    parent_id: str | None
    depth: int
    granted_by: str
    created_at: int
    expires_at: int
    revoked_at: int | None
    epoch: int

    def is_active(self, task: Task | None, now: int) -> bool:
        """Return whether the grant is neither expired nor revoked and its task is still in the same claim."""
        # A later claim may be by another agent, which delegated nothing.
        same_claim = task is not None and task.status == "executing" and task.epoch == self.epoch
        return same_claim and self.revoked_at is None and now < self.expires_at


class GrantRequest(msgspec.Struct, frozen=True):
    """A requested grant; without `expires_in_seconds` it is valid as long as its task and parents permit."""

    to_agent: str
    capabilities: tuple[str, ...]
    expires_in_seconds: int | None = None


_FIELDS = Grant.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_FIND = Sql(f"select {_COLUMNS} from grants where tenant = :tenant and grant_id = :grant_id")
_LIST_BY_TASK = Sql(
    f"select {_COLUMNS} from grants where tenant = :tenant and task_id = :task_id order by grant_id limit :limit"
)
_LIST_BY_AGENT = Sql(
    f"""select {_COLUMNS} from grants where tenant = :tenant and to_agent = :agent_id and revoked_at is null
        and expires_at > :now and exists (
            select 1 from tasks where tasks.tenant = grants.tenant and tasks.task_id = grants.task_id
            and tasks.status = 'executing' and tasks.epoch = grants.epoch
        ) order by grant_id limit :limit"""
)
_INSERT = Sql(f"insert into grants ({_COLUMNS}) values ({', '.join(':' + name for name in _FIELDS)})")
_REVOKE = Sql(
    "update grants set revoked_at = :now where tenant = :tenant and grant_id = :grant_id and revoked_at is null"
)
_capabilities_decoder = msgspec.json.Decoder(tuple[str, ...])


def limit_grant(
    request: GrantRequest, task: Task, chain: Sequence[Grant], allowed: frozenset[str] | None, now: int
) -> tuple[int, int]:
    """Return the depth and the expiry, in microseconds, of a requested grant.

    `chain` is the grant that the task was submitted with and its parents, nearest first, all active. `allowed` is what
    the agent may request without a grant, None for everything. Raises DelegationDenied for a grant that exceeds them.
    """
    if chain:
        nearest = chain[0]
        if nearest.depth >= MAX_DELEGATION_DEPTH:
            raise DelegationDenied(f"Authority can be delegated at most {MAX_DELEGATION_DEPTH} times in a row.")
        allowed = frozenset(nearest.capabilities)
    if allowed is not None and (excess := sorted(set(request.capabilities) - allowed)):
        raise DelegationDenied(f"The grant exceeds the delegating agent's authority by: {', '.join(excess)}.")
    assert task.deadline_at is not None
    lifetime_s = MAX_GRANT_SECONDS if request.expires_in_seconds is None else request.expires_in_seconds
    # Never longer than the task or any parent, so that a grant cannot outlive what it comes from.
    return len(chain) + 1, min(now + lifetime_s * SECOND, task.deadline_at, *(grant.expires_at for grant in chain))


def effective_authority(chain: Sequence[Grant], tasks: Sequence[Task | None], now: int) -> Authority:
    """Return the authority of the nearest grant of a chain; none if any grant of the chain is not active.

    `tasks` are the tasks of the grants, in the same order. Fails closed: an empty chain gives no authority.
    """
    if not chain or not all(grant.is_active(task, now) for grant, task in zip(chain, tasks, strict=True)):
        return NO_AUTHORITY
    return Authority(capabilities=frozenset(chain[0].capabilities))


class GrantService:
    """Creates, revokes and reads grants, and resolves what a grant permits."""

    def __init__(self, db: Database, runlog: RunLog, agents: AgentCache, routing: RoutingEngine) -> None:
        self._db = db
        self._runlog = runlog
        self._agents = agents
        self._routing = routing

    async def create(self, principal: Principal, task_id: str, epoch: int, request: GrantRequest) -> Grant:
        """Delegate authority for an executing task. The caller acts for its agent, or has the role admin.

        Raises NotFound, Forbidden, LeaseLost, DelegationDenied.
        """

        def work(tx: Tx) -> Grant:
            task, agent = self._require_claim(tx, principal, task_id, epoch)
            if self._agents.get(principal.tenant, request.to_agent) is None:
                raise NotFound(f"No agent has the id {request.to_agent!r}.")
            chain = find_chain(tx, task.tenant, task.metadata.grant_id)
            # Without this check a broken chain would count as no chain, and the agent would delegate its own authority.
            if task.metadata.grant_id is not None and not chain:
                raise Forbidden("A grant that the task was submitted with is missing, so it cannot delegate.")
            if chain and not _chain_authority(tx, chain).is_active:
                raise DelegationDenied("The grant that the task was submitted with is no longer active.")
            depth, expires_at = limit_grant(request, task, chain, self._allowed_capabilities(agent, task), tx.now)
            parent_id = chain[0].grant_id if chain else None
            grant = _new_grant(principal, task, agent, request, parent_id, depth, tx.now, expires_at)
            insert_grant(tx, grant)
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
                raise Forbidden("Only the agent that created the grant, or a key of role admin, may revoke it.")
            # The derived grants need no change: a chain with a revoked grant gives no authority.
            if mark_revoked(tx, principal.tenant, grant_id):
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
            task = require_task(tx, principal.tenant, task_id)
            grants = list_task_grants(tx, principal.tenant, task_id)
            if not queries.can_see(tx, principal, task) and not any(self._holds(principal, grant) for grant in grants):
                raise NotFound("No task has this id.")
            return grants

        return await self._db.read(read)

    async def list_for_agents(self, tenant: str, agents: list[str]) -> list[Grant]:
        """List the active grants of these agents."""
        if not agents:
            return []
        return await self._db.read(
            lambda tx: [grant for agent_id in agents for grant in list_agent_grants(tx, tenant, agent_id)]
        )

    async def resolve_authority(self, principal: Principal, grant_id: str) -> tuple[Authority, str | None]:
        """Return what a grant permits this caller now, and its task. Fails closed: no authority for other callers."""

        def read(tx: Tx) -> tuple[Authority, str | None]:
            grant = find_grant(tx, principal.tenant, grant_id)
            if grant is None or not self._holds(principal, grant):
                return NO_AUTHORITY, None
            return self.resolve_authority_in_tx(tx, principal.tenant, grant_id), grant.task_id

        return await self._db.read(read)

    def resolve_authority_in_tx(self, tx: Tx, tenant: str, grant_id: str) -> Authority:
        """Return what a grant permits its holder, within the caller's transaction. Does not check who the caller is."""
        return _chain_authority(tx, find_chain(tx, tenant, grant_id))

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
        grant = find_grant(tx, tenant, grant_id) if 0 < len(grant_id) <= MAX_ID_LENGTH else None
        if grant is None:
            raise NotFound("No grant has this id.")
        return grant

    def _record(self, tx: Tx, task: Task, grant: Grant, event: str, message: str, principal: Principal) -> None:
        meta: dict[str, Any] = {
            "grant_id": grant.grant_id,
            "to_agent": grant.to_agent,
            "by": principal.name,
            "capabilities": list(grant.capabilities),
            "depth": grant.depth,
        }
        draft = EventDraft(event, "tasks", message, meta, agent_id=grant.from_agent)  # type: ignore[arg-type]
        self._runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)


def _chain_authority(tx: Tx, chain: list[Grant]) -> Authority:
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


def insert_grant(tx: Tx, grant: Grant) -> None:
    values = msgspec.structs.asdict(grant)
    tx.run(_INSERT, **{**values, "capabilities": jsontext.dump(grant.capabilities)})


def find_grant(tx: Tx, tenant: str, grant_id: str) -> Grant | None:
    row = tx.row(_FIND, tenant=tenant, grant_id=grant_id)
    return _grant_from_row(row) if row else None


def find_chain(tx: Tx, tenant: str, grant_id: str | None) -> list[Grant]:
    """Return a grant and its parents, nearest first; empty if one of them is missing or the chain is too long."""
    chain: list[Grant] = []
    while grant_id is not None:
        grant = find_grant(tx, tenant, grant_id)
        if grant is None or len(chain) == MAX_DELEGATION_DEPTH:
            return []
        chain.append(grant)
        grant_id = grant.parent_id
    return chain


def list_task_grants(tx: Tx, tenant: str, task_id: str) -> list[Grant]:
    rows = tx.rows(_LIST_BY_TASK, tenant=tenant, task_id=task_id, limit=MAX_LISTED_GRANTS)
    return [_grant_from_row(row) for row in rows]


def list_agent_grants(tx: Tx, tenant: str, agent_id: str) -> list[Grant]:
    """List the grants to an agent that are neither expired nor revoked and whose task is in the same claim."""
    rows = tx.rows(_LIST_BY_AGENT, tenant=tenant, agent_id=agent_id, now=tx.now, limit=MAX_LISTED_GRANTS)
    return [_grant_from_row(row) for row in rows]


def mark_revoked(tx: Tx, tenant: str, grant_id: str) -> bool:
    """Revoke a grant; False if it was revoked already."""
    return tx.run(_REVOKE, tenant=tenant, grant_id=grant_id, now=tx.now) == 1


def _grant_from_row(row: tuple[Any, ...]) -> Grant:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["capabilities"] = _capabilities_decoder.decode(values["capabilities"])
        return msgspec.convert(values, Grant)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The stored grant {values['grant_id']!r} is malformed: {error}.") from error
