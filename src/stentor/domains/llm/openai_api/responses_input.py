"""The input items of /v1/responses as the neutral form's messages: text, calls of functions and their outputs. Pure.

Output items are made in responding.py. The id of a call also carries Google's signature of it, because it is the one
field that every client sends back: Gemini refuses its own call without the signature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Tag, field_validator
from pydantic_core import PydanticCustomError

from stentor.core.errors import InvalidRequest
from stentor.domains.llm.model import LlmMessage, TextPart, ToolCall
from stentor.domains.llm.openai_api.wire import ROLES, ContentPartIn, OpenAiModel, to_parts

SIGNATURE = ".signature."
UNKNOWN_ITEM = (
    "no such item is known here any more: send the item itself, which clients do when they are told store=false"
)


class MessageItem(OpenAiModel):
    """A message; clients leave its type out."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPartIn]


class FunctionCallItem(OpenAiModel):
    """A function that the model called."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def to_tool_call(self) -> ToolCall:
        id_, _, signature = self.call_id.partition(SIGNATURE)
        return ToolCall(id_, self.name, self.arguments, signature)


class FunctionOutputItem(OpenAiModel):
    """What a function answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[ContentPartIn]

    def to_message(self) -> LlmMessage:
        return LlmMessage("tool", to_parts(self.output), tool_call_id=self.call_id.partition(SIGNATURE)[0])


class ReasoningItem(OpenAiModel):
    """What a model thought. No provider reads it again through this gateway, so it is passed over."""

    type: Literal["reasoning"]


class ReferenceItem(OpenAiModel):
    """The id of an item of an earlier response."""

    type: Literal["item_reference"]
    id: str


class UnsupportedItem(OpenAiModel):
    """An item that this gateway refuses."""

    type: Any

    @field_validator("type")
    @classmethod
    def _known(cls, given: Any) -> Any:
        raise PydanticCustomError(
            "unsupported", "only message, function_call, function_call_output and reasoning items are read"
        )


ITEM_TYPES = frozenset(("message", "function_call", "function_call_output", "reasoning", "item_reference"))


def _kind(item: Any) -> str:
    """The tag of an item; an object without a type is a message."""
    kind = item.get("type", "message") if isinstance(item, dict) else "message"
    return kind if isinstance(kind, str) and kind in ITEM_TYPES else "other"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ReferenceItem, Tag("item_reference")]
    | Annotated[UnsupportedItem, Tag("other")],
    Discriminator(_kind),
]


def to_messages(items: list[InputItem], recall: Callable[[str], str | None]) -> list[LlmMessage]:
    """The conversation. The calls of one turn go into one message, as providers want them.

    `recall` knows what was said under an id a short while ago. Raises InvalidRequest for an item that it does not
    know, and for an output without its call.
    """
    said: list[LlmMessage] = []
    for at, item in enumerate(items):
        if isinstance(item, FunctionOutputItem):
            said.append(_answer(item, at, said))
        elif isinstance(item, FunctionCallItem):
            _add(said, LlmMessage("assistant", tool_calls=(item.to_tool_call(),)))
        elif isinstance(item, MessageItem):
            _add(said, LlmMessage(ROLES[item.role], to_parts(item.content)))
        elif isinstance(item, ReferenceItem):
            _add(said, _recalled(item, at, recall))
    return said


def _answer(item: FunctionOutputItem, at: int, said: list[LlmMessage]) -> LlmMessage:
    answer = item.to_message()
    if not any(call.id == answer.tool_call_id for message in said for call in message.tool_calls):
        raise _wrong(f"input.{at}.call_id", "no function_call before it has this id")
    return answer


def _recalled(item: ReferenceItem, at: int, recall: Callable[[str], str | None]) -> LlmMessage:
    text = recall(item.id)
    if text is None:
        raise _wrong(f"input.{at}.id", UNKNOWN_ITEM)
    return LlmMessage("assistant", (TextPart(text),))


def _wrong(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}.", {"fields": {field: reason}})


def encode_call_id(call: str, signature: str) -> str:
    """The id of a call as clients see it."""
    return f"{call}{SIGNATURE}{signature}" if signature else call


def _add(said: list[LlmMessage], message: LlmMessage) -> None:
    """Append, or join two parts of one turn: what the model said and what it called."""
    last = said[-1] if said else None
    if last is None or last.role != "assistant" or message.role != "assistant":
        said.append(message)
    elif last.tool_calls or message.tool_calls:
        joined = {"content": last.content + message.content, "tool_calls": last.tool_calls + message.tool_calls}
        said[-1] = msgspec.structs.replace(last, **joined)
    else:
        said.append(message)
