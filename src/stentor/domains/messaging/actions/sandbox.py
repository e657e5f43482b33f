"""The zone sandbox: work for an agent that runs in a cage, and for no other."""

from __future__ import annotations

from typing import cast

import msgspec

from stentor.auth.principal import Principal
from stentor.core.errors import CapabilityUnavailable, PreferredAgentIneligible
from stentor.domains.atp.bodies import Body, Execute
from stentor.domains.atp.model import Header
from stentor.domains.messaging.actions.kernel import Kernel, preferred, required
from stentor.domains.messaging.model import Action, Closing, Route, Work
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.model import RoutingRequest
from stentor.domains.routing.service import RoutingEngine

CAGED = "command"


class SandboxZone:
    def __init__(self, kernel: Kernel, routing: RoutingEngine, snapshot: AgentCache) -> None:
        self._kernel = kernel
        self._routing = routing
        self._snapshot = snapshot

    def table(self) -> dict[tuple[str, str], Action]:
        return {("sandbox", "execute"): Action("write", self.execute, self.route)}

    async def execute(self, work: Work) -> Closing:
        """The same as kernel/execute, for command agents alone. Raises a RoutingDenied, or what that raises."""
        body = self._caged(work.principal, work.header, work.body)
        return await self._kernel.execute(msgspec.structs.replace(work, body=body))

    def route(self, principal: Principal, header: Header, body: Body) -> Route:
        return self._kernel.route(principal, header, self._caged(principal, header, body))

    def _caged(self, principal: Principal, header: Header, body: Body) -> Execute:
        """The body with the agent chosen: the best command agent, as routing ranks them."""
        given = cast("Execute", body)
        wanted, named = required(header, given), preferred(header, given)
        chosen = named if named is not None else self._best(principal, given.task.type, wanted)
        if chosen is None:
            raise CapabilityUnavailable(
                "No command agent has all the required capabilities.", {"required_capabilities": list(wanted)}
            )
        if named is not None and not self._is_caged(principal.tenant, named):
            raise PreferredAgentIneligible("The agent that is named runs in no cage.", {"agent_preference": named})
        return given.model_copy(update={"task": given.task.model_copy(update={"agent_preference": chosen})})

    def _best(self, principal: Principal, task_type: str, wanted: tuple[str, ...]) -> str | None:
        authority = self._routing.caller_authority(principal)
        ranked = self._routing.decide(RoutingRequest(principal.tenant, task_type, wanted, authority)).candidates
        for one in ranked:
            if self._is_caged(principal.tenant, one.agent_id):
                return one.agent_id
        able = self._snapshot.list_capable(principal.tenant, wanted)  # beyond those that a decision lists
        found = (agent.agent_id for agent in able if agent.runtime.kind == CAGED and agent.status == "active")
        return min(found, default=None)

    def _is_caged(self, tenant: str, agent_id: str) -> bool:
        agent = self._snapshot.get(tenant, agent_id)
        return agent is not None and agent.runtime.kind == CAGED
