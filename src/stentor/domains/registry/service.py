"""The registry of agents: registration, scores, status, violations. Each change and its event are one transaction.

Who may change what is decided in `authorization.py`. The `prepare_...` methods serve governance, which runs a change in
its own transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core import ids
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.db.polling import PollQuery
from stentor.core.errors import Conflict, InvalidRequest, RegistryRecordError
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.registry import authorization, model, store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.authorization import AgentAction
from stentor.domains.registry.changes import (
    Actor,
    AgentChange,
    AgentWriter,
    authorize,
    name_of,
    next_version,
    refuse_archived,
    require_agent,
)
from stentor.domains.registry.model import (
    Agent,
    AgentChanges,
    Runtime,
    SandboxWhitelist,
    TrustTier,
    Violation,
    ViolationType,
)

log = logging.getLogger(__name__)

BeforeArchiveHook = Callable[[Tx, Agent], None]
"""Called before an agent is archived, in the same transaction. Raises Conflict if it must not be."""
BeforeClearHook = Callable[[Tx, str, str, str], None]
"""Called before violations are cleared, in the same transaction: (tx, tenant, agent id, who clears them)."""


class AgentDraft(msgspec.Struct, frozen=True):
    """The fields of a registration."""

    name: str
    capabilities: tuple[str, ...] = ()
    alignment_score: float = model.DEFAULT_SCORE
    accuracy_score: float = model.DEFAULT_SCORE
    efficiency_score: float = model.DEFAULT_SCORE
    trust_tier: TrustTier = "monitored"
    runtime: Runtime = Runtime()
    sandbox_whitelist: SandboxWhitelist = SandboxWhitelist()
    key_name: str | None = None


class AgentRegistry:
    """Changes agents in the database and keeps the cache `agents` up to date."""

    def __init__(self, db: Database, clock: Clock, runlog: RunLog) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self.agents = AgentCache()
        self._writer = AgentWriter(runlog, self.agents)
        self.before_clear_hooks: list[BeforeClearHook] = []
        self.before_archive_hooks: list[BeforeArchiveHook] = []
        self._malformed: dict[str, str] = {}

    def poll_query(self, since: int) -> PollQuery:
        """Return the poll that updates the cache. A malformed record is logged and skipped: it gets no tasks."""
        return lambda tx: partial(self._apply_changes, *store.changed_since(tx, since))

    def _apply_changes(self, good: list[Agent], bad: list[RegistryRecordError]) -> None:
        for agent in good:
            # It has been repaired by hand since.
            self._malformed.pop(agent.agent_id, None)
            self.agents.put(agent)
        for error in bad:
            self._malformed[error.agent_id] = error.tenant
            log.error("registry: malformed record agent=%s reason=%s", error.agent_id, error.message)

    def list_malformed(self, tenant: str) -> list[str]:
        """Return the ids of the tenant's malformed records; reading one of them raises RegistryRecordError."""
        return sorted(agent_id for agent_id, owner in self._malformed.items() if owner == tenant)

    async def register(self, tenant: str, draft: AgentDraft, by: Actor) -> Agent:
        """Register an agent. Raises Forbidden."""
        return await self._db.write(self.prepare_register(tenant, draft, by))

    def prepare_register(self, tenant: str, draft: AgentDraft, by: Actor, cause: str | None = None) -> AgentChange:
        """Return the registration to run in the caller's transaction; `cause` is the id of the event that led to it."""
        if isinstance(by, Principal):
            scores = (draft.alignment_score, draft.accuracy_score, draft.efficiency_score)
            authorization.authorize_registration(by, scores, draft.trust_tier, self.agents.list_by_tenant(tenant))

        def work(tx: Tx) -> Agent:
            fields = {name: getattr(draft, name) for name in draft.__struct_fields__}
            agent = Agent(
                agent_id=ids.new_id(),
                tenant=tenant,
                status="active",
                violation_count=0,
                status_reason=None,
                created_at=tx.now,
                updated_at=tx.now,
                **fields,
            )
            store.insert(tx, agent)
            meta = {
                "agent_id": agent.agent_id,
                "name": agent.name,
                "capabilities": agent.capabilities,
                "by": name_of(by),
            }
            self._writer.record(tx, agent, "agent_registered", f"Agent {agent.name} registered.", meta, cause)
            return agent

        return work

    async def get(self, tenant: str, agent_id: str) -> tuple[Agent, int | None]:
        """Return the agent and the time of its last task. Raises NotFound."""

        def read(tx: Tx) -> tuple[Agent, int | None]:
            return require_agent(tx, tenant, agent_id), store.find_last_task_time(tx, tenant, agent_id)

        return await self._db.read(read)

    async def list_matching(
        self,
        tenant: str,
        *,
        capability: str | None,
        status: str | None,
        trust_tier: str | None,
        archived: bool | None = False,
    ) -> list[Agent]:
        """Return the tenant's agents that match, oldest first; from the cache, with what other processes changed.

        `archived` selects those that are archived or those that are not; None both.
        """
        await self.agents.catch_up(limited=False)
        capable = self.agents.list_capable(tenant, (capability,) if capability is not None else ())
        matching = [
            agent
            for agent in capable
            if (status is None or agent.status == status)
            and (trust_tier is None or agent.trust_tier == trust_tier)
            and (archived is None or agent.is_archived == archived)
        ]
        return sorted(matching, key=lambda agent: agent.position)

    async def authorize(self, principal: Principal, action: AgentAction, entity_id: str) -> None:
        """Authorize a change of the records that other domains store under an agent's id. Raises Forbidden."""
        if principal.is_person:
            return
        agent = await self._db.read(lambda tx: store.find(tx, principal.tenant, entity_id))
        authorization.authorize_entity_change(principal, action, entity_id, agent)

    async def edit(self, tenant: str, agent_id: str, changes: AgentChanges, by: Actor, reason: str = "") -> Agent:
        """Change scores, tier and key at once; `reason` is required for a looser tier.

        Tasks that already wait or run are not moved by a new tier. Raises Forbidden, NotFound, InvalidRequest.
        """
        return await self._db.write(self.prepare_edit(tenant, agent_id, changes, by, reason=reason))

    def prepare_edit(
        self,
        tenant: str,
        agent_id: str,
        changes: AgentChanges,
        by: Actor,
        cause: str | None = None,
        reason: str = "",
    ) -> AgentChange:
        """Return the edit, to run in the caller's transaction."""
        fields = changes.fields
        meta = {**fields, "fields": sorted(fields), "by": name_of(by)} | ({"reason": reason} if reason else {})

        def change(agent: Agent) -> dict[str, Any]:
            if isinstance(by, Principal):
                authorization.authorize_edit(by, agent, changes)
            if changes.trust_tier and model.is_looser(agent.trust_tier, changes.trust_tier) and not reason:
                raise InvalidRequest(
                    f"reason: required to change the trust tier from {agent.trust_tier} to {changes.trust_tier}, which "
                    "needs less approval",
                    {"fields": {"reason": "required for a looser trust tier"}},
                )
            return fields

        return self._writer.prepare(tenant, agent_id, change, "agent_updated", _describe(fields), meta, cause=cause)

    async def suspend(self, tenant: str, agent_id: str, reason: str, by: Actor) -> Agent:
        """Suspend an agent. Raises Forbidden, and Conflict unless the agent is active."""
        return await self._db.write(self.prepare_suspend(tenant, agent_id, reason, by))

    def prepare_suspend(
        self, tenant: str, agent_id: str, reason: str, by: Actor, cause: str | None = None
    ) -> AgentChange:
        """Return the suspension, to run in the caller's transaction."""
        return self._writer.prepare_status(tenant, agent_id, {"active"}, "suspended", reason, by, cause)

    async def activate(self, tenant: str, agent_id: str, by: Actor) -> Agent:
        """Lift a suspension; a quarantine ends only when the violations are cleared. Raises Forbidden, Conflict."""
        return await self._db.write(self.prepare_activate(tenant, agent_id, by))

    def prepare_activate(self, tenant: str, agent_id: str, by: Actor, cause: str | None = None) -> AgentChange:
        """Return the activation, to run in the caller's transaction."""
        return self._writer.prepare_status(tenant, agent_id, {"suspended"}, "active", None, by, cause)

    async def archive(self, tenant: str, agent_id: str, reason: str, by: Actor, *, force: bool = False) -> Agent:
        """Take an agent out of routing and lists; its history stays. It is suspended, or stays quarantined.

        With `force` also one whose tasks are running. Raises Forbidden, NotFound, Conflict.
        """

        def change(agent: Agent) -> dict[str, Any]:
            authorize(by, "archive", agent)
            if agent.is_archived:
                raise Conflict("The agent is archived already.")
            status = "suspended" if agent.status == "active" else agent.status
            return {"status": status, "archived_from": agent.status, "status_reason": reason or agent.status_reason}

        def work(tx: Tx) -> Agent:
            agent = require_agent(tx, tenant, agent_id)
            fields = change(agent)
            for hook in () if force else self.before_archive_hooks:
                hook(tx, agent)
            meta = {"to": "archived", "from": agent.status, "reason": reason, "forced": force, "by": name_of(by)}
            archive = self._writer.prepare(
                tenant,
                agent_id,
                lambda _: fields | {"archived_at": tx.now},
                "agent_status_changed",
                "Agent archived.",
                meta,
            )
            return archive(tx)

        return await self._db.write(work)

    async def restore(self, tenant: str, agent_id: str, by: Actor) -> Agent:
        """Bring an archived agent back with the status that it had. Raises Forbidden, NotFound, Conflict."""

        def work(tx: Tx) -> Agent:
            agent = require_agent(tx, tenant, agent_id)
            authorize(by, "restore", agent)
            if not agent.is_archived:
                raise Conflict(f"The agent is not archived, but {agent.status}.")
            # A violation of a task that was still running may have quarantined it in the meantime.
            status = agent.status if agent.is_quarantined else agent.archived_from
            fields = {"status": status, "archived_at": None, "archived_from": None}
            fields |= {"status_reason": None} if status == "active" else {}
            meta = {"to": status, "from": "archived", "by": name_of(by)}
            restore = self._writer.prepare(
                tenant, agent_id, lambda _: fields, "agent_status_changed", "Agent restored from the archive.", meta
            )
            return restore(tx)

        return await self._db.write(work)

    async def clear_violations(self, tenant: str, agent_id: str, tier: TrustTier, rationale: str, by: Actor) -> Agent:
        """Set the count to 0, lift a quarantine and override the trust tier; a suspension stays. Raises Forbidden."""

        def change(agent: Agent) -> dict[str, Any]:
            authorize(by, "clear_violations", agent)
            refuse_archived(agent)
            if isinstance(by, Principal):
                authorization.authorize_tier(by, agent, tier)
            status = "active" if agent.is_quarantined else agent.status
            reason = None if agent.is_quarantined else agent.status_reason
            return {"violation_count": 0, "status": status, "status_reason": reason, "trust_tier": tier}

        meta = {"override_tier": tier, "rationale": rationale, "by": name_of(by)}
        clear = self._writer.prepare(
            tenant,
            agent_id,
            change,
            "agent_status_changed",
            "Violations cleared.",
            meta,
            also=lambda tx: store.clear_violations(tx, agent_id),
        )

        def work(tx: Tx) -> Agent:
            # Before the change, so that a checkpoint has the state to which a rollback returns.
            for hook in self.before_clear_hooks:
                hook(tx, tenant, agent_id, name_of(by))
            return clear(tx)

        return await self._db.write(work)

    def prepare_reconfigure(
        self, tenant: str, agent_id: str, fields: dict[str, Any], message: str, by: str, cause: str | None
    ) -> AgentChange:
        """Return a change of capabilities, runtime, allow-list, scores or tier, to run in the caller's transaction."""
        meta = {"fields": sorted(fields), "by": by}
        return self._writer.prepare(
            tenant,
            agent_id,
            lambda agent: fields,
            "agent_updated",
            message,
            meta,
            cause=cause,
        )

    async def list_violations(self, tenant: str, agent_id: str, *, cleared: bool) -> tuple[Agent, list[Violation]]:
        def read(tx: Tx) -> tuple[Agent, list[Violation]]:
            return require_agent(tx, tenant, agent_id), store.list_violations(tx, agent_id, cleared=cleared)

        return await self._db.read(read)

    def record_violation(
        self,
        tx: Tx,
        agent: Agent,
        kind: ViolationType,
        details: str,
        *,
        task_id: str | None = None,
        parent: str | None = None,
    ) -> Agent:
        """Record a violation in the transaction of the denial; the third one quarantines the agent."""
        violation = store.record_violation(tx, agent.agent_id, kind, details)
        count, status = model.apply_violation(agent)
        reason = f"{count} violations" if status != agent.status else agent.status_reason
        changed = msgspec.structs.replace(
            agent, violation_count=count, status=status, status_reason=reason, updated_at=next_version(tx, agent)
        )
        store.update(tx, changed)
        meta = {"violation_id": violation.violation_id, "type": kind, "violation_count": count}
        drafts = [EventDraft("violation_recorded", "registry", details, meta, agent_id=agent.agent_id)]
        if status != agent.status:
            meta = {"from": agent.status, "to": status, "by": "system"}
            message = f"Agent {agent.name} quarantined."
            drafts.append(EventDraft("agent_status_changed", "registry", message, meta, agent_id=agent.agent_id))
        self._runlog.append(tx, agent.tenant, drafts, task_id=task_id, parent=parent)
        # After the commit: routing must never see an agent whose change was rolled back.
        tx.after_commit(lambda: self.agents.put(changed))
        return changed


def _describe(fields: dict[str, Any]) -> str:
    parts = ["Scores changed."] if any(name.endswith("_score") for name in fields) else []
    if "trust_tier" in fields:
        parts.append(f"Tier set to {fields['trust_tier']}.")
    if "key_name" in fields:
        parts.append(f"Key set to {fields['key_name']}." if fields["key_name"] else "Key removed.")
    return " ".join(parts)
