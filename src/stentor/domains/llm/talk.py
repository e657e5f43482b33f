"""Who answers a request: a model of a provider, or an agent that is used as a model (`agent:<capability>`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from stentor.auth.principal import Principal
from stentor.core.errors import InvalidRequest
from stentor.domains.llm.gate import Caller
from stentor.domains.llm.model import Delta, Request
from stentor.domains.llm.service import AGENT, Choice, Done, Gateway, Work


class Answering(Protocol):
    """An answer that has begun, to be read once: deltas, the last of them with the usage. `close` gives it up."""

    @property
    def name(self) -> str: ...
    @property
    def provenance_id(self) -> str: ...
    @property
    def degraded(self) -> bool: ...
    @property
    def work(self) -> Work | None: ...
    @property
    def choice(self) -> Choice | None: ...
    def __aiter__(self) -> AsyncIterator[Delta]: ...
    async def close(self) -> None: ...


class Agents(Protocol):
    """Agents as models; above this domain, because tasks are."""

    def capabilities(self, tenant: str) -> list[str]: ...
    async def chat(self, principal: Principal, request: Request) -> Done: ...
    async def stream(self, principal: Principal, request: Request) -> Answering: ...


class Talk:
    def __init__(self, gateway: Gateway, agents: Agents) -> None:
        self._gateway = gateway
        self._agents = agents

    async def chat(self, principal: Principal, request: Request, agent_id: str | None = None) -> Done:
        """`agent_id` is an agent of the caller's, whose account the call is on too. Raises like Gateway and Agents."""
        if to_agent(request):
            return await self._agents.chat(principal, request)
        return await self._gateway.chat(Caller(principal.tenant, principal.name, agent_id), request)

    async def stream(self, principal: Principal, request: Request) -> Answering:
        """Returns when somebody has begun to answer."""
        if to_agent(request):
            return await self._agents.stream(principal, request)
        return await self._gateway.stream(Caller(principal.tenant, principal.name), request)

    def models(self, tenant: str) -> list[str]:
        """The agents that may be asked now, as names of models."""
        return [AGENT + capability for capability in self._agents.capabilities(tenant)]


def to_agent(request: Request) -> bool:
    """Raises InvalidRequest for a name without a capability."""
    if not request.model.startswith(AGENT):
        return False
    if not request.model[len(AGENT) :].strip():
        raise InvalidRequest(f"Name a capability: {AGENT}<capability>.", {"fields": {"model": "has no capability"}})
    return True
