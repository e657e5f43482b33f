"""Requests, replies and stream deltas in a form that is independent of the providers' API formats. No I/O.

`formats` translates between these types and the formats of OpenAI, Anthropic and Gemini.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

ChatRole = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
LlmOperation = Literal["chat", "embed"]
TRUNCATION_NOTE = "[The model used up its token budget before a final answer. Its reasoning so far:]\n\n"
_SIGNATURE = ".signature."
MAX_TOOL_CALLS = 1_000
"""Tool calls in one streamed reply."""


class TextPart(msgspec.Struct, frozen=True):
    """A text. `extra` are fields of OpenAI's format that only its providers get, as of all types here."""

    text: str
    extra: JsonObject = {}


class ImagePart(msgspec.Struct, frozen=True):
    """An image: either a URL, or base64 data with its media type."""

    url: str = ""
    media_type: str = ""
    data: str = ""
    detail: str = ""
    extra: JsonObject = {}

    @classmethod
    def from_url(cls, url: str, detail: str = "") -> ImagePart:
        """Build the part from a URL; a base64 `data:` URL is split into media type and data."""
        prefix, comma, data = url.partition(",")
        if url.startswith("data:") and comma and prefix.endswith(";base64"):
            # Without parameters, and by the registered name: Anthropic and Gemini refuse others.
            media_type = prefix[5:].partition(";")[0].lower().replace("image/jpg", "image/jpeg")
            return cls(media_type=media_type or "image/png", data=data, detail=detail)
        return cls(url=url, detail=detail)

    @property
    def as_url(self) -> str:
        return self.url or f"data:{self.media_type};base64,{self.data}"


class OpenAiPart(msgspec.Struct, frozen=True):
    """A file or sound as OpenAI's format has it: a part of the type `file` or `input_audio`, with its fields."""

    type: str
    fields: JsonObject
    extra: JsonObject = {}

    @property
    def data(self) -> str:
        """The content in base64 or a URL, empty if only the provider knows it."""
        return str(self.fields.get("file_data") or self.fields.get("data") or "")


ContentPart = TextPart | ImagePart | OpenAiPart


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model requests. `arguments` is JSON text as the model wrote it, possibly invalid.

    `signature` is opaque data of the provider that must be sent back with the call.
    """

    id: str
    name: str
    arguments: str
    signature: str = ""


def encode_call_id(id_: str, signature: str) -> str:
    """Return the id of a call with its signature, for clients that send back nothing else."""
    return f"{id_}{_SIGNATURE}{signature}" if signature else id_


def decode_call_id(text: str) -> tuple[str, str]:
    """Return id and signature; the inverse of `encode_call_id`."""
    id_, _, signature = text.partition(_SIGNATURE)
    return id_, signature


class LlmMessage(msgspec.Struct, frozen=True):
    """A message. `reasoning` is what a model wrote before it, for the providers that want it back."""

    role: ChatRole
    content: tuple[ContentPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    reasoning: str = ""
    extra: JsonObject = {}

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool that the model may call. `parameters` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: JsonObject | None = None
    strict: bool | None = None
    extra: JsonObject = {}


class AnthropicOriginal(msgspec.Struct, frozen=True):
    """What a client sent in Anthropic's format, which only providers of that format can get as it was.

    `fields` are those of the body for which the neutral form has less room, such as `messages` with their cache marks;
    `headers` and `query` choose the version of the API. `feature` names a part that no other format can express,
    empty if none is; `other_tokens` estimates the tokens of all such blocks.
    """

    fields: JsonObject
    headers: dict[str, str] = {}
    query: str = ""
    feature: str = ""
    other_tokens: int = 0


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat request. `tool_choice` is auto, none, required, or a tool's name.

    `extra` is passed through unchanged to OpenAI-compatible providers. `prefer` applies to the model `auto` only:
    quality, balanced, fast or cheap; empty if the caller did not set it. `anthropic` is set if the client speaks
    Anthropic's format.
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
    response_format: JsonObject | None = None
    extra: JsonObject = {}
    prefer: str = ""
    anthropic: AnthropicOriginal | None = None

    @property
    def is_single_tool_call(self) -> bool:
        """Whether a reply may contain at most one tool call."""
        return self.extra.get("parallel_tool_calls") is False

    @property
    def format_type(self) -> str:
        """The type of the response format: `text` unless the request names another one."""
        return str((self.response_format or {}).get("type", "text"))

    @property
    def json_schema(self) -> JsonObject | None:
        """The JSON Schema that the reply must match; None if the request sets none."""
        wrapper = (self.response_format or {}).get("json_schema")
        schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
        return schema if isinstance(schema, dict) else None

    @property
    def openai_feature(self) -> str:
        """The name of a part that only OpenAI's format can express, empty if there is none."""
        parts = (part for message in self.messages for part in message.content if isinstance(part, OpenAiPart))
        if part := next(parts, None):
            return f"content of type {part.type!r}"
        return "logprobs" if self.extra.get("logprobs") else ""

    def require_neutral(self, target: str, api_format: str = "") -> None:
        """Raise InvalidRequest if the request has a part that another API format than this one is needed for."""
        features = {
            "Anthropic's": self.anthropic.feature if self.anthropic is not None and api_format != "anthropic" else "",
            "OpenAI's": self.openai_feature if api_format != "openai" else "",
        }
        for owner, feature in features.items():
            if feature:
                raise InvalidRequest(f"{target} cannot take {feature}: only providers with {owner} API format can.")


class TokenUsage(msgspec.Struct, frozen=True):
    """Token counts of a call; `estimated` if the provider did not report them.

    `cached_tokens` and `written_tokens` are the parts of the input that were read from and written to a cache,
    `written_1h_tokens` the part of the written ones that Anthropic keeps for an hour, at a higher price,
    `audio_input_tokens` and `audio_output_tokens` those that were sound. The output includes the tokens of a
    `prediction` of the request that the model accepted and rejected.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    written_tokens: int = 0
    audio_input_tokens: int = 0
    audio_output_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    written_1h_tokens: int = 0


class ChatReply(msgspec.Struct, frozen=True):
    """A complete reply. `anthropic_message` is the provider's own one, if both it and the client speak that format.

    `is_refusal` means that the provider marks the content as the model's refusal to answer. `extra` are other parts of
    the message of a provider with OpenAI's format, such as the annotations of a search, and `completion` are fields of
    its completion: see `formats.openai`. `logprobs` are those of the tokens in OpenAI's format, if the request asks
    for them.
    """

    model: str
    content: str
    finish: FinishReason = "stop"
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: TokenUsage | None = None
    id: str = ""
    degraded: bool = False
    is_refusal: bool = False
    anthropic_message: JsonObject | None = None
    extra: JsonObject = {}
    completion: JsonObject = {}
    logprobs: JsonObject | None = None
    media_tokens: int = 0
    """An estimate for the images and the sound of a stream, whose `extra` is not kept."""


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A part of the tool call with this index; `arguments` is the next fragment of its JSON text."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    signature: str = ""


class ReplyDelta(msgspec.Struct, frozen=True):
    """A part of a stream. `is_last` means that the provider ended the stream properly.

    `is_refusal`, `extra`, `completion` and `logprobs` are as in ChatReply.

    `anthropic_event` is the provider's own event, if both it and the client speak Anthropic's format.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish: FinishReason | None = None
    usage: TokenUsage | None = None
    id: str = ""
    is_last: bool = False
    is_refusal: bool = False
    anthropic_event: JsonObject | None = None
    extra: JsonObject = {}
    completion: JsonObject = {}
    logprobs: JsonObject | None = None


TokenIds = tuple[int, ...]
"""A text as token ids of the embedding model's own tokenizer."""
EmbeddingInput = str | TokenIds


class EmbeddingReply(msgspec.Struct, frozen=True):
    model: str
    vectors: list[list[float]]
    usage: TokenUsage | None = None
    degraded: bool = False


class ProviderRequest(msgspec.Struct, frozen=True):
    """A request in a provider's format: the path below the base URL, the JSON body, and headers of its own."""

    path: str
    body: JsonObject
    headers: dict[str, str] = {}


def with_reasoning_fallback(reply: ChatReply) -> ChatReply:
    """Return the reply; if reasoning used up the token limit before any content, return the reasoning with a note.

    Content that is only whitespace counts as none.
    """
    if reply.content.strip() or reply.tool_calls or reply.finish != "length":
        return reply
    if not reply.reasoning and not (reply.usage and reply.usage.reasoning_tokens):
        return reply
    return msgspec.structs.replace(reply, content=TRUNCATION_NOTE + reply.reasoning)
