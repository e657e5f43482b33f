"""The API format of OpenAI and compatible servers: chat completions and embeddings.

Messages, tools and tool calls of a request are encoded in `openai_messages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core import ids
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats.base import (
    NO_USAGE,
    ProviderQuirks,
    convert_vector,
    decode_response,
    incomplete_reply_fault,
    omit_none,
    read_counts,
    reported_fault,
    unusable_reply_fault,
)
from stentor.domains.llm.formats.openai_messages import encode_message, encode_tool, move_tool_images
from stentor.domains.llm.model import (
    ChatReply,
    ChatRequest,
    EmbeddingInput,
    EmbeddingReply,
    FinishReason,
    ProviderRequest,
    ReplyDelta,
    TokenUsage,
    ToolCall,
    ToolCallDelta,
)

MODELS_PATH: str = "/models"
MAX_EMBEDDING_INPUTS: int = 2048
_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_INCOMPLETE = frozenset(("error", "network_error", "insufficient_system_resource"))


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | JsonObject | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)
    extra_content: JsonObject | None = None


class _Message(msgspec.Struct):
    content: str | list[JsonObject] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    annotations: Any = None
    audio: Any = None
    images: Any = None
    reasoning_details: Any = None

    @property
    def reasoning_text(self) -> str:
        return self.reasoning_content or self.reasoning or _thoughts(self.content)

    @property
    def extra(self) -> JsonObject:
        """The parts that are passed on as they are, to clients of OpenAI's format."""
        # First whether there are any: a stream asks for each of its chunks.
        if not (self.annotations or self.audio or self.images or self.reasoning_details):
            return {}
        names = ("annotations", "audio", "images", "reasoning_details")
        return {name: value for name in names if (value := getattr(self, name))}


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    delta: _Message | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class _OpenAiResponse(msgspec.Struct):
    """A reply, or a chunk of a stream."""

    choices: list[_Choice] | None = None
    id: str | None = None
    usage: msgspec.Raw = NO_USAGE
    error: Any = None
    system_fingerprint: Any = None
    service_tier: Any = None

    @property
    def completion(self) -> JsonObject:
        """The fields that are passed on as they are, to clients of OpenAI's format."""
        if self.system_fingerprint is None and self.service_tier is None:
            return {}
        names = ("system_fingerprint", "service_tier")
        return {name: value for name in names if isinstance(value := getattr(self, name), str)}


class _OpenAiEmbedding(msgspec.Struct):
    embedding: list[Any]
    index: int = 0


class _OpenAiEmbeddings(msgspec.Struct):
    data: list[_OpenAiEmbedding]
    usage: msgspec.Raw = NO_USAGE


class _OpenAiModel(msgspec.Struct):
    id: str


class _OpenAiModels(msgspec.Struct):
    data: list[_OpenAiModel] | None = None


def build_headers(key: str, quirks: ProviderQuirks) -> dict[str, str]:
    if not key:
        return {}
    return {quirks.key_header: key} if quirks.key_header else {"Authorization": f"Bearer {key}"}


def build_chat_request(request: ChatRequest, quirks: ProviderQuirks, *, stream: bool) -> ProviderRequest:
    choice: Any = request.tool_choice or None
    if choice not in (None, "auto", "none", "required"):
        choice = {"type": "function", "function": {"name": choice}}
    messages = move_tool_images(request.messages) if quirks.user_after_tool else request.messages
    body = omit_none(
        model=request.model,
        messages=[encode_message(message, request.model, quirks) for message in messages],
        temperature=request.temperature,
        top_p=request.top_p,
        stop=list(request.stop) or None,
        tools=[encode_tool(tool) for tool in request.tools] or None,
        tool_choice=choice,
        response_format=request.response_format,
        stream=True if stream else None,
        stream_options={"include_usage": True} if stream and quirks.stream_usage else None,
    )
    if request.max_tokens is not None:
        body[quirks.max_tokens] = request.max_tokens
    if request.seed is not None:
        body[quirks.seed] = request.seed
    # Passed-through fields come first: they must not replace a field that the gateway sets.
    return ProviderRequest("/chat/completions", {**request.extra, **body})


def parse_reply(body: bytes, model: str) -> ChatReply:
    response = decode_response(body, _OpenAiResponse)
    if not response.choices:
        if response.error:
            raise reported_fault(response.error)
        raise unusable_reply_fault("The provider's response has no choices.", _usage(response.usage))
    choice = response.choices[0]
    message = choice.message
    calls = tuple(
        ToolCall(
            call.id or _new_call_id(),
            call.function.name or "",
            _arguments(call.function),
            extract_signature(call.extra_content),
        )
        for call in message.tool_calls or ()
    )
    text = _text(message.content)
    content, is_refusal = text or message.refusal or "", bool(message.refusal and not text)
    reasoning = message.reasoning_text
    usage = _usage(response.usage)
    finish = _finish_reason(choice.finish_reason or "stop", usage)
    return ChatReply(
        model,
        content,
        finish,
        reasoning,
        calls,
        usage,
        response.id or "",
        is_refusal=is_refusal,
        extra=message.extra,
        completion=response.completion,
        logprobs=_logprobs(choice),
    )


class _OpenAiStreamReader:
    """Parser of one stream."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, str]] = {}
        """By the server's index, the number and the id of the latest tool call; without an id it is empty."""
        self._call_count = 0
        self._has_choice = False

    def read(self, event: str, data: bytes) -> list[ReplyDelta]:
        # The only event that is not JSON.
        if data.strip() == b"[DONE]":
            if not self._has_choice:
                raise unusable_reply_fault("The provider's stream has no choices.", None)
            return [ReplyDelta(is_last=True)]
        chunk = decode_response(data, _OpenAiResponse)
        if chunk.error or event == "error":
            raise reported_fault(chunk.error)
        if not chunk.choices:  # such as the chunk with the usage, which is sent last
            return [ReplyDelta(usage=_usage(chunk.usage), id=chunk.id or "")]
        self._has_choice = True
        choice = chunk.choices[0]
        # Some servers put a `message` where a `delta` belongs.
        message = choice.delta or choice.message
        calls, usage = message.tool_calls or (), _usage(chunk.usage)
        text = _text(message.content)
        return [
            ReplyDelta(
                content=text or message.refusal or "",
                reasoning=message.reasoning_text,
                tool_calls=tuple(self._tool_call_delta(call, position) for position, call in enumerate(calls)),
                finish=_finish_reason(choice.finish_reason, usage) if choice.finish_reason else None,
                usage=usage,
                id=chunk.id or "",
                is_refusal=bool(message.refusal and not text),
                extra=message.extra,
                completion=chunk.completion,
                logprobs=_logprobs(choice),
            )
        ]

    def _tool_call_delta(self, call: _ToolCall, position: int) -> ToolCallDelta:
        arguments = "" if call.function.arguments is None else _arguments(call.function)
        index, name = position if call.index is None else call.index, call.function.name or ""
        number, known_id = self._calls.get(index, (-1, ""))
        # Google's compatible API gives all calls the index 0. Only a delta with a name begins a call: some servers
        # change the id in between.
        is_other = bool(name and call.id and known_id) and call.id != known_id
        # Only the first delta of a call has an id: clients join what follows, and some servers repeat it or have none.
        id_ = ""
        if number < 0 or is_other:
            number, self._call_count = self._call_count, self._call_count + 1
            self._calls[index] = number, call.id or ""
            id_ = call.id or _new_call_id()
        return ToolCallDelta(number, id_, name, arguments, extract_signature(call.extra_content))


stream_reader = _OpenAiStreamReader


def build_embedding_request(model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None) -> ProviderRequest:
    return ProviderRequest(
        "/embeddings", omit_none(model=model, input=list(inputs), encoding_format="float", dimensions=dimensions)
    )


def parse_embeddings(body: bytes, model: str) -> EmbeddingReply:
    response = decode_response(body, _OpenAiEmbeddings)
    # The order of the vectors must be that of the inputs, whatever order the server sends.
    rows = sorted(response.data, key=lambda row: row.index)
    return EmbeddingReply(model, [convert_vector(row.embedding) for row in rows], _usage(response.usage))


def parse_models(body: bytes) -> list[str]:
    return [model.id for model in decode_response(body, _OpenAiModels).data or []]


def extract_signature(extra: Any) -> str:
    """Return Google's signature from the extra content of a tool call, empty if there is none."""
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return signature if isinstance(signature, str) else ""


def _text(content: str | list[JsonObject] | None) -> str:
    """Return the text of a message; some servers send a list of parts, which can include reasoning."""
    return _join_parts(content) if isinstance(content, list) else content or ""


def _thoughts(content: str | list[JsonObject] | None) -> str:
    """Return the reasoning in the content of a message, which Mistral's models send as parts of texts."""
    if not isinstance(content, list):
        return ""
    thoughts = (part.get("thinking") for part in content if part.get("type") == "thinking")
    return "".join(_join_parts(thought) if isinstance(thought, list) else str(thought or "") for thought in thoughts)


def _join_parts(parts: list[Any]) -> str:
    texts = (part for part in parts if isinstance(part, dict) and part.get("type") == "text")
    return "".join(str(part.get("text") or "") for part in texts)


def _logprobs(choice: _Choice) -> JsonObject | None:
    return choice.logprobs if isinstance(choice.logprobs, dict) else None


def _finish_reason(reason: str, usage: TokenUsage | None) -> FinishReason:
    """Return the finish reason, `stop` for an unknown one. Raises ProviderError if the reply is incomplete."""
    if reason in _INCOMPLETE:
        raise incomplete_reply_fault(reason, usage)
    return _FINISH.get(reason, "stop")


def _arguments(function: _Function) -> str:
    arguments = function.arguments
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()


def _new_call_id() -> str:
    """Return an id for a call without one, as of llama.cpp: the result needs it, and no other call may have it."""
    return f"call_{ids.new_id()}"


def _usage(usage: msgspec.Raw) -> TokenUsage | None:
    counts = read_counts(usage)
    if "prompt_tokens" not in counts:
        return None

    def count(name: str) -> int:
        return counts.get(name, 0)

    prompt, completion = max(0, count("prompt_tokens")), max(0, count("completion_tokens"))
    # xAI and Google's compatible API count reasoning only in the total, and Google reports no details.
    output = max(completion, count("total_tokens") - prompt)
    reasoning = min(count("completion_tokens_details.reasoning_tokens") or output - completion, output)
    return TokenUsage(
        prompt,
        output,
        reasoning,
        count("prompt_tokens_details.cached_tokens"),
        written_tokens=count("prompt_tokens_details.cache_write_tokens"),
        audio_input_tokens=count("prompt_tokens_details.audio_tokens"),
        audio_output_tokens=count("completion_tokens_details.audio_tokens"),
        accepted_prediction_tokens=count("completion_tokens_details.accepted_prediction_tokens"),
        rejected_prediction_tokens=count("completion_tokens_details.rejected_prediction_tokens"),
    )
