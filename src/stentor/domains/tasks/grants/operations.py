"""Operations on delegated authority, and who the caller is."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, Field

from stentor.auth.principal import Role
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import AgentStatus
from stentor.domains.tasks.grants.model import MAX_GRANT_CAPABILITIES, MAX_GRANT_SECONDS, GrantRequest
from stentor.domains.tasks.grants.service import GrantService
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Caller,
    Name,
    ResponseModel,
    TaskId,
    Timestamp,
    UuidText,
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
    parent_grant_id: Annotated[str | None, Field(validation_alias="parent_id")]
    depth: int
    created_at: Timestamp
    expires_at: Timestamp
    revoked_at: Timestamp | None


class GrantList(ResponseModel):
    grants: list[GrantOut]


class OwnAgent(ResponseModel):
    agent_id: str
    name: str
    status: AgentStatus
    capabilities: list[str]


class Who(ResponseModel):
    name: str
    role: Role
    permissions: list[str]
    tenant: str
    team: str = ""
    agents: list[OwnAgent]
    grants: list[GrantOut]


class GrantOperations:
    """What callers can do with delegated authority, and who they are. Each method is an operation."""

    def __init__(self, grants: GrantService, agents: AgentCache) -> None:
        self._grants, self._agents = grants, agents

    @operation("grants.create", "write", "POST /tasks/{task_id}/grants", 201, (404, 409))
    async def grant(self, caller: Caller, task_id: TaskId, body: GrantIn) -> GrantOut:
        """Delegate part of the authority for a task to another agent; `epoch` is that of the claim."""
        return GrantOut.of(await self._grants.create(caller, task_id, body.epoch, body.to_request()))

    @operation("grants.list", "read", "GET /tasks/{task_id}/grants", errors=(404,))
    async def of_task(self, caller: Caller, task_id: TaskId) -> GrantList:
        """List the grants of a task, oldest first."""
        return GrantList.of(grants=await self._grants.list_for_task(caller, task_id))

    @operation("grants.get", "read", "GET /grants/{grant_id}", errors=(404,))
    async def read(self, caller: Caller, grant_id: GrantId) -> GrantOut:
        """Return a grant, active or not."""
        return GrantOut.of(await self._grants.get(caller.tenant, grant_id))

    @operation("grants.revoke", "write", "POST /grants/{grant_id}/revoke", errors=(404,))
    async def revoke(self, caller: Caller, grant_id: GrantId) -> GrantOut:
        """Revoke a grant and all grants derived from it. Idempotent."""
        return GrantOut.of(await self._grants.revoke(caller, grant_id))

    @operation("whoami", "read", "GET /whoami")
    async def whoami(self, caller: Caller) -> Who:
        """Return the caller's key, its agents, and the authority delegated to them."""
        agents = self._agents.list_by_key(caller.tenant, caller.name)
        grants = await self._grants.list_for_agents(caller.tenant, [agent.agent_id for agent in agents])
        return Who.of(caller, permissions=sorted(caller.permissions), agents=agents, grants=grants)
