"""Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest, ProviderError
from stentor.domains.llm.formats import ProviderQuirks, decode_arguments, decode_response, omit_none
from stentor.domains.llm.model import (
    ChatReply,
    ChatRequest,
    ContentPart,
    EmbeddingInput,
    EmbeddingReply,
    FinishReason,
    LlmMessage,
    ProviderRequest,
    ReplyDelta,
    TextPart,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
)

MODELS_PATH = "/v1/models?limit=1000"
VERSION = "2023-06-01"
MAX_TOKENS = 4096
"""The API wants a limit; this one when the caller names none."""
_FINISH: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_CHOICES = {"auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}}


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Answer(msgspec.Struct):
    content: list[_Block]
    id: str | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Part(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Started(msgspec.Struct):
    id: str | None = None
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str
    index: int = 0
    message: _Started | None = None
    content_block: _Block | None = None
    delta: _Part | None = None
    usage: _Usage | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def build_headers(key: str, quirks: ProviderQuirks) -> dict[str, str]:
    return {"anthropic-version": VERSION, **({"x-api-key": key} if key else {})}


def build_chat_request(request: ChatRequest, quirks: ProviderQuirks, *, stream: bool) -> ProviderRequest:
    system = "\n\n".join(message.text for message in request.messages if message.role == "system")
    tools = [
        omit_none(
            name=tool.name,
            description=tool.description or None,
            input_schema=tool.parameters or {"type": "object", "properties": {}},
            strict=tool.strict or None,
        )
        for tool in request.tools
    ]
    body = omit_none(
        model=request.model,
        max_tokens=request.max_tokens or MAX_TOKENS,
        system=system or None,
        messages=_messages(request.messages),
        temperature=request.temperature,
        top_p=request.top_p,
        stop_sequences=list(request.stop) or None,
        tools=tools or None,
        tool_choice=_choice(request) if tools else None,
        output_config={"format": {"type": "json_schema", "schema": schema}}
        if (schema := request.json_schema)
        else None,
        stream=True if stream else None,
    )
    return ProviderRequest("/v1/messages", body)


def _choice(request: ChatRequest) -> dict[str, Any] | None:
    """Whether and what to call; only here can Anthropic be told to call one tool at a time."""
    single = request.is_single_tool_call
    if not request.tool_choice and not single:
        return None
    choice = _CHOICES.get(request.tool_choice or "auto") or {"type": "tool", "name": request.tool_choice}
    return {**choice, "disable_parallel_tool_use": True} if single and choice["type"] != "none" else choice


def parse_reply(body: bytes, model: str) -> ChatReply:
    answer = decode_response(body, _Answer)
    calls = tuple(
        ToolCall(block.id or f"call_{at}", block.name or "", msgspec.json.encode(block.input or {}).decode())
        for at, block in enumerate(answer.content)
        if block.type == "tool_use"
    )
    content = "".join(block.text or "" for block in answer.content if block.type == "text")
    reasoning = "".join(block.thinking or "" for block in answer.content if block.type == "thinking")
    finish = _FINISH.get(answer.stop_reason or "", "stop")
    return ChatReply(model, content, finish, reasoning, calls, _usage(answer.usage), answer.id or "")


class stream_reader:  # noqa: N801 - the port's name for what makes one
    def __init__(self) -> None:
        self._usage = _Usage()
        self._calls: dict[int, int] = {}
        """The number of a block that calls a tool, and which call it is."""
        self._unsaid: dict[int, str] = {}
        """The arguments that such a block began with, as JSON text, until a piece of others comes."""

    def read(self, event: str, data: bytes) -> list[ReplyDelta]:
        found = decode_response(data, _Event)
        match found.type:
            case "message_start" if found.message:
                self._count(found.message.usage)
                return [ReplyDelta(id=found.message.id or "")]
            case "content_block_start" if found.content_block:
                return self._started(found.index, found.content_block)
            case "content_block_delta" if found.delta:
                return self._piece(found.index, found.delta)
            case "content_block_stop":
                return self._stopped(found.index)
            case "message_delta":
                self._count(found.usage)
                reason = found.delta.stop_reason if found.delta else None
                return [ReplyDelta(finish=_FINISH.get(reason, "stop") if reason else None, usage=_usage(self._usage))]
            case "message_stop":
                return [ReplyDelta(is_last=True)]
            case "error":
                raise ProviderError("The provider broke the stream off with an error.")
        return []

    def _started(self, index: int, block: _Block) -> list[ReplyDelta]:
        if block.type == "tool_use":
            at = self._calls[index] = len(self._calls)
            self._unsaid[index] = msgspec.json.encode(block.input or {}).decode()
            return [ReplyDelta(tool_calls=(ToolCallDelta(at, block.id or f"call_{at}", block.name or ""),))]
        return [ReplyDelta(content=block.text)] if block.text else []

    def _piece(self, index: int, part: _Part) -> list[ReplyDelta]:
        if part.partial_json and index in self._calls:
            self._unsaid.pop(index, None)
            return [ReplyDelta(tool_calls=(ToolCallDelta(self._calls[index], arguments=part.partial_json),))]
        if part.text or part.thinking:
            return [ReplyDelta(content=part.text or "", reasoning=part.thinking or "")]
        return []

    def _stopped(self, index: int) -> list[ReplyDelta]:
        """A call without arguments comes without any piece of them; its callers read JSON all the same."""
        arguments = self._unsaid.pop(index, "")
        return [ReplyDelta(tool_calls=(ToolCallDelta(self._calls[index], arguments=arguments),))] if arguments else []

    def _count(self, usage: _Usage | None) -> None:
        """Later counts stand for the whole, and leave out what did not change."""
        if usage is not None:
            given = {name: value for name in usage.__struct_fields__ if (value := getattr(usage, name)) is not None}
            self._usage = msgspec.structs.replace(self._usage, **given)


def build_embedding_request(model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> ProviderRequest:
    raise InvalidRequest("Anthropic has no embeddings: name a model of another provider.")


def parse_embeddings(body: bytes, model: str) -> EmbeddingReply:
    raise ProviderError("Anthropic has no embeddings.")


def parse_models(body: bytes) -> list[str]:
    return [model.id for model in decode_response(body, _Models).data]


def _messages(messages: Sequence[LlmMessage]) -> list[dict[str, Any]]:
    """Turns of the same role become one: results of tools are a user's words here."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += _blocks(message)
        else:
            turns.append({"role": role, "content": _blocks(message)})
    return [turn for turn in turns if turn["content"]]


def _blocks(message: LlmMessage) -> list[dict[str, Any]]:
    parts = [_part(part) for part in message.content if not isinstance(part, TextPart) or part.text]
    if message.role == "tool":
        return [{"type": "tool_result", "tool_use_id": message.tool_call_id, "content": parts}]
    return parts + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": decode_arguments(call.arguments)}
        for call in message.tool_calls
    ]


def _part(part: ContentPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


def _usage(usage: _Usage | None) -> TokenUsage | None:
    if usage is None or usage.input_tokens is None:
        return None
    cached = usage.cache_read_input_tokens or 0
    total = usage.input_tokens + cached + (usage.cache_creation_input_tokens or 0)
    return TokenUsage(max(0, total), max(0, usage.output_tokens or 0), cached_tokens=cached)
