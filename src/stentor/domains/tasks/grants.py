"""Delegated authority: an agent hands another a part of what it may ask for, for the task that it works on.

A grant, and the rules by which it may only narrow: pure. See docs/delegation.md.

Use cases of delegated authority: hand it on, look at it, take it back, and ask what it gives.

SQL of grants.
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
"""How often authority is passed on, at most."""
MAX_GRANT_CAPABILITIES = 32
MAX_GRANT_SECONDS = 86_400
NO_AUTHORITY = Authority(is_active=False)


class Grant(msgspec.Struct, frozen=True):
    """What `to_agent` may ask for while `from_agent` works on the task, in the claim of that `epoch`.

    Times in microseconds; `depth` from 1.
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
        """Whether it holds: its task must still be in the hands that it was given from, not of a later claim."""
        held = task is not None and task.status == "executing" and task.epoch == self.epoch
        return held and self.revoked_at is None and now < self.expires_at


class GrantRequest(msgspec.Struct, frozen=True):
    """A grant as it is asked for; `seconds` None is as long as may be."""

    to_agent: str
    capabilities: tuple[str, ...]
    expires_in_seconds: int | None = None


def limit_grant(
    wish: GrantRequest, task: Task, chain: Sequence[Grant], own: frozenset[str] | None, now: int
) -> tuple[int, int]:
    """Depth and end of the grant that may be made of a wish. Raises DelegationDenied where it would widen.

    `chain` is the task's own grant with its parents, the nearest first, all of them live; `own` is what the agent may
    ask for by itself, None for everything.
    """
    if chain:
        nearest = chain[0]
        if nearest.depth >= MAX_DELEGATION_DEPTH:
            raise DelegationDenied(f"Authority is passed on {MAX_DELEGATION_DEPTH} times at most.")
        own = frozenset(nearest.capabilities)
    if own is not None and (beyond := sorted(set(wish.capabilities) - own)):
        raise DelegationDenied(f"The grant would go beyond the authority it comes from: {', '.join(beyond)}.")
    assert task.deadline_at is not None
    wished = now + (MAX_GRANT_SECONDS if wish.expires_in_seconds is None else wish.expires_in_seconds) * SECOND
    return len(chain) + 1, min(wished, task.deadline_at, *(grant.expires_at for grant in chain))


def effective_authority(chain: Sequence[Grant], tasks: Sequence[Task | None], now: int) -> Authority:
    """What a grant still gives: nothing once it, one that it comes from, or the task of any of them has ended.

    `tasks` are those of the chain, in its order. Fails closed.
    """
    if not chain or not all(grant.is_active(task, now) for grant, task in zip(chain, tasks, strict=True)):
        return NO_AUTHORITY
    return Authority(capabilities=frozenset(chain[0].capabilities))


class GrantService:
    def __init__(self, db: Database, runlog: RunLog, snapshot: AgentCache, routing: RoutingEngine) -> None:
        self._db = db
        self._runlog = runlog
        self._snapshot = snapshot
        self._routing = routing

    async def create(self, principal: Principal, task_id: str, epoch: int, wish: GrantRequest) -> Grant:
        """Hand on authority for a task that is being worked on, by the key of the agent that works on it or an admin.

        Raises NotFound, Forbidden, LeaseLost, DelegationDenied.
        """

        def work(tx: Tx) -> Grant:
            task, agent = self._held(tx, principal, task_id, epoch)
            if self._snapshot.get(principal.tenant, wish.to_agent) is None:
                raise NotFound(f"No agent has the id {wish.to_agent!r}.")
            chain = find_chain(tx, task.tenant, task.metadata.grant_id)
            if task.metadata.grant_id is not None and not chain:
                raise Forbidden("The authority that the task was submitted with cannot be read.")
            if chain and not _chain_authority(tx, chain).is_active:
                raise DelegationDenied("The authority that the task was submitted with has ended.")
            depth, end = limit_grant(wish, task, chain, self._own(agent, task), tx.now)
            grant = _new_grant(principal, task, agent, wish, chain[0].grant_id if chain else None, depth, tx.now, end)
            insert_grant(tx, grant)
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
            if mark_revoked(tx, principal.tenant, grant_id):
                task = require_task(tx, principal.tenant, grant.task_id)
                self._record(tx, task, grant, "authority_revoked", "Authority taken back.", principal)
            return self._find(tx, principal.tenant, grant_id)

        return await self._db.write(work)

    async def get(self, tenant: str, grant_id: str) -> Grant:
        """Raises NotFound, the same for a foreign grant as for none."""
        return await self._db.read(lambda tx: self._find(tx, tenant, grant_id))

    async def list_for_task(self, principal: Principal, task_id: str) -> list[Grant]:
        """Raises NotFound, the same for a task that the caller neither sees nor holds a grant of as for none."""

        def read(tx: Tx) -> list[Grant]:
            task = require_task(tx, principal.tenant, task_id)
            found = list_task_grants(tx, principal.tenant, task_id)
            if not queries.can_see(tx, principal, task) and not any(self._holds(principal, grant) for grant in found):
                raise NotFound("No task has this id.")
            return found

        return await self._db.read(read)

    async def list_for_agents(self, tenant: str, agents: list[str]) -> list[Grant]:
        """What these agents hold now."""
        if not agents:
            return []
        return await self._db.read(lambda tx: [grant for one in agents for grant in list_agent_grants(tx, tenant, one)])

    async def resolve_authority(self, principal: Principal, grant_id: str) -> tuple[Authority, str | None]:
        """What a grant gives to this caller now, and the task that it is for: nothing to others. Fails closed."""

        def read(tx: Tx) -> tuple[Authority, str | None]:
            grant = find_grant(tx, principal.tenant, grant_id)
            if grant is None or not self._holds(principal, grant):
                return NO_AUTHORITY, None
            return self.resolve_authority_in_tx(tx, principal.tenant, grant_id), grant.task_id

        return await self._db.read(read)

    def resolve_authority_in_tx(self, tx: Tx, tenant: str, grant_id: str) -> Authority:
        """What it gives to whoever holds it, as a part of somebody's own transaction."""
        return _chain_authority(tx, find_chain(tx, tenant, grant_id))

    def resolve_task_authority(self, tx: Tx, task: Task) -> Authority:
        """What a task that waits was submitted with, as far as it can have ended since."""
        grant_id = task.metadata.grant_id
        return Authority() if grant_id is None else self.resolve_authority_in_tx(tx, task.tenant, grant_id)

    def _holds(self, principal: Principal, grant: Grant) -> bool:
        agent = self._snapshot.get(principal.tenant, grant.to_agent)
        if agent is None or agent.status != "active":
            return False
        return authorization.can_act_for(principal, agent)

    def _own(self, agent: Agent, task: Task) -> frozenset[str] | None:
        """What an agent may ask for without a grant; None is everything."""
        if not self._routing.policy.own_authority:
            return None
        return agent.capability_set | frozenset(task.required_capabilities)

    def _held(self, tx: Tx, principal: Principal, task_id: str, epoch: int) -> tuple[Task, Agent]:
        task = require_visible_task(tx, principal, task_id)
        agent = self._snapshot.get(principal.tenant, task.assigned_agent or "")
        if agent is None or not authorization.can_act_for(principal, agent):
            raise Forbidden("This key may not act for the task's agent.")
        if agent.status != "active":
            raise Conflict(f"The agent is {agent.status} and hands on nothing.")
        if task.status != "executing" or task.epoch != epoch:
            raise LeaseLost(f"The task is {task.status} in epoch {task.epoch}; epoch {epoch} does not hold it.")
        return task, agent

    def _find(self, tx: Tx, tenant: str, grant_id: str) -> Grant:
        grant = find_grant(tx, tenant, grant_id) if 0 < len(grant_id) <= MAX_ID_LENGTH else None
        if grant is None:
            raise NotFound("No grant has this id.")
        return grant

    def _record(self, tx: Tx, task: Task, grant: Grant, event: str, message: str, principal: Principal) -> None:
        meta: dict[str, Any] = {"grant_id": grant.grant_id, "to_agent": grant.to_agent, "by": principal.name}
        meta |= {"capabilities": list(grant.capabilities), "depth": grant.depth}
        draft = EventDraft(event, "tasks", message, meta, agent_id=grant.from_agent)  # type: ignore[arg-type]
        self._runlog.append(tx, task.tenant, [draft], task_id=task.task_id, parent=task.head_id)


def _chain_authority(tx: Tx, chain: list[Grant]) -> Authority:
    return effective_authority(chain, [tasks.find(tx, grant.tenant, grant.task_id) for grant in chain], tx.now)


def _new_grant(
    principal: Principal,
    task: Task,
    agent: Agent,
    wish: GrantRequest,
    parent: str | None,
    depth: int,
    now: int,
    end: int,
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


_FIELDS = Grant.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ONE = Sql(f"select {_COLUMNS} from grants where tenant = :tenant and grant_id = :grant_id")
_OF_TASK = Sql(
    f"select {_COLUMNS} from grants where tenant = :tenant and task_id = :task_id order by grant_id limit :limit"
)
_TO_AGENT = Sql(
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
MAX_LISTED_GRANTS = 1_000


def insert_grant(tx: Tx, grant: Grant) -> None:
    values = msgspec.structs.asdict(grant)
    tx.run(_INSERT, **{**values, "capabilities": jsontext.dump(grant.capabilities)})


def find_grant(tx: Tx, tenant: str, grant_id: str) -> Grant | None:
    row = tx.row(_ONE, tenant=tenant, grant_id=grant_id)
    return _grant_from_row(row) if row else None


def find_chain(tx: Tx, tenant: str, grant_id: str | None) -> list[Grant]:
    """A grant and those that it comes from, the nearest first; empty when one of them is missing."""
    found: list[Grant] = []
    while grant_id is not None:
        grant = find_grant(tx, tenant, grant_id)
        if grant is None or len(found) == MAX_DELEGATION_DEPTH:
            return []
        found.append(grant)
        grant_id = grant.parent_id
    return found


def list_task_grants(tx: Tx, tenant: str, task_id: str) -> list[Grant]:
    return [_grant_from_row(row) for row in tx.rows(_OF_TASK, tenant=tenant, task_id=task_id, limit=MAX_LISTED_GRANTS)]


def list_agent_grants(tx: Tx, tenant: str, agent_id: str) -> list[Grant]:
    """Those that have not ended by themselves, or with the work that they were given for."""
    return [
        _grant_from_row(row)
        for row in tx.rows(_TO_AGENT, tenant=tenant, agent_id=agent_id, now=tx.now, limit=MAX_LISTED_GRANTS)
    ]


def mark_revoked(tx: Tx, tenant: str, grant_id: str) -> bool:
    """Whether it was not revoked before."""
    return tx.run(_REVOKE, tenant=tenant, grant_id=grant_id, now=tx.now) == 1


_capabilities = msgspec.json.Decoder(tuple[str, ...])


def _grant_from_row(row: tuple[Any, ...]) -> Grant:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["capabilities"] = _capabilities.decode(values["capabilities"])
        return msgspec.convert(values, Grant)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"The stored grant {values['grant_id']!r} is malformed: {error}.") from error
