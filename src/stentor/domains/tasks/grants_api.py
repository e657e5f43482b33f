"""Routes of delegated authority, and who the caller is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path
from pydantic import AfterValidator, Field

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks.grants import MAX_GRANT_CAPABILITIES, MAX_GRANT_SECONDS, Grant, GrantRequest, GrantService
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Caller,
    JsonResponse,
    Name,
    ResponseModel,
    TaskId,
    Timestamp,
    UuidText,
    api_router,
    error_responses,
)

GrantId = Annotated[str, Path(description="The grant's id."), AfterValidator(decode_path_segment)]


class GrantIn(RequestModel):
    model_config = example_config(epoch=1, to_agent="0190f5f0-0000-7000-8000-000000000000", capabilities=["summarize"])

    epoch: Annotated[int, Field(ge=1, le=2**31 - 1)]
    to_agent: UuidText
    capabilities: Annotated[list[Name], Field(min_length=1, max_length=MAX_GRANT_CAPABILITIES)]
    expires_in_seconds: Annotated[int, Field(ge=1, le=MAX_GRANT_SECONDS)] | None = None

    def to_request(self) -> GrantRequest:
        return GrantRequest(self.to_agent, tuple(dict.fromkeys(self.capabilities)), self.expires_in_seconds)


class GrantOut(ResponseModel):
    grant_id: str
    task_id: str
    from_agent: str
    to_agent: str
    capabilities: list[str]
    parent_grant_id: str | None
    depth: int
    created_at: Timestamp
    expires_at: Timestamp
    revoked_at: Timestamp | None


class GrantList(ResponseModel):
    grants: list[GrantOut]


class OwnAgent(ResponseModel):
    agent_id: str
    name: str
    status: str
    capabilities: list[str]


class Who(ResponseModel):
    name: str
    role: Literal["admin", "agent"]
    permissions: list[str]
    tenant: str
    agents: list[OwnAgent]
    grants: list[GrantOut]


def router(grants: GrantService, snapshot: AgentCache) -> APIRouter:
    api = api_router(tags=["authority"])

    @api.post("/tasks/{task_id}/grants", status_code=201, response_model=GrantOut, responses=error_responses(404, 409))
    async def grant(caller: Caller, task_id: TaskId, body: GrantIn) -> JsonResponse:
        """Hand a part of the authority for a task to another agent; `epoch` is that of the claim."""
        return JsonResponse(_grant_out(await grants.create(caller, task_id, body.epoch, body.to_request())), 201)

    @api.get("/tasks/{task_id}/grants", response_model=GrantList, responses=error_responses(404))
    async def of_task(caller: Caller, task_id: TaskId) -> JsonResponse:
        """All that was handed on for a task, the first one first."""
        return JsonResponse({"grants": [_grant_out(one) for one in await grants.list_for_task(caller, task_id)]})

    @api.get("/grants/{grant_id}", response_model=GrantOut, responses=error_responses(404))
    async def read(caller: Caller, grant_id: GrantId) -> JsonResponse:
        """One grant, whether it holds or not."""
        return JsonResponse(_grant_out(await grants.get(caller.tenant, grant_id)))

    @api.post("/grants/{grant_id}/revoke", response_model=GrantOut, responses=error_responses(404))
    async def revoke(caller: Caller, grant_id: GrantId) -> JsonResponse:
        """Take authority back, with all that came from it. Again is no error."""
        return JsonResponse(_grant_out(await grants.revoke(caller, grant_id)))

    @api.get("/whoami", response_model=Who)
    async def whoami(caller: Caller) -> JsonResponse:
        """The caller's key, its agents, and the authority that was handed to them."""
        own = snapshot.list_of_key(caller.tenant, caller.name)
        held = await grants.list_for_agents(caller.tenant, [agent.agent_id for agent in own])
        return JsonResponse(
            {
                "name": caller.name,
                "role": caller.role,
                "permissions": sorted(caller.permissions),
                "tenant": caller.tenant,
                "agents": [{name: getattr(agent, name) for name in OwnAgent.model_fields} for agent in own],
                "grants": [_grant_out(one) for one in held],
            }
        )

    return api


def _grant_out(grant: Grant) -> dict[str, Any]:
    return {
        "grant_id": grant.grant_id,
        "task_id": grant.task_id,
        "from_agent": grant.from_agent,
        "to_agent": grant.to_agent,
        "capabilities": grant.capabilities,
        "parent_grant_id": grant.parent_id,
        "depth": grant.depth,
        "created_at": format_iso(grant.created_at),
        "expires_at": format_iso(grant.expires_at),
        "revoked_at": format_iso_or_none(grant.revoked_at),
    }
