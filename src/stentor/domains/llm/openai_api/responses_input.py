"""Convert the input items of /v1/responses to messages: text, function calls and their outputs. No I/O.

Output items are in `responses_output`. The id of a call includes Google's signature of the call, because it is the one
field that every client sends back, and Gemini rejects its own call without the signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Tag, field_validator
from pydantic_core import PydanticCustomError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.model import LlmMessage, TextPart, ToolCall
from stentor.domains.llm.openai_api.wire import ROLES, ContentPartIn, Items, OpenAiModel, to_parts

SIGNATURE = ".signature."
UNKNOWN_ITEM = "the item is unknown or has expired: send the item itself, which clients do with store=false"


class MessageItem(OpenAiModel):
    """A message; clients may omit its type."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Items[ContentPartIn]


class FunctionCallItem(OpenAiModel):
    """A function call of the model."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def to_tool_call(self) -> ToolCall:
        id_, _, signature = self.call_id.partition(SIGNATURE)
        return ToolCall(id_, self.name, self.arguments, signature)


class FunctionOutputItem(OpenAiModel):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Items[ContentPartIn]

    def to_message(self) -> LlmMessage:
        return LlmMessage("tool", to_parts(self.output), tool_call_id=self.call_id.partition(SIGNATURE)[0])


class ReasoningItem(OpenAiModel):
    """Reasoning of a model; ignored, because the gateway cannot send it to a provider."""

    type: Literal["reasoning"]


class ReferenceItem(OpenAiModel):
    """The id of an item of an earlier response."""

    type: Literal["item_reference"]
    id: str


class UnsupportedItem(OpenAiModel):
    """Any other item; rejected with a message that lists the supported types."""

    type: Any

    @field_validator("type")
    @classmethod
    def _reject(cls, value: Any) -> Any:
        raise PydanticCustomError(
            "unsupported", "only message, function_call, function_call_output and reasoning items are supported"
        )


ITEM_TYPES = frozenset(("message", "function_call", "function_call_output", "reasoning", "item_reference"))


def _item_tag(item: Any) -> str:
    type_ = item.get("type", "message") if isinstance(item, dict) else "message"
    return type_ if isinstance(type_, str) and type_ in ITEM_TYPES else "other"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("item_reference")]
    | Annotated[UnsupportedItem, Tag("other")],
    Discriminator(_item_tag),
]


def to_messages(items: list[InputItem], recall: Callable[[str], str | None]) -> list[LlmMessage]:
    """Convert the items to a conversation. The calls of one turn become one message, as providers require.

    `recall` returns the text of a recent output item by id, None if it is unknown. Raises InvalidRequest for a
    reference to an unknown item, and for an output whose call is not before it.
    """
    messages: list[LlmMessage] = []
    for index, item in enumerate(items):
        if isinstance(item, FunctionOutputItem):
            messages.append(_tool_message(item, index, messages))
        elif isinstance(item, FunctionCallItem):
            _append(messages, LlmMessage("assistant", tool_calls=(item.to_tool_call(),)))
        elif isinstance(item, MessageItem):
            _append(messages, LlmMessage(ROLES[item.role], to_parts(item.content)))
        elif isinstance(item, ReferenceItem):
            _append(messages, _recall_message(item, index, recall))
    return messages


def _tool_message(item: FunctionOutputItem, index: int, messages: list[LlmMessage]) -> LlmMessage:
    tool_message = item.to_message()
    if not any(call.id == tool_message.tool_call_id for message in messages for call in message.tool_calls):
        raise InvalidRequest.of_field(f"input.{index}.call_id", "no function_call before it has this id")
    return tool_message


def _recall_message(item: ReferenceItem, index: int, recall: Callable[[str], str | None]) -> LlmMessage:
    text = recall(item.id)
    if text is None:
        raise InvalidRequest.of_field(f"input.{index}.id", UNKNOWN_ITEM)
    return LlmMessage("assistant", (TextPart(text),))


def encode_call_id(call: str, signature: str) -> str:
    """Return the id of a call for clients; `FunctionCallItem.to_tool_call` is the inverse."""
    return f"{call}{SIGNATURE}{signature}" if signature else call


def _append(messages: list[LlmMessage], message: LlmMessage) -> None:
    """Append a message, or merge it with the last one if the two are text and calls of one assistant turn."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or message.role != "assistant":
        messages.append(message)
    elif last.tool_calls or message.tool_calls:
        merged = {"content": last.content + message.content, "tool_calls": last.tool_calls + message.tool_calls}
        messages[-1] = msgspec.structs.replace(last, **merged)
    else:
        messages.append(message)
