"""Decide whether an agent may do something. Denials are violations, and the third one quarantines. Fails closed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stentor.core.db import Database, Tx
from stentor.core.errors import NotFound
from stentor.core.runlog import EventDraft, EventType, RunLog
from stentor.core.security.policy import PolicyEntity, PolicySet
from stentor.domains.registry import authorization as agent_policy
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.registry.service import AgentRegistry
from stentor.domains.sandbox import model, store
from stentor.domains.sandbox.model import Access, AccessDenial

TxGuard = Callable[[Tx], None]
CompleteAccess = Callable[[Access], Access]
"""What an access means for the tool of this service that it names: the broker and the check judge the same."""


class AccessDecision(msgspec.Struct, frozen=True):
    is_allowed: bool
    denial: AccessDenial | None
    agent: Agent


class SandboxService:
    """`rules`: the policy file, which may refuse what the whitelist allows."""

    def __init__(self, db: Database, registry: AgentRegistry, runlog: RunLog, rules: PolicySet | None = None) -> None:
        self._db = db
        self._registry = registry
        self._runlog = runlog
        self._rules = rules
        self.complete_access: CompleteAccess = lambda access: access

    async def authorize(
        self,
        tenant: str,
        agent_id: str,
        access: Access,
        *,
        task_id: str | None = None,
        parent: str | None = None,
        guard: TxGuard | None = None,
    ) -> AccessDecision:
        """Judge one access and record it; what is refused is a violation in the same transaction.

        The events hang under `parent`, of the task; `guard` may raise to have nothing happen.
        """

        access = self.complete_access(access)

        def work(tx: Tx) -> AccessDecision:
            if guard is not None:
                guard(tx)
            agent = agents.find(tx, tenant, agent_id)
            if agent is None:
                raise NotFound(f"No agent has the id {agent_id!r}.")
            refusal = self._refusal(tx, agent, access)
            event: EventType = "tool_denied" if refusal else "tool_called"
            message = refusal.details if refusal else f"{access.operation} with {access.tool} allowed."
            draft = EventDraft(event, "sandbox", message, msgspec.to_builtins(access), agent_id=agent_id)
            head = self._runlog.append(tx, tenant, [draft], task_id=task_id, parent=parent)
            if refusal and agent.status == "active":
                agent = self._registry.record_violation(
                    tx, agent, refusal.type, refusal.details, task_id=task_id, parent=head
                )
            return AccessDecision(refusal is None, refusal, agent)

        return await self._db.write(work)

    def _refusal(self, tx: Tx, agent: Agent, access: Access) -> AccessDenial | None:
        if agent.status != "active":
            return AccessDenial("missing_capability", f"The agent is {agent.status}.")
        judged = model.check_access(agent.sandbox_whitelist, access)
        if isinstance(judged, AccessDenial):
            return judged
        if access.capability is not None and access.capability not in agent.capability_set:
            return AccessDenial(
                "missing_capability", f"The tool {judged.name!r} needs the capability {access.capability!r}."
            )
        if (refused := self._forbidden(agent, access)) is not None:
            return refused
        if judged.rate_limit:
            left = model.take_token(judged.rate_limit, *store.read_bucket(tx, agent.agent_id, judged.name))
            if left is None:
                limit = f"more than {judged.rate_limit} calls a minute"
                return AccessDenial("rate_limit", f"The tool {judged.name!r} was called {limit}.")
            store.put_bucket(tx, agent.agent_id, judged.name, left)
        return None

    def _forbidden(self, agent: Agent, access: Access) -> AccessDenial | None:
        if self._rules is None:
            return None
        host = None if access.host is None else model.normalize_host(access.host)
        context = {"operation": access.operation, "path": access.path, "host": host, "port": access.port}
        ruling = self._rules.authorize(
            "use_tool", agent_policy.to_policy_entity(agent), PolicyEntity("Tool", access.tool), context
        )
        if ruling.allowed:
            return None
        by = ", ".join(ruling.reasons) or "no permit"
        return AccessDenial("unauthorized_tool", f"The policy of this service refuses {access.tool!r} ({by}).")
