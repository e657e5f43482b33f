"""The API format of Google: Gemini's generateContent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, groupby
from typing import Any
from urllib.parse import quote

import msgspec

from stentor.core import ids
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.base import (
    NO_USAGE,
    ProviderQuirks,
    convert_vector,
    decode_arguments,
    decode_response,
    incomplete_reply_fault,
    join_texts,
    omit_none,
    read_counts,
    reported_fault,
    require_json_schema,
    require_texts,
    split_system,
    unusable_reply_fault,
)
from stentor.domains.llm.model import (
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
)

MODELS_PATH: str = "/v1beta/models?pageSize=1000"
MAX_EMBEDDING_INPUTS: int = 100
FOREIGN_SIGNATURE = "skip_thought_signature_validator"
"""Google's signature of calls that Gemini did not make, or whose own signature a client has dropped."""
_CHECKS_SIGNATURES = re.compile(r"gemini-(?![12]\b)(\d|.*-latest$)")
"""Matches models from Gemini 3 on, which refuse calls without a signature."""
_TOOL_CHOICES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_INCOMPLETE = frozenset(
    "MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MALFORMED_RESPONSE OTHER".split()
)
_FILTERED = frozenset("SAFETY RECITATION BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY LANGUAGE".split())


class _Camel(msgspec.Struct, rename="camel"):
    pass


class _FunctionCall(_Camel):
    name: str = ""
    args: JsonObject | None = None
    id: str | None = None


class _Part(_Camel):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: _FunctionCall | None = None


class _Content(_Camel):
    parts: list[_Part] | None = None


class _Candidate(_Camel):
    content: _Content = msgspec.field(default_factory=_Content)
    finish_reason: str | None = None


class _Feedback(_Camel):
    block_reason: str | None = None


class _GeminiResponse(_Camel):
    candidates: list[_Candidate] | None = None
    prompt_feedback: _Feedback | None = None
    usage_metadata: msgspec.Raw = NO_USAGE
    response_id: str | None = None
    error: Any = None


class _GeminiEmbedding(_Camel):
    values: list[Any]


class _GeminiEmbeddings(_Camel):
    embeddings: list[_GeminiEmbedding]


class _GeminiModel(_Camel):
    name: str


class _GeminiModels(_Camel):
    models: list[_GeminiModel] | None = None


def build_headers(key: str, quirks: ProviderQuirks) -> dict[str, str]:
    return {"x-goog-api-key": key} if key else {}


def build_chat_request(request: ChatRequest, quirks: ProviderQuirks, *, stream: bool) -> ProviderRequest:
    system, messages = split_system(request.messages)
    if _CHECKS_SIGNATURES.match(request.model):
        messages = [_with_signature(message) for message in messages]
    body = omit_none(
        contents=_contents(messages),
        systemInstruction={"parts": [{"text": text}]} if (text := join_texts(system)) else None,
        generationConfig=_config(request) or None,
    )
    if request.tools:
        functions = [
            omit_none(name=t.name, description=t.description or None, parametersJsonSchema=t.parameters)
            for t in request.tools
        ]
        body["tools"] = [{"functionDeclarations": functions}]
        body |= _tool_config(request)
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return ProviderRequest(f"/v1beta/models/{quote(request.model, safe='')}:{verb}", body)


def parse_reply(body: bytes, model: str) -> ChatReply:
    response = decode_response(body, _GeminiResponse)
    if response.error:
        raise reported_fault(response.error)
    deltas = _GeminiStreamReader().read_response(response)
    if not response.candidates and not response.prompt_feedback:
        raise unusable_reply_fault("The provider's response has no candidates.", _usage(response.usage_metadata))
    calls = tuple(ToolCall(c.id, c.name, c.arguments, c.signature) for d in deltas for c in d.tool_calls)
    # `read_response` ends with the delta that has the finish reason, also for an empty reply.
    finish = deltas[-1].finish or "stop"
    content, reasoning = "".join(d.content for d in deltas), "".join(d.reasoning for d in deltas)
    usage, id_ = _usage(response.usage_metadata), response.response_id or ""
    return ChatReply(model, content, finish, reasoning, calls, usage, id_)


class _GeminiStreamReader:
    """Parser of one stream. Gemini sends no end event: the chunk with a finish reason is the last."""

    def __init__(self) -> None:
        self._call_count = 0

    def read(self, event: str, data: bytes) -> list[ReplyDelta]:
        chunk = decode_response(data, _GeminiResponse)
        if chunk.error:
            raise reported_fault(chunk.error)
        return self.read_response(chunk)

    def read_response(self, response: _GeminiResponse) -> list[ReplyDelta]:
        candidate = response.candidates[0] if response.candidates else _Candidate()
        deltas = [self._read_part(part) for part in candidate.content.parts or ()]
        reason = candidate.finish_reason
        # A blocked prompt has no candidate, so no finish reason either.
        if reason is None and response.prompt_feedback and response.prompt_feedback.block_reason:
            reason = "SAFETY"
        usage = _usage(response.usage_metadata)
        finish = self._finish_reason(reason, usage) if reason else None
        return [
            *deltas,
            ReplyDelta(finish=finish, usage=usage, id=response.response_id or "", is_last=finish is not None),
        ]

    def _read_part(self, part: _Part) -> ReplyDelta:
        if (call := part.function_call) is not None:
            index, self._call_count = self._call_count, self._call_count + 1
            arguments = msgspec.json.encode(call.args or {}).decode()
            # Gemini may omit the id, but clients need one to return the result.
            id_ = call.id or f"call_{ids.new_id()}"
            return ReplyDelta(
                tool_calls=(ToolCallDelta(index, id_, call.name, arguments, part.thought_signature or ""),)
            )
        text = part.text or ""
        return ReplyDelta(reasoning=text) if part.thought else ReplyDelta(content=text)

    def _finish_reason(self, reason: str, usage: TokenUsage | None) -> FinishReason:
        if reason in _INCOMPLETE:
            fault = incomplete_reply_fault(reason, usage)
            # The provider works, so it must not be paused: usually its model has called a function wrongly.
            fault.upstream_status = 200
            raise fault
        if reason == "MAX_TOKENS":
            return "length"
        if reason in _FILTERED:
            return "content_filter"
        return "tool_calls" if self._call_count else "stop"


stream_reader = _GeminiStreamReader


def build_embedding_request(model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> ProviderRequest:
    name = f"models/{model}"
    requests = [
        omit_none(model=name, content={"parts": [{"text": text}]}, outputDimensionality=dimensions)
        for text in require_texts("Gemini", inputs)
    ]
    return ProviderRequest(f"/v1beta/models/{quote(model, safe='')}:batchEmbedContents", {"requests": requests})


def parse_embeddings(body: bytes, model: str) -> EmbeddingReply:
    return EmbeddingReply(
        model, [convert_vector(row.values) for row in decode_response(body, _GeminiEmbeddings).embeddings]
    )


def parse_models(body: bytes) -> list[str]:
    return [model.name.removeprefix("models/") for model in decode_response(body, _GeminiModels).models or []]


def _config(request: ChatRequest) -> JsonObject:
    config = omit_none(
        maxOutputTokens=request.max_tokens,
        temperature=request.temperature,
        topP=request.top_p,
        stopSequences=list(request.stop) or None,
        seed=request.seed,
    )
    schema = require_json_schema("Gemini", request)
    if request.format_type != "text":
        config["responseMimeType"] = "application/json"
    return config | omit_none(responseJsonSchema=schema)


def _tool_config(request: ChatRequest) -> JsonObject:
    choice = request.tool_choice or "auto"
    is_tool_name = choice not in _TOOL_CHOICES
    mode = "ANY" if is_tool_name else _TOOL_CHOICES[choice]
    # Gemini checks arguments against the schema only in the modes ANY and VALIDATED.
    if mode == "AUTO" and any(tool.strict for tool in request.tools):
        mode = "VALIDATED"
    if mode == "AUTO" and not request.tool_choice:
        return {}
    calling_config = omit_none(mode=mode, allowedFunctionNames=[choice] if is_tool_name else None)
    return {"toolConfig": {"functionCallingConfig": calling_config}}


def _contents(messages: Sequence[LlmMessage]) -> list[JsonObject]:
    """Encode a conversation; neighbours of one role become one turn. Gemini refuses empty texts and turns."""
    # Gemini matches a result to its call by the function's name, which a tool message does not have, and results of the
    # same function by their order. A later call may have the id of an earlier one.
    calls: dict[str, tuple[int, str]] = {}
    places = count()
    turns: list[JsonObject] = []
    for role, run in groupby(messages, key=lambda message: message.role):
        group = list(run)
        calls |= {call.id: (next(places), call.name) for message in group for call in message.tool_calls}
        if role == "tool":
            group.sort(key=lambda message: calls.get(message.tool_call_id, (0, ""))[0])
        speaker = "model" if role == "assistant" else "user"
        parts = [part for message in group for part in _parts(message, calls)]
        if turns and turns[-1]["role"] == speaker:
            turns[-1]["parts"] += parts
        elif parts:
            turns.append({"role": speaker, "parts": parts})
    return turns


def _with_signature(message: LlmMessage) -> LlmMessage:
    """Return a message with a signature of its first call, if no call has one: Gemini signs only the first."""
    if not message.tool_calls or any(call.signature for call in message.tool_calls):
        return message
    first = msgspec.structs.replace(message.tool_calls[0], signature=FOREIGN_SIGNATURE)
    return msgspec.structs.replace(message, tool_calls=(first, *message.tool_calls[1:]))


def _parts(message: LlmMessage, calls: dict[str, tuple[int, str]]) -> list[JsonObject]:
    if message.role == "tool":
        if any(not isinstance(part, TextPart) for part in message.content):
            raise InvalidRequest("Gemini accepts tool results as text only.")
        _, name = calls.get(message.tool_call_id, (0, message.tool_call_id))
        return [{"functionResponse": {"name": name, "response": {"result": message.text}}}]
    parts = [_part(part) for part in message.content if not isinstance(part, TextPart) or part.text]
    for call in message.tool_calls:
        part = {"functionCall": {"name": call.name, "args": decode_arguments(call.arguments)}}
        parts.append(part | ({"thoughtSignature": call.signature} if call.signature else {}))
    return parts


def _part(part: ContentPart) -> JsonObject:
    if isinstance(part, TextPart):
        return {"text": part.text}
    # `ChatRequest.require_neutral` refused any other.
    assert isinstance(part, ImagePart)
    if part.url:
        return {"fileData": {"fileUri": part.url}}
    return {"inlineData": {"mimeType": part.media_type, "data": part.data}}


def _usage(usage: msgspec.Raw) -> TokenUsage | None:
    counts = read_counts(usage)
    if "promptTokenCount" not in counts:
        return None
    # candidatesTokenCount excludes the tokens of the reasoning.
    thoughts = counts.get("thoughtsTokenCount", 0)
    output = counts.get("candidatesTokenCount", 0) + thoughts
    prompt, cached = counts["promptTokenCount"], counts.get("cachedContentTokenCount", 0)
    return TokenUsage(max(0, prompt), max(0, output), thoughts, cached)
