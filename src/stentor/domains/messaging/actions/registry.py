"""The zone registry: agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stentor.auth.principal import Principal
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest, StentorError, StoreUnavailable
from stentor.domains.atp.bodies import (
    ActionBody,
    AgentFieldChange,
    AgentIdBody,
    ListAgentsBody,
    RegisterAgentBody,
    RevokeAgentBody,
    UpdateAgentsBody,
)
from stentor.domains.atp.model import AtpHeader
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    ZoneAction,
    error_response,
)
from stentor.domains.registry.model import Agent, ScoreChanges
from stentor.domains.registry.service import AgentChange, AgentDraft, AgentRegistry

ITSELF = MessageRoute((), "The registry does it itself.")
SCORE_FIELDS = ("alignment_score", "accuracy_score", "efficiency_score")
STATES = ("active", "suspended")

ParseRegistration = Callable[[dict[str, Any]], AgentDraft]
"""A body as the registry's route takes it, to a draft. Raises InvalidRequest, NotBuilt."""
TrustLookup = Callable[[str, str], float | None]


class RegistryZone:
    def __init__(self, registry: AgentRegistry, registration: ParseRegistration, trust_of: TrustLookup) -> None:
        self._registry = registry
        self._registration = registration
        self._trust_of = trust_of

    def actions(self) -> dict[tuple[str, str], ZoneAction]:
        actions = {
            "register": self.register,
            "update": self.update,
            "revoke": self.revoke,
            "query": self.get_agent,
            "get_status": self.get_agent,
            "list": self.list_agents,
        }
        return {("registry", name): ZoneAction("admin", act, _itself) for name, act in actions.items()}

    async def register(self, work: ActionContext) -> CommitStep:
        assert isinstance(work.body, RegisterAgentBody)
        draft = self._registration(work.body.model_dump(exclude_unset=True))
        registering = self._registry.prepare_register(
            work.principal.tenant, draft, work.principal, work.parent_event_id
        )

        def close(tx: Tx) -> ActionResult:
            agent = registering(tx)
            shown = {"agent_id": agent.agent_id, "name": agent.name, "status": agent.status}
            return ActionResult(shown | {"created_at": format_iso(agent.created_at)}, ITSELF)

        return close

    async def update(self, work: ActionContext) -> CommitStep:
        """Each operation for itself: one that fails leaves the others."""
        assert isinstance(work.body, UpdateAgentsBody)
        operations = work.body.operations

        def close(tx: Tx) -> ActionResult:
            results = [self._result(tx, work, number, one) for number, one in enumerate(operations)]
            done = sum(result["status"] == "completed" for result in results)
            shown = {"results": results, "succeeded": done, "failed": len(results) - done}
            return ActionResult(shown, ITSELF, "completed" if done else "failed")

        return close

    def _result(self, tx: Tx, work: ActionContext, number: int, operation: AgentFieldChange) -> dict[str, Any]:
        where = {"index": number, "agent_id": operation.agent_id, "field": operation.field}
        try:
            change = self._change(work, operation)
            with tx.savepoint():
                agent = change(tx)
        except StoreUnavailable:
            raise
        except StentorError as error:
            return {**where, "status": "failed", **error_response(error)}
        return {**where, "status": "completed", "updated_at": format_iso(agent.updated_at)}

    def _change(self, work: ActionContext, operation: AgentFieldChange) -> AgentChange:
        """What the registry's routes can change. Raises InvalidRequest for anything else."""
        tenant, by = work.principal.tenant, work.principal
        agent_id, field, value = operation.agent_id, operation.field, operation.value
        if field in SCORE_FIELDS:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise InvalidRequest(f"{field} must be a number from 0 to 1.")
            return self._registry.prepare_rescore(
                tenant, agent_id, ScoreChanges(**{field: float(value)}), by, work.parent_event_id
            )
        if field == "status" and value == "suspended":
            return self._registry.prepare_suspend(tenant, agent_id, "Suspended by a message.", by, work.parent_event_id)
        if field == "status" and value == "active":
            return self._registry.prepare_activate(tenant, agent_id, by, work.parent_event_id)
        names = ", ".join(SCORE_FIELDS)
        raise InvalidRequest(f"A message changes {names} and status ({' or '.join(STATES)}), not {field!r} to this.")

    async def revoke(self, work: ActionContext) -> CommitStep:
        """Take an active agent out of routing, as its route `suspend` does."""
        assert isinstance(work.body, RevokeAgentBody)
        who, by = work.body.agent_id, work.principal
        suspend = self._registry.prepare_suspend(work.principal.tenant, who, work.body.reason, by, work.parent_event_id)

        def close(tx: Tx) -> ActionResult:
            agent = suspend(tx)
            shown = {"agent_id": agent.agent_id, "status": agent.status, "reason": agent.status_reason}
            return ActionResult(shown, ITSELF)

        return close

    async def get_agent(self, work: ActionContext) -> CommitStep:
        assert isinstance(work.body, AgentIdBody)
        agent, last = await self._registry.get(work.principal.tenant, work.body.agent_id)
        shown = self._shown(agent) | {"violation_count": agent.violation_count, "last_task": format_iso_or_none(last)}
        shown |= {name: getattr(agent, name) for name in SCORE_FIELDS}
        return lambda tx: ActionResult(shown, ITSELF)

    async def list_agents(self, work: ActionContext) -> CommitStep:
        body = work.body
        assert isinstance(body, ListAgentsBody)
        found = self._registry.list_matching(
            work.principal.tenant, capability=body.capability, status=body.status, trust_tier=body.trust_tier
        )
        shown = {"agents": [self._shown(agent) for agent in found[: body.limit]], "total": len(found)}
        return lambda tx: ActionResult(shown, ITSELF)

    def _shown(self, agent: Agent) -> dict[str, Any]:
        return {
            "agent_id": agent.agent_id,
            "name": agent.name,
            "capabilities": agent.capabilities,
            "trust_tier": agent.trust_tier,
            "trust_score": self._trust_of(agent.tenant, agent.agent_id),
            "status": agent.status,
        }


def _itself(principal: Principal, header: AtpHeader, body: ActionBody) -> MessageRoute:
    return ITSELF
