"""Messages of a model and items of a session: each item as the message that the model gets, and the reverse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.model import AgentFailed
from stentor.domains.llm.model import ChatRequest, ChatRole, LlmMessage, TextPart, ToolCall
from stentor.domains.sessions.model import Item, ItemDraft

_ROLES: dict[str, ChatRole] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def drafts_of_input(task_input: Any, said: tuple[LlmMessage, ...]) -> tuple[ItemDraft, ...]:
    """Return the items of what a task says: a text refers to the task's input, which has it already."""
    has_text = isinstance(task_input, dict) and "messages" not in task_input
    text = task_input.get("text") if has_text else task_input
    if isinstance(text, str) and said[0].text == text:
        return (ItemDraft({"role": "user"}, source="input", size=len(text)),)
    return tuple(ItemDraft({"role": message.role, "content": message.text}) for message in said)


def insert_history(request: ChatRequest, items: Sequence[Item], new: int) -> ChatRequest:
    """Return the request with the items of a session before its last `new` messages. Raises AgentFailed."""
    first = len(request.messages) - new
    history = (read_item(item) for item in items)
    return msgspec.structs.replace(request, messages=(*request.messages[:first], *history, *request.messages[first:]))


def read_item(item: Item) -> LlmMessage:
    """Return the message of an item. Raises AgentFailed for one that is not a message, as programs may append them."""
    value = item.value
    if item.kind == "summary":
        return summary_message(_text(item, value.get("content") if isinstance(value, dict) else value))
    role = _ROLES.get(str(value.get("role"))) if isinstance(value, dict) else None
    if role is None:
        raise _unreadable(item, "a message needs a role (system, user, assistant or tool) and a content")
    text = _text(item, value.get("content"))
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _unreadable(item, "its tool_calls are not a list")
    made = tuple(_tool_call(item, call) for call in calls)
    call_id, reasoning = str(value.get("tool_call_id") or ""), str(value.get("reasoning_content") or "")
    return LlmMessage(role, (TextPart(text),) if text else (), made, call_id, reasoning)


def summary_message(text: str) -> LlmMessage:
    """Return the message that stands for the conversation before it."""
    return LlmMessage("user", (TextPart(f"Summary of the conversation so far:\n\n{text}"),))


def _text(item: Item, content: Any) -> str:
    """Return the text of a message: a string, or parts with texts."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(str(part["text"]) for part in content)
    raise _unreadable(item, "its content is neither a text nor a list of texts")


def _tool_call(item: Item, call: Any) -> ToolCall:
    function: JsonObject = call.get("function") if isinstance(call, dict) else None  # type: ignore[assignment]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _unreadable(item, "a tool call needs an id and a function with its name and arguments")
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else jsontext.dump(arguments)
    return ToolCall(str(call.get("id") or ""), function["name"], text, str(call.get("signature") or ""))


def _unreadable(item: Item, why: str) -> AgentFailed:
    return AgentFailed(
        "SESSION_UNREADABLE", f"Item {item.position} of the session is not a message for a model: {why}."
    )
