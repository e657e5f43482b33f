"""ATP messages to the zone `registry` (docs/atp.md): agents, with the effect of their REST routes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest, StentorError, StoreUnavailable
from stentor.core.jsontext import JsonObject
from stentor.domains.atp.bodies import (
    AgentFieldChange,
    AgentIdBody,
    ListAgentsBody,
    RegisterAgentBody,
    RevokeAgentBody,
    UpdateAgentsBody,
)
from stentor.domains.messaging.model import (
    ActionContext,
    ActionResult,
    CommitStep,
    MessageRoute,
    ZoneAction,
    error_response,
    fixed_route,
)
from stentor.domains.registry.changes import AgentChange
from stentor.domains.registry.model import Agent, AgentChanges
from stentor.domains.registry.service import AgentDraft, AgentRegistry

INTERNAL_ROUTE = MessageRoute((), "Executed by the registry; no agent is needed.")
SCORE_FIELDS = ("alignment_score", "accuracy_score", "efficiency_score")
SETTABLE_STATUSES = ("active", "suspended")

ParseRegistration = Callable[[JsonObject], AgentDraft]
"""Turns a body of the registry's REST route into a draft. Raises InvalidRequest, FeatureNotImplemented."""
TrustLookup = Callable[[str, str], float | None]
"""Takes tenant and agent id, returns the trust score."""


class RegistryZone:
    """Actions on agents."""

    def __init__(self, registry: AgentRegistry, parse_registration: ParseRegistration, trust_of: TrustLookup) -> None:
        self._registry = registry
        self._parse_registration = parse_registration
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
        return {
            ("registry", name): ZoneAction("admin", prepare, fixed_route(INTERNAL_ROUTE))
            for name, prepare in actions.items()
        }

    async def register(self, context: ActionContext) -> CommitStep:
        assert isinstance(context.body, RegisterAgentBody)
        # Only what was sent, so that the registry's own defaults apply.
        draft = self._parse_registration(context.body.model_dump(exclude_unset=True))
        register = self._registry.prepare_register(
            context.principal.tenant, draft, context.principal, context.parent_event_id
        )

        def commit(tx: Tx) -> ActionResult:
            agent = register(tx)
            response = {"agent_id": agent.agent_id, "name": agent.name, "status": agent.status}
            return ActionResult(response | {"created_at": format_iso(agent.created_at)}, INTERNAL_ROUTE)

        return commit

    async def update(self, context: ActionContext) -> CommitStep:
        """Change fields of agents. Operations are independent: one that fails does not undo the others."""
        assert isinstance(context.body, UpdateAgentsBody)
        operations = context.body.operations

        def commit(tx: Tx) -> ActionResult:
            results = [self._apply(tx, context, index, operation) for index, operation in enumerate(operations)]
            succeeded = sum(result["status"] == "completed" for result in results)
            response = {"results": results, "succeeded": succeeded, "failed": len(results) - succeeded}
            return ActionResult(response, INTERNAL_ROUTE, "completed" if succeeded else "failed")

        return commit

    def _apply(self, tx: Tx, context: ActionContext, index: int, operation: AgentFieldChange) -> JsonObject:
        target = {"index": index, "agent_id": operation.agent_id, "field": operation.field}
        try:
            change = self._prepare_change(context, operation)
            # Only this operation fails: the others of the message stay done.
            with tx.savepoint():
                agent = change(tx)
        except StoreUnavailable:
            raise  # not a result of this operation: the whole message is requeued
        except StentorError as error:
            return {**target, "status": "failed", **error_response(error)}
        return {**target, "status": "completed", "updated_at": format_iso(agent.updated_at)}

    def _prepare_change(self, context: ActionContext, operation: AgentFieldChange) -> AgentChange:
        """Prepare a change that the REST routes allow too. Raises InvalidRequest for any other."""
        tenant, by = context.principal.tenant, context.principal
        agent_id, field, value = operation.agent_id, operation.field, operation.value
        if field in SCORE_FIELDS:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise InvalidRequest(f"{field} must be a number from 0 to 1.")
            changes = msgspec.structs.replace(AgentChanges(), **{field: float(value)})
            return self._registry.prepare_edit(tenant, agent_id, changes, by, context.parent_event_id)
        if field == "status" and value == "suspended":
            return self._registry.prepare_suspend(
                tenant, agent_id, "Suspended by a message.", by, context.parent_event_id
            )
        if field == "status" and value == "active":
            return self._registry.prepare_activate(tenant, agent_id, by, context.parent_event_id)
        names = ", ".join(SCORE_FIELDS)
        raise InvalidRequest(
            f"A message can set {names} and status ({' or '.join(SETTABLE_STATUSES)}), not {field!r} to this value."
        )

    async def revoke(self, context: ActionContext) -> CommitStep:
        """Suspend an agent, as the REST route `suspend` does."""
        assert isinstance(context.body, RevokeAgentBody)
        body, by = context.body, context.principal
        suspend = self._registry.prepare_suspend(by.tenant, body.agent_id, body.reason, by, context.parent_event_id)

        def commit(tx: Tx) -> ActionResult:
            agent = suspend(tx)
            response = {"agent_id": agent.agent_id, "status": agent.status, "reason": agent.status_reason}
            return ActionResult(response, INTERNAL_ROUTE)

        return commit

    async def get_agent(self, context: ActionContext) -> CommitStep:
        assert isinstance(context.body, AgentIdBody)
        agent, last = await self._registry.get(context.principal.tenant, context.body.agent_id)
        response = self._agent_to_json(agent) | {
            "violation_count": agent.violation_count,
            "last_task": format_iso_or_none(last),
        }
        response |= {name: getattr(agent, name) for name in SCORE_FIELDS}
        return lambda tx: ActionResult(response, INTERNAL_ROUTE)

    async def list_agents(self, context: ActionContext) -> CommitStep:
        body = context.body
        assert isinstance(body, ListAgentsBody)
        agents = await self._registry.list_matching(
            context.principal.tenant, capability=body.capability, status=body.status, trust_tier=body.trust_tier
        )
        response = {"agents": [self._agent_to_json(agent) for agent in agents[: body.limit]], "total": len(agents)}
        return lambda tx: ActionResult(response, INTERNAL_ROUTE)

    def _agent_to_json(self, agent: Agent) -> JsonObject:
        return {
            "agent_id": agent.agent_id,
            "name": agent.name,
            "capabilities": agent.capabilities,
            "trust_tier": agent.trust_tier,
            "trust_score": self._trust_of(agent.tenant, agent.agent_id),
            "status": agent.status,
        }
