"""The operation that checks an access of an agent, for agents whose tools are not called through the broker."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from stentor.core.errors import Forbidden
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import ViolationType
from stentor.domains.sandbox.model import Access
from stentor.domains.sandbox.service import SandboxService
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import AgentId, Caller, Name, ResponseModel, Text


class Authorize(RequestModel):
    model_config = example_config(tool="files", operation="read", path="notes/today.md")

    tool: Name
    operation: Name
    path: Annotated[Text, StringConstraints(max_length=4096)] | None = None
    host: Name | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None


class Verdict(ResponseModel):
    agent_id: str
    allowed: bool
    reason: str | None
    violation: ViolationType | None
    violation_count: int
    quarantined: Annotated[bool, Field(validation_alias="is_quarantined")]


class SandboxOperations:
    """Operations on accesses of agents."""

    def __init__(self, sandbox: SandboxService, agents: AgentCache) -> None:
        self._sandbox, self._agents = sandbox, agents

    @operation("agents.authorize", "write", "POST /registry/agents/{agent_id}/authorize", errors=(404,))
    async def authorize(self, caller: Caller, agent_id: AgentId, body: Authorize) -> Verdict:
        """Check whether the agent may do this, and record it.

        A denial of an active agent is a violation, and the third one quarantines it. Treat a missing response as a
        denial. An agent's key may ask only for its own agents, an admin's for all.
        """
        agent = self._agents.get(caller.tenant, agent_id)
        if not caller.may("admin") and (agent is None or agent.key_name != caller.name):
            raise Forbidden("This key may not check the accesses of this agent.")
        access = Access(body.tool, body.operation, body.path, body.host, body.port)
        by = None if agent is not None and agent.key_name == caller.name else caller.name
        decision = await self._sandbox.authorize(caller.tenant, agent_id, access, by=by)
        denial = decision.denial
        return Verdict.of(
            decision.agent,
            allowed=decision.is_allowed,
            reason=denial.details if denial else None,
            violation=denial.type if denial else None,
        )
