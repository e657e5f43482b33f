"""Chat requests that continue a session: what is sent, and when the turn is kept.

The session itself is behind a port, implemented in `domains/conversation`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from stentor.auth.principal import Principal
from stentor.domains.llm.model import ChatReply, ChatRequest, ReplyBuilder, ReplyDelta
from stentor.domains.llm.results import AgentTaskRef, AnswerStream, ModelChoice


class SessionTurn(Protocol):
    """A question to a session and its answer. `request` is the question with the conversation before it."""

    @property
    def request(self) -> ChatRequest: ...

    async def keep(self, reply: ChatReply) -> None:
        """Append question and answer. Raises Conflict if the session has changed since the question."""
        ...


class SessionPort(Protocol):
    """The sessions, as seen by the gateway."""

    async def begin_turn(
        self, principal: Principal, session_id: str, request: ChatRequest, task_id: str | None
    ) -> SessionTurn:
        """Begin a turn, for a task if one is named. Raises NotFound, InvalidRequest, and Conflict for one in use."""
        ...


class SessionStream:
    """A stream whose turn is kept before its last delta: one that is interrupted adds nothing to the session."""

    def __init__(self, stream: AnswerStream, turn: SessionTurn) -> None:
        self._stream, self._turn = stream, turn
        self.name, self.provenance_id, self.degraded = stream.name, stream.provenance_id, stream.degraded
        self.agent_task: AgentTaskRef | None = stream.agent_task
        self.choice: ModelChoice | None = stream.choice

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Yield the deltas. Raises like the stream, and like `keep` in place of the last delta."""
        builder = ReplyBuilder()
        async for delta in self._stream:
            builder.add(delta)
            if delta.is_last:
                await self._turn.keep(builder.build(self.name))
            yield delta

    async def close(self) -> None:
        await self._stream.close()
