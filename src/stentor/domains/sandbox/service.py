"""Decide whether an agent may do something, and record it. Denials are violations; the third one quarantines the agent.

Fails closed: nothing is allowed that was not recorded. The rules of allow-lists are in `model`.
"""

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
"""Adds what the named tool of this service needs, so that the broker and the operation check the same access."""


class AccessDecision(msgspec.Struct, frozen=True):
    """The decision, and the agent after it: a denial may have quarantined it."""

    is_allowed: bool
    denial: AccessDenial | None
    agent: Agent


class SandboxService:
    """Checks accesses. `rules` is the policy file, which can deny what the allow-list allows."""

    def __init__(self, db: Database, registry: AgentRegistry, runlog: RunLog, rules: PolicySet | None) -> None:
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
        by: str | None = None,
        guard: TxGuard | None = None,
    ) -> AccessDecision:
        """Check one access and record it; a denial is recorded as a violation in the same transaction.

        `parent` is the parent of the recorded events, `by` the key that asked, None for a call of the agent itself.
        `guard` may raise in the transaction to prevent everything.
        Raises NotFound.
        """
        path = None if access.path is None else model.normalize_path(access.path)
        access = self.complete_access(msgspec.structs.replace(access, path=path))

        def work(tx: Tx) -> AccessDecision:
            if guard is not None:
                guard(tx)
            agent = agents.find(tx, tenant, agent_id)
            if agent is None:
                raise NotFound(f"No agent has the id {agent_id!r}.")
            denial = self._check(tx, agent, access)
            event: EventType = "tool_denied" if denial else "tool_called"
            message = denial.details if denial else f"{access.operation} with {access.tool} allowed."
            meta = msgspec.to_builtins(access)
            if by is not None:
                meta["by"] = by
            draft = EventDraft(event, "sandbox", message, meta, agent_id=agent_id)
            head = self._runlog.append(tx, tenant, [draft], task_id=task_id, parent=parent)
            # An agent that is not active is denied everything: further attempts are events, not violations.
            if denial and agent.status == "active":
                agent = self._registry.record_violation(
                    tx, agent, denial.type, denial.details, task_id=task_id, parent=head
                )
            return AccessDecision(denial is None, denial, agent)

        # Locks everything: the tokens of a rate limit and the agent's violations are read, counted and written back.
        return await self._db.write(work)

    def _check(self, tx: Tx, agent: Agent, access: Access) -> AccessDenial | None:
        if agent.status != "active":
            return AccessDenial("missing_capability", f"The agent is {agent.status}.")
        tool = model.check_access(agent.sandbox_whitelist, access)
        if isinstance(tool, AccessDenial):
            return tool
        if access.capability is not None and access.capability not in agent.capability_set:
            return AccessDenial(
                "missing_capability", f"The tool {tool.name!r} needs the capability {access.capability!r}."
            )
        if (denial := self._check_policy(agent, access)) is not None:
            return denial
        # Last, so that only an access that is otherwise allowed takes a token.
        if tool.rate_limit:
            tokens, idle_us = store.read_bucket(tx, agent.agent_id, tool.name)
            left = model.take_token(tool.rate_limit, tokens, idle_us)
            if left is None:
                if tokens is not None and idle_us < 0:
                    # The clock was set back: else the bucket would stay empty for as long as it was.
                    store.put_bucket(tx, agent.agent_id, tool.name, tokens)
                limit = f"more than {tool.rate_limit} calls a minute"
                return AccessDenial("rate_limit", f"The tool {tool.name!r} was called {limit}.")
            store.put_bucket(tx, agent.agent_id, tool.name, left)
        return None

    def _check_policy(self, agent: Agent, access: Access) -> AccessDenial | None:
        if self._rules is None:
            return None
        host = None if access.host is None else model.normalize_host(access.host)
        context = {"operation": access.operation, "path": access.path, "host": host, "port": access.port}
        ruling = self._rules.authorize(
            "use_tool", agent_policy.to_policy_entity(agent), PolicyEntity("Tool", access.tool), context
        )
        if ruling.allowed:
            return None
        reasons = ", ".join(ruling.reasons) or "no permit"
        return AccessDenial("unauthorized_tool", f"The policy of this service denies {access.tool!r} ({reasons}).")
