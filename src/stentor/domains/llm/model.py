"""One neutral form of a request, an answer and a part of a stream, whatever format a provider speaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

ChatRole = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
LlmOperation = Literal["chat", "embed"]
TRUNCATION_NOTE = "[The model used up its token budget before a final answer. Its reasoning so far:]\n\n"
CHARACTERS_PER_TOKEN = 4
IMAGE_TOKENS = 1_000
"""What an image is counted as when a provider does not say."""


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    """An address, or the data in base64 with its media type."""

    url: str = ""
    media_type: str = ""
    data: str = ""
    detail: str = ""

    @classmethod
    def from_url(cls, url: str, detail: str = "") -> ImagePart:
        """From an address; a `data:` one is taken apart."""
        head, comma, data = url.partition(",")
        if url.startswith("data:") and comma and head.endswith(";base64"):
            return cls(media_type=head[5:-7] or "image/png", data=data, detail=detail)
        return cls(url=url, detail=detail)

    @property
    def as_url(self) -> str:
        return self.url or f"data:{self.media_type};base64,{self.data}"


ContentPart = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON text as the model wrote it; `signature` is a provider's own, to be sent back with it."""

    id: str
    name: str
    arguments: str
    signature: str = ""


class LlmMessage(msgspec.Struct, frozen=True):
    role: ChatRole
    content: tuple[ContentPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


class ToolDefinition(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """`tool_choice` is auto, none, required, or a tool's name; `extra` goes to OpenAI-compatible providers as it is.

    `prefer` counts for `auto` alone: quality, balanced, fast or cheap; empty where the caller did not say.
    """

    model: str
    messages: tuple[LlmMessage, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str = ""
    response_format: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    prefer: str = ""

    @property
    def is_single_tool_call(self) -> bool:
        """Whether at most one tool may be called in a turn."""
        return self.extra.get("parallel_tool_calls") is False

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The schema that the answer is to have, when one is asked for."""
        described = (self.response_format or {}).get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        return schema if isinstance(schema, dict) else None


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens. `estimated` when the provider did not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False


class ChatReply(msgspec.Struct, frozen=True):
    model: str
    content: str
    finish: FinishReason = "stop"
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage | None = None
    id: str = ""
    degraded: bool = False


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A part of the call with this index; `arguments` is the next piece of its JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    signature: str = ""


class ReplyDelta(msgspec.Struct, frozen=True):
    """A part of a stream. `last` says that the provider ended the stream as it should."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishReason | None = None
    usage: TokenUsage | None = None
    id: str = ""
    is_last: bool = False


TokenIds = tuple[int, ...]
"""A text as the ids of its tokens, in the words of the model that reads them."""
EmbeddingInput = str | TokenIds


class EmbeddingReply(msgspec.Struct, frozen=True):
    model: str
    vectors: list[list[float]]
    usage: TokenUsage | None = None
    degraded: bool = False


class ProviderRequest(msgspec.Struct, frozen=True):
    """What a format makes of a request: the path under the base address, and the body."""

    path: str
    body: dict[str, Any]


def estimate_tokens(text: str) -> int:
    """An estimate: four characters, or one sign that is not ASCII."""
    plain = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return math.ceil(plain / CHARACTERS_PER_TOKEN) + len(text) - plain


def estimate_input_tokens(request: ChatRequest) -> int:
    total = sum(estimate_tokens(repr(tool.parameters) + tool.description) for tool in request.tools)
    for message in request.messages:
        total += 3 + sum(estimate_tokens(p.text) if isinstance(p, TextPart) else IMAGE_TOKENS for p in message.content)
        total += sum(estimate_tokens(call.arguments) for call in message.tool_calls)
    return total


def estimate_output_tokens(reply: ChatReply) -> int:
    return (
        estimate_tokens(reply.content)
        + estimate_tokens(reply.reasoning)
        + sum(estimate_tokens(c.arguments) for c in reply.tool_calls)
    )


def usage_or_estimate(request: ChatRequest, reply: ChatReply) -> TokenUsage:
    """The provider's count, or an estimate that says so."""
    return reply.usage or TokenUsage(estimate_input_tokens(request), estimate_output_tokens(reply), estimated=True)


def estimate_embedding_usage(inputs: Sequence[EmbeddingInput]) -> TokenUsage:
    total = sum(estimate_tokens(given) if isinstance(given, str) else len(given) for given in inputs)
    return TokenUsage(total, estimated=True)


def with_reasoning_fallback(reply: ChatReply) -> ChatReply:
    """The reply, or its reasoning with a note when the budget was hit before an answer; blanks are none."""
    if reply.content.strip() or reply.tool_calls or reply.finish != "length":
        return reply
    if not reply.reasoning and not (reply.usage and reply.usage.reasoning_tokens):
        return reply
    return msgspec.structs.replace(reply, content=TRUNCATION_NOTE + reply.reasoning)


class ReplyBuilder:
    """Puts a stream together again, for its count, and for the note when the budget was hit."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._finish: FinishReason = "stop"
        self._usage: TokenUsage | None = None
        self._id = ""

    def add(self, delta: ReplyDelta) -> None:
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning)
        self._finish = delta.finish or self._finish
        self._usage = delta.usage or self._usage
        self._id = delta.id or self._id
        for part in delta.tool_calls:
            known = self._calls.get(part.index, ToolCall("", "", ""))
            self._calls[part.index] = ToolCall(
                known.id or part.id,
                known.name or part.name,
                known.arguments + part.arguments,
                known.signature or part.signature,
            )

    def build(self, model: str) -> ChatReply:
        calls = tuple(self._calls[index] for index in sorted(self._calls))
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return ChatReply(model, content, self._finish, reasoning, calls, self._usage, self._id)
