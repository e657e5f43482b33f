"""Chat requests of clients: to a model of a provider, or for the model `agent:<capability>` to an agent.

The gateway to providers is `service`; agents, tasks and sessions belong to domains above this one, which implement the
ports.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from stentor.auth.principal import IsActive, Principal, require_active
from stentor.core.errors import InvalidRequest
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.model import ChatRequest
from stentor.domains.llm.results import AnswerStream, ChatResult, SessionPort, SessionStream
from stentor.domains.llm.service import AGENT_PREFIX, LlmGateway

FindAgentOfKey = Callable[[str, str], str | None]
"""Returns the id of the only agent of a key, by tenant and name of the key."""


class AgentChatPort(Protocol):
    """Agents used as models."""

    def capabilities(self, tenant: str) -> list[str]: ...
    async def chat(self, principal: Principal, request: ChatRequest, parent_task_id: str | None) -> ChatResult: ...
    async def stream(self, principal: Principal, request: ChatRequest, parent_task_id: str | None) -> AnswerStream: ...


class TaskCallerPort(Protocol):
    """Finds the caller of a model call that belongs to a task."""

    async def find_model_caller(self, principal: Principal, task_id: str) -> LlmCaller: ...


class ChatRouter:
    """Sends chat requests to a provider's model or to an agent."""

    def __init__(
        self,
        gateway: LlmGateway,
        agents: AgentChatPort,
        tasks: TaskCallerPort,
        sessions: SessionPort,
        is_active: IsActive,
        find_agent: FindAgentOfKey,
    ) -> None:
        self._gateway = gateway
        self._agents = agents
        self._tasks = tasks
        self._sessions = sessions
        self._is_active = is_active
        self._find_agent = find_agent

    async def chat(
        self,
        principal: Principal,
        request: ChatRequest,
        agent_id: str | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
    ) -> ChatResult:
        """Return the complete reply. The call also counts against the budgets of `agent_id`, an agent of the caller.

        With `session_id` the request continues a session, which keeps its messages and the reply.
        Raises like `find_caller`, `LlmGateway.chat`, `AgentChatPort.chat` and `SessionPort`.
        """
        # Also before an agent's answer, which does not need it: a task that is not the caller's must be rejected.
        caller = await self.find_caller(principal, agent_id, task_id)
        turn = None if session_id is None else await self._sessions.begin_turn(principal, session_id, request, task_id)
        request = turn.request if turn else request
        if is_agent_model(request):
            result = await self._agents.chat(principal, request, task_id)
        else:
            result = await self._gateway.chat(caller, request)
        if turn:
            await turn.keep(result.reply)
        return result

    async def stream(
        self, principal: Principal, request: ChatRequest, task_id: str | None = None, session_id: str | None = None
    ) -> AnswerStream:
        """Return a stream once the model or agent has started. Raises like `chat`."""
        caller = await self.find_caller(principal, task_id=task_id)
        turn = None if session_id is None else await self._sessions.begin_turn(principal, session_id, request, task_id)
        request = turn.request if turn else request
        stream: AnswerStream
        if is_agent_model(request):
            stream = await self._agents.stream(principal, request, task_id)
        else:
            stream = model_stream = await self._gateway.stream(caller, request)
            if task_id is None:
                # A stream may be long, and an agent that was stopped during it must not get the rest.
                model_stream.require_allowed = partial(self._require_active, principal)
        return SessionStream(stream, turn) if turn else stream

    async def find_caller(
        self, principal: Principal, agent_id: str | None = None, task_id: str | None = None
    ) -> LlmCaller:
        """Return on whose behalf a call is made: with a task, on behalf of its agent and as a part of its record.

        Without a task the key of a single agent calls on behalf of that agent. The key of stopped agents may call
        models only for a task that one of them still executes.
        Raises NotFound, Forbidden, and Conflict for a task that the caller does not work on.
        """
        if task_id is None:
            self._require_active(principal)
            # Or an agent could evade its own budget by not naming its task.
            if agent_id is None and not principal.is_person:
                agent_id = self._find_agent(principal.tenant, principal.name)
            return LlmCaller(principal.tenant, principal.name, agent_id, models=principal.models)
        return await self._tasks.find_model_caller(principal, task_id)

    def _require_active(self, principal: Principal) -> None:
        require_active(principal, self._is_active, "call models, except for a task that one of them executes")

    def agent_model_names(self, tenant: str) -> list[str]:
        """Return the model names of the agents that are available now."""
        return [AGENT_PREFIX + capability for capability in self._agents.capabilities(tenant)]


def is_agent_model(request: ChatRequest) -> bool:
    """Return whether a request is for `agent:<capability>`. Raises InvalidRequest for an empty capability."""
    if not request.model.startswith(AGENT_PREFIX):
        return False
    if not request.model[len(AGENT_PREFIX) :].strip():
        raise InvalidRequest(
            f"Name a capability: {AGENT_PREFIX}<capability>.", {"fields": {"model": "has no capability"}}
        )
    return True
