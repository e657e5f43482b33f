"""Convert the input items of /v1/responses to messages: text, function calls and their outputs. No I/O.

Output items are in `responses_output`. The id of a call includes Google's signature of the call, because it is the one
field that every client sends back, and Gemini rejects its own call without the signature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, field_validator
from pydantic_core import PydanticCustomError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.model import LlmMessage, TextPart, ToolCall, decode_call_id
from stentor.domains.llm.openai_api.chat import ROLES, ContentPartIn, Items, OpenAiModel, to_parts

MAX_NAME_CHARACTERS = 64
"""What OpenAI's models accept as the name of a function."""
UNKNOWN_ITEM = "the item is unknown or has expired: send the item itself, which clients do with store=false"


def flat_name(namespace: str, name: str) -> str:
    """Return the one name that providers get for a function of a namespace, a derived one if it would be too long."""
    flat = f"{namespace}__{name}"
    if len(flat) <= MAX_NAME_CHARACTERS:
        return flat
    return f"{flat[:55]}_{hashlib.sha256(flat.encode()).hexdigest()[:8]}"


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
    namespace: str | None = None
    arguments: str

    def to_tool_call(self) -> ToolCall:
        id_, signature = decode_call_id(self.call_id)
        name = flat_name(self.namespace, self.name) if self.namespace else self.name
        return ToolCall(id_, name, self.arguments, signature)


class FunctionOutputItem(OpenAiModel):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Items[ContentPartIn]

    def to_message(self) -> LlmMessage:
        return LlmMessage("tool", to_parts(self.output), tool_call_id=decode_call_id(self.call_id)[0])


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


def to_messages(
    items: list[InputItem], recall: Callable[[str], str | None], *, in_session: bool = False
) -> list[LlmMessage]:
    """Convert the items to a conversation. The calls of one turn become one message, as providers require.

    `recall` returns the text of a recent output item by id, None if it is unknown. Raises InvalidRequest for a
    reference to an unknown item, and for an output whose call is not before it; with `in_session` the session may have
    the call.
    """
    messages: list[LlmMessage] = []
    turn: list[LlmMessage] = []  # the last messages, all of them the assistant's
    called: set[str] = set()
    for index, item in enumerate(items):
        message = _to_message(item, index, recall)
        if message is None:
            continue
        if message.role == "assistant":
            turn.append(message)
            called.update(call.id for call in message.tool_calls)
            continue
        if isinstance(item, FunctionOutputItem) and message.tool_call_id not in called and not in_session:
            raise InvalidRequest.of_field(f"input.{index}.call_id", "no function_call before it has this id")
        messages += [*_merge_calls(turn), message]
        turn = []
    return messages + _merge_calls(turn)


def _to_message(item: InputItem, index: int, recall: Callable[[str], str | None]) -> LlmMessage | None:
    """Return the message of an item; None for one that is left out."""
    if isinstance(item, FunctionOutputItem):
        return item.to_message()
    if isinstance(item, FunctionCallItem):
        return LlmMessage("assistant", tool_calls=(item.to_tool_call(),))
    if isinstance(item, MessageItem):
        return LlmMessage(ROLES[item.role], to_parts(item.content))
    return _recall_message(item, index, recall) if isinstance(item, ReferenceItem) else None


def _recall_message(item: ReferenceItem, index: int, recall: Callable[[str], str | None]) -> LlmMessage:
    text = recall(item.id)
    if text is None:
        raise InvalidRequest.of_field(f"input.{index}.id", UNKNOWN_ITEM)
    return LlmMessage("assistant", (TextPart(text),))


def _merge_calls(turn: list[LlmMessage]) -> list[LlmMessage]:
    """Return the assistant's messages of one turn: those from the text before the first call on become one."""
    first_call = next((index for index, message in enumerate(turn) if message.tool_calls), None)
    if first_call is None:
        return turn
    start = max(0, first_call - 1)
    content = tuple(part for message in turn[start:] for part in message.content)
    calls = tuple(call for message in turn[start:] for call in message.tool_calls)
    return [*turn[:start], LlmMessage("assistant", content, calls)]
