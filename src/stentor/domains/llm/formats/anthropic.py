"""The API format of Anthropic: Messages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from math import isinf
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest, ProviderError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.anthropic_schemas import fit_schema
from stentor.domains.llm.formats.base import (
    NO_USAGE,
    ProviderQuirks,
    decode_arguments,
    decode_response,
    join_texts,
    omit_none,
    read_counts,
    reported_fault,
    require_json_schema,
    split_system,
)
from stentor.domains.llm.model import (
    AnthropicOriginal,
    ChatReply,
    ChatRequest,
    ContentPart,
    EmbeddingInput,
    EmbeddingReply,
    FinishReason,
    ImagePart,
    LlmMessage,
    ProviderRequest,
    ReplyDelta,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
    ToolDefinition,
    decode_call_id,
)

MODELS_PATH: str = "/v1/models?limit=1000"
MAX_EMBEDDING_INPUTS: int = 2048
VERSION = "2023-06-01"
MAX_TOKENS = 4096
"""Limit of a request that sets none: the API requires one."""
_FINISH: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_TOOL_CHOICES = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _AnthropicResponse(msgspec.Struct):
    content: list[_Block]
    id: str | None = None
    stop_reason: str | None = None
    usage: msgspec.Raw = NO_USAGE


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _MessageStart(msgspec.Struct):
    id: str | None = None
    usage: msgspec.Raw = NO_USAGE


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _MessageStart | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    error: Any = None
    usage: msgspec.Raw = NO_USAGE


class _AnthropicModel(msgspec.Struct):
    id: str


class _AnthropicModels(msgspec.Struct):
    data: list[_AnthropicModel]


def build_headers(key: str, quirks: ProviderQuirks) -> dict[str, str]:
    return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}


def build_chat_request(request: ChatRequest, quirks: ProviderQuirks, *, stream: bool) -> ProviderRequest:
    original = request.anthropic
    body = omit_none(
        model=request.model,
        max_tokens=request.max_tokens or MAX_TOKENS,
        **_sampling(request),
        # One of only whitespace is refused.
        stop_sequences=[text for text in request.stop if text.strip()] or None,
        stream=True if stream else None,
        **(_neutral_fields(request) if original is None else _original_fields(original)),
    )
    if original is None:
        return ProviderRequest("/v1/messages", body)
    return ProviderRequest(f"/v1/messages{original.query}", body, original.headers)


def _neutral_fields(request: ChatRequest) -> JsonObject:
    system, messages = split_system(request.messages)
    tools = [_tool(tool) for tool in request.tools]
    schema = require_json_schema("Anthropic", request)
    return {
        "system": _system(system) or None,
        "messages": _messages(messages),
        "tools": tools or None,
        "tool_choice": _tool_choice(request) if tools else None,
        "output_config": {"format": {"type": "json_schema", "schema": fit_schema(schema)}} if schema else None,
        **_cache_mark(request.extra),
    }


def _cache_mark(*extras: JsonObject) -> JsonObject:
    """Return the mark up to which a prompt is cached, the first of those that a client of OpenAI's format set."""
    for extra in extras:
        if extra and isinstance(mark := extra.get("cache_control"), dict):
            return {"cache_control": mark}
    return {}


def _system(messages: Sequence[LlmMessage]) -> str | list[JsonObject]:
    """Return the text of the system messages, in blocks if one of them has a mark for the cache."""
    blocks = [block for message in messages for block in _blocks(message) if block["type"] == "text"]
    return blocks if any("cache_control" in block for block in blocks) else join_texts(messages)


def _original_fields(original: AnthropicOriginal) -> JsonObject:
    """Return the client's fields, without parts from other providers that this API refuses."""
    messages = [
        {**message, "content": content}
        for message in original.fields["messages"]
        # A message that was nothing but such thinking is left out; any other empty one is the client's error.
        if (content := _fit_content(message["content"])) or not message["content"]
    ]
    return {**original.fields, "messages": messages}


def _fit_content(content: str | list[JsonObject]) -> str | list[JsonObject]:
    """Return content with ids of calls that the API accepts, and without thinking that none of its models signed."""
    if isinstance(content, str):
        return content
    blocks = [block for block in content if block["type"] != "thinking" or block.get("signature")]
    id_fields = {"tool_use": "id", "tool_result": "tool_use_id"}
    return [
        {**block, field: _call_id(decode_call_id(block[field])[0])}
        if (field := id_fields.get(block["type"]))
        else block
        for block in blocks
    ]


def _sampling(request: ChatRequest) -> JsonObject:
    """Return the temperature, at most 1, or `top_p`: newer models refuse both together."""
    if request.temperature is None or (request.temperature >= 1 and request.top_p is not None):
        return omit_none(top_p=request.top_p)
    return {"temperature": min(request.temperature, 1)}


def _tool(tool: ToolDefinition) -> JsonObject:
    schema = tool.parameters or {"type": "object", "properties": {}}
    return omit_none(
        name=tool.name,
        description=tool.description or None,
        input_schema=fit_schema(schema) if tool.strict else schema,
        strict=tool.strict or None,
        **_cache_mark(tool.extra, tool.extra.get("function", {})),
    )


def _tool_choice(request: ChatRequest) -> JsonObject | None:
    single = request.is_single_tool_call
    if not request.tool_choice and not single:
        return None
    choice = _TOOL_CHOICES.get(request.tool_choice or "auto") or {"type": "tool", "name": request.tool_choice}
    # Anthropic has no field of its own for a single call: the limit is part of the choice.
    return {**choice, "disable_parallel_tool_use": True} if single and choice["type"] != "none" else choice


def parse_reply(body: bytes, model: str) -> ChatReply:
    response = decode_response(body, _AnthropicResponse)
    calls = tuple(
        ToolCall(block.id or f"call_{index}", block.name or "", msgspec.json.encode(block.input or {}).decode())
        for index, block in enumerate(response.content)
        if block.type == "tool_use"
    )
    content = "".join(block.text or "" for block in response.content if block.type == "text")
    reasoning = "".join(block.thinking or "" for block in response.content if block.type == "thinking")
    finish = _FINISH.get(response.stop_reason or "", "stop")
    return ChatReply(model, content, finish, reasoning, calls, _usage(read_counts(response.usage)), response.id or "")


class _AnthropicStreamReader:
    """Parser of one stream, whose events refer to content blocks by index."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        """The latest counts: they are totals, and an event omits those that did not change."""
        self._call_indexes: dict[int, int] = {}
        """Index of the tool call by index of its block."""
        self._initial_arguments: dict[int, str] = {}
        """JSON text of the arguments in the start event of a block, until a delta replaces them."""

    def read(self, event: str, data: bytes) -> list[ReplyDelta]:
        chunk = decode_response(data, _Event)
        match chunk.type:
            case "message_start" if chunk.message:
                self._counts |= read_counts(chunk.message.usage)
                return [ReplyDelta(usage=self._first_usage(), id=chunk.message.id or "")]
            case "content_block_start" if chunk.content_block:
                return self._start_block(chunk.index, chunk.content_block)
            case "content_block_delta" if chunk.delta:
                return self._read_delta(chunk.index, chunk.delta)
            case "content_block_stop":
                return self._stop_block(chunk.index)
            case "message_delta":
                self._counts |= read_counts(chunk.usage)
                reason = chunk.delta.stop_reason if chunk.delta else None
                return [ReplyDelta(finish=_FINISH.get(reason, "stop") if reason else None, usage=_usage(self._counts))]
            case "message_stop":
                return [ReplyDelta(is_last=True)]
            case "error":
                raise reported_fault(chunk.error)
        return []

    def _start_block(self, index: int, block: _Block) -> list[ReplyDelta]:
        if block.type == "tool_use":
            call_index = self._call_indexes[index] = len(self._call_indexes)
            self._initial_arguments[index] = msgspec.json.encode(block.input or {}).decode()
            call = ToolCallDelta(call_index, block.id or f"call_{call_index}", block.name or "")
            return [ReplyDelta(tool_calls=(call,))]
        return [ReplyDelta(content=block.text)] if block.text else []

    def _read_delta(self, index: int, delta: _Delta) -> list[ReplyDelta]:
        # The arguments of the start event are a placeholder, `{}`, as soon as fragments follow.
        if delta.partial_json and index in self._call_indexes:
            self._initial_arguments.pop(index, None)
            return [ReplyDelta(tool_calls=(ToolCallDelta(self._call_indexes[index], arguments=delta.partial_json),))]
        if delta.text or delta.thinking:
            return [ReplyDelta(content=delta.text or "", reasoning=delta.thinking or "")]
        return []

    def _stop_block(self, index: int) -> list[ReplyDelta]:
        # A call without arguments has no delta for them, but clients parse the arguments as JSON.
        arguments = self._initial_arguments.pop(index, "")
        if not arguments:
            return []
        return [ReplyDelta(tool_calls=(ToolCallDelta(self._call_indexes[index], arguments=arguments),))]

    def _first_usage(self) -> TokenUsage | None:
        """Return the usage at the start of a reply, which counts if the stream is interrupted."""
        usage = _usage(self._counts)
        # Some compatible servers count the input at the end, and say 0 here.
        return msgspec.structs.replace(usage, estimated=True) if usage and usage.input_tokens else None


stream_reader = _AnthropicStreamReader


class RelayReader:
    """Parser of a stream for a client of the same format: every event is a delta, which has it unchanged."""

    def __init__(self) -> None:
        self._reader = _AnthropicStreamReader()

    def read(self, event: str, data: bytes) -> list[ReplyDelta]:
        # No event has more than one delta.
        delta = next(iter(self._reader.read(event, data)), ReplyDelta())
        return [msgspec.structs.replace(delta, anthropic_event=decode_original(data))]


def decode_original(body: bytes) -> JsonObject:
    """Decode a message or event, already parsed without error, for a client of the same format. Raises ProviderError.

    A number out of range, which can only be in its usage or in a field not read here, becomes null.
    """
    return decode_response(body, dict[str, Any], _parse_float_or_null)


def _parse_float_or_null(text: str) -> float | None:
    number = float(text)
    return None if isinf(number) else number


def build_embedding_request(model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> ProviderRequest:
    raise InvalidRequest("Anthropic does not offer embeddings. Use a model of another provider.")


def parse_embeddings(body: bytes, model: str) -> EmbeddingReply:
    raise ProviderError("Anthropic does not offer embeddings.")


def parse_models(body: bytes) -> list[str]:
    return [model.id for model in decode_response(body, _AnthropicModels).data]


def _messages(messages: Sequence[LlmMessage]) -> list[JsonObject]:
    """Encode a conversation; neighbours of one role become one turn, and tool results belong to the user."""
    turns: list[JsonObject] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: LlmMessage) -> list[JsonObject]:
    # A text of only whitespace is refused.
    parts = [_part(part) for part in message.content if not isinstance(part, TextPart) or part.text.strip()]
    if message.role == "tool":
        # The mark is the result's, not of one of its parts.
        mark = _cache_mark(message.extra, *(part.extra for part in message.content))
        parts = [{name: value for name, value in part.items() if name != "cache_control"} for part in parts]
        return [{"type": "tool_result", "tool_use_id": _call_id(message.tool_call_id), "content": parts, **mark}]
    blocks = parts + [
        {"type": "tool_use", "id": _call_id(call.id), "name": call.name, "input": decode_arguments(call.arguments)}
        for call in message.tool_calls
    ]
    if blocks and message.extra:
        blocks[-1] |= _cache_mark(message.extra)
    return blocks


def _call_id(id_: str) -> str:
    """Return the id of a call, or one derived from it if it has characters that only other providers use."""
    name = _NOT_IN_IDS.sub("_", id_)
    return id_ if name == id_ else f"{name}_{hashlib.sha256(id_.encode()).hexdigest()[:8]}"


def _part(part: ContentPart) -> JsonObject:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, **_cache_mark(part.extra)}
    # `ChatRequest.require_neutral` refused any other.
    assert isinstance(part, ImagePart)
    source = {"type": "base64", "media_type": part.media_type, "data": part.data}
    if part.url:
        source = {"type": "url", "url": part.url}
    return {"type": "image", "source": source, **_cache_mark(part.extra)}


def _usage(counts: dict[str, int]) -> TokenUsage | None:
    if "input_tokens" not in counts:
        return None
    # Anthropic's input_tokens excludes the tokens that were read from or written to the cache.
    cached, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
    total = counts["input_tokens"] + cached + written
    thinking = counts.get("output_tokens_details.thinking_tokens", 0)
    return TokenUsage(
        max(0, total),
        max(0, counts.get("output_tokens", 0)),
        thinking,
        cached,
        written_tokens=written,
        written_1h_tokens=counts.get("cache_creation.ephemeral_1h_input_tokens", 0),
    )
