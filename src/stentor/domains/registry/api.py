"""Routes of the registry; admin only. Source: core contract, "Agent registry"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.errors import InvalidRequest
from stentor.domains.registry import model, wire
from stentor.domains.registry.model import Agent, AgentStatus, Runtime, TrustTier
from stentor.domains.registry.service import AgentRegistry
from stentor.web.routes import requires_permission
from stentor.web.wire import (
    AgentId,
    Caller,
    JsonResponse,
    Offset,
    api_router,
    decode_cursor,
    encode_cursor,
    error_responses,
    next_link,
)

TrustLookup = Callable[[str, str], float | None]
"""(tenant, agent id) -> score now, None while nothing has set one."""
PresenceLookup = Callable[[Agent], wire.PresenceState]
CheckRuntime = Callable[[Runtime], None]
"""Raises when this service would not run it."""

ADMIN: dict[str, Any] = {"openapi_extra": requires_permission("admin")}


def router(
    registry: AgentRegistry, trust_of: TrustLookup, check_runtime: CheckRuntime, presence_of: PresenceLookup
) -> APIRouter:
    api = api_router("/registry/agents", tags=["registry"])

    @api.post("", status_code=201, response_model=wire.Registered, responses=error_responses(409, 501), **ADMIN)
    async def register(caller: Caller, body: wire.Register) -> JsonResponse:
        """Register an agent; it is active at once."""
        draft = body.to_draft()
        check_runtime(draft.runtime)
        agent = await registry.register(caller.tenant, draft, caller)
        shown = {"agent_id": agent.agent_id, "name": agent.name, "status": agent.status}
        return JsonResponse(shown | {"created_at": format_iso(agent.created_at)}, 201)

    @api.get("", response_model=wire.AgentPage, **ADMIN)
    async def list_agents(
        request: Request,
        caller: Caller,
        capability: Annotated[str | None, Query(max_length=255)] = None,
        status: Annotated[AgentStatus | None, Query()] = None,
        trust_tier: Annotated[TrustTier | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> JsonResponse:
        """The agents that match, oldest first; `malformed` are those whose records cannot be read."""
        if cursor is not None:
            (offset,) = decode_cursor(cursor, int)
            if offset < 0:
                raise InvalidRequest("The cursor is not one that this service gave out.")
        found = registry.list_matching(caller.tenant, capability=capability, status=status, trust_tier=trust_tier)
        rows = [
            _row(agent, trust_of(caller.tenant, agent.agent_id), presence_of(agent))
            for agent in found[offset : offset + limit]
        ]
        following = encode_cursor(offset + limit) if offset + limit < len(found) else None
        body = {
            "agents": rows,
            "total": len(found),
            "limit": limit,
            "offset": offset,
            "next_cursor": following,
            "malformed": registry.list_malformed(caller.tenant),
        }
        return JsonResponse(body, headers=next_link(request, following))

    @api.get("/{agent_id}", response_model=wire.AgentOut, responses=error_responses(404), **ADMIN)
    async def read(caller: Caller, agent_id: AgentId) -> JsonResponse:
        """One agent."""
        agent, last = await registry.get(caller.tenant, agent_id)
        return JsonResponse(wire.agent_out(agent, trust_of(caller.tenant, agent_id), last, presence_of(agent)))

    @api.patch("/{agent_id}", response_model=wire.Scores, responses=error_responses(404), **ADMIN)
    async def rescore(caller: Caller, agent_id: AgentId, body: wire.Rescore) -> JsonResponse:
        """Change some of the three scores."""
        scores = model.ScoreChanges(body.alignment_score, body.accuracy_score, body.efficiency_score)
        agent = await registry.rescore(caller.tenant, agent_id, scores, caller)
        names = ("agent_id", "alignment_score", "accuracy_score", "efficiency_score")
        return JsonResponse(
            {name: getattr(agent, name) for name in names} | {"updated_at": format_iso(agent.updated_at)}
        )

    @api.get("/{agent_id}/violations", response_model=wire.Violations, responses=error_responses(404), **ADMIN)
    async def violations(
        caller: Caller, agent_id: AgentId, include_cleared: Annotated[bool, Query()] = False
    ) -> JsonResponse:
        """The violations that count now; with `include_cleared` all that ever were."""
        agent, found = await registry.list_violations(caller.tenant, agent_id, cleared=include_cleared)
        rows = [
            {
                "violation_id": v.violation_id,
                "timestamp": format_iso(v.happened_at),
                "type": v.type,
                "details": v.details,
                "cleared_at": format_iso_or_none(v.cleared_at),
            }
            for v in found
        ]
        return JsonResponse(_standing(agent) | {"violations": rows})

    @api.post("/{agent_id}/clear-violations", response_model=wire.Cleared, responses=error_responses(404), **ADMIN)
    async def clear(caller: Caller, agent_id: AgentId, body: wire.Clear) -> JsonResponse:
        """Set the count to 0, lift quarantine and override the tier."""
        agent = await registry.clear_violations(caller.tenant, agent_id, body.override_tier, body.rationale, caller)
        override = {"overridden_by": caller.name, "override_timestamp": format_iso(agent.updated_at)}
        return JsonResponse(_standing(agent) | override)

    @api.post("/{agent_id}/suspend", response_model=wire.StatusOut, responses=error_responses(404, 409), **ADMIN)
    async def suspend(caller: Caller, agent_id: AgentId, body: wire.Suspend) -> JsonResponse:
        """Take an active agent out of routing."""
        return _status(await registry.suspend(caller.tenant, agent_id, body.reason, caller))

    @api.post("/{agent_id}/activate", response_model=wire.StatusOut, responses=error_responses(404, 409), **ADMIN)
    async def activate(caller: Caller, agent_id: AgentId) -> JsonResponse:
        """Lift a suspension."""
        return _status(await registry.activate(caller.tenant, agent_id, caller))

    return api


def _row(agent: Agent, trust_score: float | None, presence: wire.PresenceState) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "name": agent.name,
        "capabilities": agent.capabilities,
        "trust_score": trust_score,
        "status": agent.status,
        **wire.presence_out(presence),
    }


def _standing(agent: Agent) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "violation_count": agent.violation_count,
        "quarantined": agent.is_quarantined,
    }


def _status(agent: Agent) -> JsonResponse:
    body = {"agent_id": agent.agent_id, "status": agent.status, "reason": agent.status_reason}
    return JsonResponse(body | {"updated_at": format_iso(agent.updated_at)})
