"""Routes of the registry; admin only. Source: core contract, "Agent registry"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from stentor.core.clock import iso, iso_or_none
from stentor.core.errors import InvalidRequest
from stentor.domains.registry import model, wire
from stentor.domains.registry.model import Agent, Runtime, Status, TrustTier
from stentor.domains.registry.service import Registry
from stentor.web.routes import needs
from stentor.web.wire import AgentId, Caller, Json, Offset, api_router, decode_cursor, encode_cursor, errors, next_link

TrustOf = Callable[[str, str], float | None]
"""(tenant, agent id) -> score now, None while nothing has set one."""
PresenceOf = Callable[[Agent], wire.Present]
CheckRuntime = Callable[[Runtime], None]
"""Raises when this service would not run it."""

ADMIN: dict[str, Any] = {"openapi_extra": needs("admin")}


def router(registry: Registry, trust_of: TrustOf, check_runtime: CheckRuntime, presence_of: PresenceOf) -> APIRouter:
    api = api_router("/registry/agents", tags=["registry"])

    @api.post("", status_code=201, response_model=wire.Registered, responses=errors(409, 501), **ADMIN)
    async def register(caller: Caller, body: wire.Register) -> Json:
        """Register an agent; it is active at once."""
        draft = body.draft()
        check_runtime(draft.runtime)
        agent = await registry.register(caller.tenant, draft, caller)
        shown = {"agent_id": agent.agent_id, "name": agent.name, "status": agent.status}
        return Json(shown | {"created_at": iso(agent.created_at)}, 201)

    @api.get("", response_model=wire.AgentPage, **ADMIN)
    async def list_agents(
        request: Request,
        caller: Caller,
        capability: Annotated[str | None, Query(max_length=255)] = None,
        status: Annotated[Status | None, Query()] = None,
        trust_tier: Annotated[TrustTier | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        cursor: Annotated[str | None, Query(max_length=512)] = None,
    ) -> Json:
        """The agents that match, oldest first; `malformed` are those whose records cannot be read."""
        if cursor is not None:
            (offset,) = decode_cursor(cursor, int)
            if offset < 0:
                raise InvalidRequest("The cursor is not one that this service gave out.")
        found = registry.matching(caller.tenant, capability=capability, status=status, trust_tier=trust_tier)
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
            "malformed": registry.malformed(caller.tenant),
        }
        return Json(body, headers=next_link(request, following))

    @api.get("/{agent_id}", response_model=wire.AgentOut, responses=errors(404), **ADMIN)
    async def read(caller: Caller, agent_id: AgentId) -> Json:
        """One agent."""
        agent, last = await registry.get(caller.tenant, agent_id)
        return Json(wire.agent_out(agent, trust_of(caller.tenant, agent_id), last, presence_of(agent)))

    @api.patch("/{agent_id}", response_model=wire.Scores, responses=errors(404), **ADMIN)
    async def rescore(caller: Caller, agent_id: AgentId, body: wire.Rescore) -> Json:
        """Change some of the three scores."""
        scores = model.Scores(body.alignment_score, body.accuracy_score, body.efficiency_score)
        agent = await registry.rescore(caller.tenant, agent_id, scores, caller)
        names = ("agent_id", "alignment_score", "accuracy_score", "efficiency_score")
        return Json({name: getattr(agent, name) for name in names} | {"updated_at": iso(agent.updated_at)})

    @api.get("/{agent_id}/violations", response_model=wire.Violations, responses=errors(404), **ADMIN)
    async def violations(caller: Caller, agent_id: AgentId, include_cleared: Annotated[bool, Query()] = False) -> Json:
        """The violations that count now; with `include_cleared` all that ever were."""
        agent, found = await registry.violations(caller.tenant, agent_id, cleared=include_cleared)
        rows = [
            {
                "violation_id": v.violation_id,
                "timestamp": iso(v.happened_at),
                "type": v.type,
                "details": v.details,
                "cleared_at": iso_or_none(v.cleared_at),
            }
            for v in found
        ]
        return Json(_standing(agent) | {"violations": rows})

    @api.post("/{agent_id}/clear-violations", response_model=wire.Cleared, responses=errors(404), **ADMIN)
    async def clear(caller: Caller, agent_id: AgentId, body: wire.Clear) -> Json:
        """Set the count to 0, lift quarantine and override the tier."""
        agent = await registry.clear_violations(caller.tenant, agent_id, body.override_tier, body.rationale, caller)
        override = {"overridden_by": caller.name, "override_timestamp": iso(agent.updated_at)}
        return Json(_standing(agent) | override)

    @api.post("/{agent_id}/suspend", response_model=wire.StatusOut, responses=errors(404, 409), **ADMIN)
    async def suspend(caller: Caller, agent_id: AgentId, body: wire.Suspend) -> Json:
        """Take an active agent out of routing."""
        return _status(await registry.suspend(caller.tenant, agent_id, body.reason, caller))

    @api.post("/{agent_id}/activate", response_model=wire.StatusOut, responses=errors(404, 409), **ADMIN)
    async def activate(caller: Caller, agent_id: AgentId) -> Json:
        """Lift a suspension."""
        return _status(await registry.activate(caller.tenant, agent_id, caller))

    return api


def _row(agent: Agent, trust_score: float | None, presence: wire.Present) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "name": agent.name,
        "capabilities": agent.capabilities,
        "trust_score": trust_score,
        "status": agent.status,
        **wire.present(presence),
    }


def _standing(agent: Agent) -> dict[str, Any]:
    return {
        "agent_id": agent.agent_id,
        "violation_count": agent.violation_count,
        "quarantined": agent.quarantined,
    }


def _status(agent: Agent) -> Json:
    body = {"agent_id": agent.agent_id, "status": agent.status, "reason": agent.status_reason}
    return Json(body | {"updated_at": iso(agent.updated_at)})
