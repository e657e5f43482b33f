"""One neutral form of a request, an answer and a part of a stream, whatever format a provider speaks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "tool_calls", "content_filter"]
Operation = Literal["chat", "embed"]
BUDGET_NOTE = "[The model used up its token budget before a final answer. Its reasoning so far:]\n\n"
CHARACTERS_PER_TOKEN = 4
IMAGE_TOKENS = 1_000
"""What an image is counted as when a provider does not say."""


class Text(msgspec.Struct, frozen=True):
    text: str


class Image(msgspec.Struct, frozen=True):
    """An address, or the data in base64 with its media type."""

    url: str = ""
    media_type: str = ""
    data: str = ""
    detail: str = ""

    @classmethod
    def of(cls, url: str, detail: str = "") -> Image:
        """From an address; a `data:` one is taken apart."""
        head, comma, data = url.partition(",")
        if url.startswith("data:") and comma and head.endswith(";base64"):
            return cls(media_type=head[5:-7] or "image/png", data=data, detail=detail)
        return cls(url=url, detail=detail)

    @property
    def address(self) -> str:
        return self.url or f"data:{self.media_type};base64,{self.data}"


Part = Text | Image


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON text as the model wrote it; `signature` is a provider's own, to be sent back with it."""

    id: str
    name: str
    arguments: str
    signature: str = ""


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: tuple[Part, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, Text))


class Tool(msgspec.Struct, frozen=True):
    """`parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Request(msgspec.Struct, frozen=True):
    """`tool_choice` is auto, none, required, or a tool's name; `extra` goes to OpenAI-compatible providers as it is.

    `prefer` counts for `auto` alone: quality, balanced, fast or cheap; empty where the caller did not say.
    """

    model: str
    messages: tuple[Message, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = ""
    response_format: dict[str, Any] | None = None
    extra: dict[str, Any] = {}
    prefer: str = ""

    @property
    def one_call(self) -> bool:
        """Whether at most one tool may be called in a turn."""
        return self.extra.get("parallel_tool_calls") is False

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """The schema that the answer is to have, when one is asked for."""
        described = (self.response_format or {}).get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        return schema if isinstance(schema, dict) else None


class Usage(msgspec.Struct, frozen=True):
    """Tokens. `estimated` when the provider did not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False


class Reply(msgspec.Struct, frozen=True):
    model: str
    content: str
    finish: Finish = "stop"
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    id: str = ""
    degraded: bool = False


class ToolDelta(msgspec.Struct, frozen=True):
    """A part of the call with this index; `arguments` is the next piece of its JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    signature: str = ""


class Delta(msgspec.Struct, frozen=True):
    """A part of a stream. `last` says that the provider ended the stream as it should."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolDelta, ...] = ()
    finish: Finish | None = None
    usage: Usage | None = None
    id: str = ""
    last: bool = False


Tokens = tuple[int, ...]
"""A text as the ids of its tokens, in the words of the model that reads them."""
EmbeddingInput = str | Tokens


class Embedded(msgspec.Struct, frozen=True):
    model: str
    vectors: list[list[float]]
    usage: Usage | None = None
    degraded: bool = False


class Call(msgspec.Struct, frozen=True):
    """What a format makes of a request: the path under the base address, and the body."""

    path: str
    body: dict[str, Any]


def tokens(text: str) -> int:
    """An estimate: four characters, or one sign that is not ASCII."""
    plain = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return math.ceil(plain / CHARACTERS_PER_TOKEN) + len(text) - plain


def input_estimate(request: Request) -> int:
    total = sum(tokens(repr(tool.parameters) + tool.description) for tool in request.tools)
    for message in request.messages:
        total += 3 + sum(tokens(p.text) if isinstance(p, Text) else IMAGE_TOKENS for p in message.content)
        total += sum(tokens(call.arguments) for call in message.tool_calls)
    return total


def output_estimate(reply: Reply) -> int:
    return tokens(reply.content) + tokens(reply.reasoning) + sum(tokens(c.arguments) for c in reply.tool_calls)


def counted(request: Request, reply: Reply) -> Usage:
    """The provider's count, or an estimate that says so."""
    return reply.usage or Usage(input_estimate(request), output_estimate(reply), estimated=True)


def embedding_estimate(inputs: Sequence[EmbeddingInput]) -> Usage:
    total = sum(tokens(given) if isinstance(given, str) else len(given) for given in inputs)
    return Usage(total, estimated=True)


def answered(reply: Reply) -> Reply:
    """The reply, or its reasoning with a note when the budget was hit before an answer; blanks are none."""
    if reply.content.strip() or reply.tool_calls or reply.finish != "length":
        return reply
    if not reply.reasoning and not (reply.usage and reply.usage.reasoning_tokens):
        return reply
    return msgspec.structs.replace(reply, content=BUDGET_NOTE + reply.reasoning)


class Gathered:
    """Puts a stream together again, for its count, and for the note when the budget was hit."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._finish: Finish = "stop"
        self._usage: Usage | None = None
        self._id = ""

    def add(self, delta: Delta) -> None:
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

    def reply(self, model: str) -> Reply:
        calls = tuple(self._calls[index] for index in sorted(self._calls))
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return Reply(model, content, self._finish, reasoning, calls, self._usage, self._id)
