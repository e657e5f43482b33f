"""Turns of chat requests in sessions: the conversation before the question, and question and answer after it.

Implements a port of the LLM gateway.
"""

from __future__ import annotations

import msgspec

from stentor.auth.principal import Principal
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.conversation.service import not_repeatable
from stentor.domains.execution.model import AgentFailed
from stentor.domains.execution.runtimes.session_messages import read_item
from stentor.domains.llm.chat_router import is_agent_model
from stentor.domains.llm.model import ChatReply, ChatRequest, LlmMessage, TextPart, ToolCall
from stentor.domains.sessions.model import Item, ItemDraft
from stentor.domains.sessions.service import SessionService


class StoredTurn:
    """A turn of a session. `last_position` is the position of its last item at the question; 0 for an empty session."""

    def __init__(
        self,
        sessions: SessionService,
        principal: Principal,
        session_id: str,
        question: tuple[LlmMessage, ...],
        request: ChatRequest,
        last_position: int,
    ) -> None:
        self._sessions, self._principal, self._session_id = sessions, principal, session_id
        self._question, self._last_position = question, last_position
        self.request = request

    async def keep(self, reply: ChatReply) -> None:
        """Append question and answer. Raises Conflict if the session has changed since, NotFound if it was deleted."""
        content = (TextPart(reply.content),) if reply.content else ()
        answer = LlmMessage("assistant", content, reply.tool_calls, reasoning=reply.reasoning)
        drafts = [ItemDraft(_to_item(message)) for message in (*self._question, answer)]
        with not_repeatable():
            await self._sessions.append_turn(self._principal, self._session_id, drafts, self._last_position)


class SessionTurns:
    """Begins turns."""

    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    async def begin_turn(
        self, principal: Principal, session_id: str, request: ChatRequest, task_id: str | None
    ) -> StoredTurn:
        """Return the turn of a request; its system messages come first and are not kept.

        Raises NotFound, Conflict while a task continues the session, and InvalidRequest for messages that a session
        cannot keep, or that it has and that are none.
        """
        system = tuple(message for message in request.messages if message.role == "system")
        question = tuple(message for message in request.messages if message.role != "system")
        if any(not isinstance(part, TextPart) for message in question for part in message.content):
            raise InvalidRequest("messages: a session keeps texts only; send images in a request without a session.")
        request.require_neutral("A session")
        items = await self._sessions.begin_turn(principal, session_id, task_id)
        history = [_read_item(item) for item in items]
        messages = (*system, *(_texts(history) if is_agent_model(request) else history), *question)
        # Without the client's original, which lacks the conversation before it.
        whole = msgspec.structs.replace(request, messages=messages, anthropic=None)
        last_position = items[-1].position if items else 0
        return StoredTurn(self._sessions, principal, session_id, question, whole, last_position)


def _texts(history: list[LlmMessage]) -> list[LlmMessage]:
    """Return what was said, which is all that the task of an agent takes, without calls of tools and their results."""
    said = (message for message in history if message.role != "tool" and message.content)
    return [msgspec.structs.replace(message, tool_calls=(), reasoning="") for message in said]


def _read_item(item: Item) -> LlmMessage:
    try:
        return read_item(item)
    except AgentFailed as failure:
        raise InvalidRequest(str((failure.outcome.error or {}).get("message", "The session is unreadable."))) from None


def _to_item(message: LlmMessage) -> JsonObject:
    """Return a message as the sessions have it: as OpenAI's chat API."""
    item: JsonObject = {"role": message.role, "content": message.text if message.content else None}
    if message.tool_calls:
        item["tool_calls"] = [_to_call(call) for call in message.tool_calls]
        item |= {"reasoning_content": message.reasoning} if message.reasoning else {}
    if message.tool_call_id:
        item["tool_call_id"] = message.tool_call_id
    return item


def _to_call(call: ToolCall) -> JsonObject:
    signature = {"signature": call.signature} if call.signature else {}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
        **signature,
    }
