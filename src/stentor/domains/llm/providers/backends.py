"""Backends that run a call: a provider over HTTP, or the local baseline in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, ProviderError, ProviderFault
from stentor.domains.llm.formats import FORMATS, anthropic
from stentor.domains.llm.formats.base import StreamReader, require_texts
from stentor.domains.llm.model import (
    MAX_TOOL_CALLS,
    ChatReply,
    ChatRequest,
    EmbeddingInput,
    EmbeddingReply,
    LlmMessage,
    ReplyDelta,
    TextPart,
    TokenUsage,
)
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers.registry import EXTRACTIVE_MODEL, LOCAL_MODELS
from stentor.domains.llm.providers.transport import CallEvidence, EventSource, ProviderTransport
from stentor.domains.llm.token_estimates import estimate_embedding_usage

REFUSED_WITH_REASONING = "Function tools with reasoning_effort"
"""How OpenAI's message begins if a model accepts functions only without reasoning, as gpt-5.6 in this format."""
LIMIT_NEEDS_NEWER_NAME = "Use 'max_completion_tokens' instead"
"""What OpenAI's message says if a model does not accept `max_tokens`, also behind a proxy with another address."""
REFUSED_SAMPLING = "is deprecated for this model"
"""How Anthropic's message ends if a model does not accept `temperature` or `top_p`, as Claude Opus 4.7."""
REFUSED_FORMATS = ("with a response mime type", "cannot be combined with tool/function calling")
"""What Gemini's and Groq's messages say if a model does not accept `response_format` together with tools."""
RELAYED_OUTPUT = ("content_block_delta", "content_block_stop")
"""Events of Anthropic's format that show that the model has begun to answer."""
OUTPUT_SECONDS = 5.0
"""How long a stream waits for the first part of the reply before it begins without one."""
MAX_KEPT_DELTAS = 1_000
"""How many deltas without a part of the reply are kept in the meantime; then, too, the stream begins without one."""
SummarizeText = Callable[[str], Awaitable[str]]
Explain = Callable[[ProviderError, bytes], ProviderFault]
EmbedTexts = Callable[[Sequence[str]], Awaitable[Any]]


class DeltaSource(Protocol):
    """Open stream of a reply. `close` disconnects, so that the provider stops generating."""

    def __aiter__(self) -> AsyncIterator[ReplyDelta]: ...
    def close(self) -> None: ...


class LlmBackend(Protocol):
    """Backend of the gateway. Every method raises ProviderFault.

    `request.model` is the name that the provider uses, without the prefix of the provider.
    """

    async def chat(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> ChatReply: ...
    async def stream(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> DeltaSource: ...
    async def embed(
        self, target: ModelTarget, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: CallEvidence
    ) -> EmbeddingReply: ...


class HttpBackend:
    """Backend that calls providers over HTTP, each in its API format."""

    def __init__(self, transport: ProviderTransport) -> None:
        self._transport = transport

    async def chat(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> ChatReply:
        form, provider = FORMATS[target.provider.format], target.provider
        is_relay = _is_relay(target, request)
        refused: ProviderFault | None = None
        while True:
            call = form.build_chat_request(request, provider.quirks, stream=False)
            try:
                body = await self._transport.send(provider, call, evidence)
                break
            except ProviderFault as fault:
                request, refused = _adapt(request, fault, refused), fault
        try:
            reply = form.parse_reply(body, target.name)
        except ProviderError as fault:
            raise self._transport.explain(provider, fault, body) from None
        evidence.response_id = reply.id
        if is_relay:
            return msgspec.structs.replace(reply, anthropic_message=anthropic.decode_original(body))
        return msgspec.structs.replace(reply, tool_calls=reply.tool_calls[:1]) if request.is_single_tool_call else reply

    async def stream(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> DeltaSource:
        form, provider = FORMATS[target.provider.format], target.provider
        explain = partial(self._transport.explain, provider)
        is_relay = _is_relay(target, request)
        refused: ProviderFault | None = None
        while True:
            call = form.build_chat_request(request, provider.quirks, stream=True)
            try:
                source = await self._transport.open_stream(provider, call, evidence)
                one_call = request.is_single_tool_call
                reader = anthropic.RelayReader() if is_relay else form.stream_reader()
                deltas = _HttpDeltaSource(source, reader, evidence, explain, one_call=one_call)
                await deltas.wait_for_output()
                return deltas
            except ProviderFault as fault:
                request, refused = _adapt(request, fault, refused), fault

    async def embed(
        self, target: ModelTarget, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: CallEvidence
    ) -> EmbeddingReply:
        form = FORMATS[target.provider.format]
        size = form.MAX_EMBEDDING_INPUTS
        calls = [
            form.build_embedding_request(target.model, inputs[start : start + size], dimensions)
            for start in range(0, len(inputs), size)
        ]
        replies: list[EmbeddingReply] = []
        try:
            for call in calls:
                body = await self._transport.send(target.provider, call, evidence)
                replies.append(form.parse_embeddings(body, target.name))
        except ProviderFault as fault:
            if replies:
                # A repeated request would be billed again for the part that was answered.
                fault.is_repeatable = False
                if not evidence.may_be_billed(fault):
                    fault.usage = _embedding_usage(replies, inputs[: len(replies) * size])
            raise
        vectors = [vector for reply in replies for vector in reply.vectors]
        # A missing vector would shift all later ones to the wrong texts.
        if len(vectors) != len(inputs) or not all(vectors):
            raise ProviderError(f"The provider returned {len(vectors)} vectors for {len(inputs)} inputs.")
        return EmbeddingReply(target.name, vectors, _embedding_usage(replies, inputs))


def _embedding_usage(replies: list[EmbeddingReply], inputs: Sequence[EmbeddingInput]) -> TokenUsage:
    """Return what the calls for these inputs used, estimated if one did not report it or reported none."""
    reported = [
        reply.usage.input_tokens for reply in replies if reply.usage is not None and reply.usage.input_tokens > 0
    ]
    return TokenUsage(sum(reported)) if len(reported) == len(replies) else estimate_embedding_usage(inputs)


def _is_relay(target: ModelTarget, request: ChatRequest) -> bool:
    """Return whether client and provider both speak Anthropic's format, so that the reply is passed on as it is.

    Raises InvalidRequest if the request has what the provider's format cannot express.
    """
    request.require_neutral(target.name, target.provider.format)
    return request.anthropic is not None and target.provider.format == "anthropic"


def _adapt(request: ChatRequest, fault: ProviderFault, refused: ProviderFault | None) -> ChatRequest:
    """Return a refused request without the field that the model refuses, to be sent again.

    Raises the fault if it has another cause. `refused` is the fault of the previous try, if there was one.
    """
    # Some models have no effort "none": the caller, who named none, must read why functions are refused.
    if refused and REFUSED_WITH_REASONING in refused.message and "reasoning_effort" in fault.message:
        raise refused from None
    adapted = _without_refused_field(request, fault.message)
    if adapted is None:
        raise fault
    return adapted


def _without_refused_field(request: ChatRequest, refusal: str) -> ChatRequest | None:
    """Return a refused request without the field that the message refuses, None for any other refusal.

    An effort that the caller names is not changed.
    """
    extra = request.extra
    if request.max_tokens is not None and LIMIT_NEEDS_NEWER_NAME in refusal:
        extra = {**extra, "max_completion_tokens": request.max_tokens}
        return msgspec.structs.replace(request, max_tokens=None, extra=extra)
    if "reasoning_effort" not in extra and REFUSED_WITH_REASONING in refusal:
        return msgspec.structs.replace(request, extra={**extra, "reasoning_effort": "none"})
    if (request.temperature, request.top_p) != (None, None) and REFUSED_SAMPLING in refusal:
        return msgspec.structs.replace(request, temperature=None, top_p=None)
    if request.response_format and any(mark in refusal for mark in REFUSED_FORMATS):
        schema = request.json_schema
        text = "Answer with nothing but JSON" + (f" of this JSON schema: {jsontext.dump(schema)}" if schema else ".")
        messages = (LlmMessage("system", (TextPart(text),)), *request.messages)
        return msgspec.structs.replace(request, response_format=None, messages=messages)
    return None


class _HttpDeltaSource:
    """Stream of a provider as deltas. `one_call` drops all tool calls but the first.

    Gemini has no option for a single call, and some servers ignore theirs. The model repeats the dropped calls when it
    has the result of the first.
    """

    def __init__(
        self, source: EventSource, reader: StreamReader, evidence: CallEvidence, explain: Explain, *, one_call: bool
    ) -> None:
        self._source, self._reader, self._evidence, self._explain = source, reader, evidence, explain
        self._one_call = one_call
        self._first_call: int | None = None
        self._deltas = self._read_deltas()
        self._beginning: asyncio.Task[list[ReplyDelta]] | None = None
        """Reads the deltas up to the first output."""

    def close(self) -> None:
        if self._beginning is not None and not self._beginning.cancel() and not self._beginning.cancelled():
            # Otherwise asyncio logs the error as never retrieved.
            self._beginning.exception()
        self._source.close()

    async def wait_for_output(self) -> None:
        """Wait until the provider has sent a part of the reply, at most OUTPUT_SECONDS. Raises ProviderFault.

        A provider that fails before is reported with a status and replaced by a fallback, as one without a stream.
        """
        # A task, not a timeout: a slow provider must not lose the event that it is about to send.
        self._beginning = asyncio.create_task(self._read_beginning())
        try:
            done, _ = await asyncio.wait({self._beginning}, timeout=OUTPUT_SECONDS)
            for beginning in done:
                beginning.result()
        except BaseException:
            self.close()
            raise

    async def _read_beginning(self) -> list[ReplyDelta]:
        deltas: list[ReplyDelta] = []
        async for delta in self._deltas:
            deltas.append(delta)
            # A provider's own search or hidden thinking is output without a neutral equivalent.
            is_relayed = delta.anthropic_event is not None and delta.anthropic_event.get("type") in RELAYED_OUTPUT
            if delta.content or delta.reasoning or delta.tool_calls or delta.finish or delta.extra or is_relayed:
                break
            if len(deltas) >= MAX_KEPT_DELTAS:
                break
        return deltas

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Yield the deltas. Raises ProviderError if the stream ends without a finish reason or end event."""
        for delta in await self._beginning if self._beginning is not None else ():
            yield delta
        async for delta in self._deltas:
            yield delta

    async def _read_deltas(self) -> AsyncIterator[ReplyDelta]:
        is_complete = False
        async for event, data in self._source:
            try:
                deltas = self._reader.read(event, data)
            except ProviderError as fault:
                raise self._explain(fault, data) from None
            for delta in deltas:
                if any(call.index >= MAX_TOOL_CALLS for call in delta.tool_calls):
                    raise ProviderError(f"The provider's reply has more than {MAX_TOOL_CALLS:,} tool calls.")
                self._evidence.response_id = self._evidence.response_id or delta.id
                # Either is enough: some servers send no [DONE], others no finish reason.
                is_complete = is_complete or delta.is_last or delta.finish is not None
                yield self._first_call_only(delta) if self._one_call and delta.tool_calls else delta
                if delta.is_last:
                    return
        if not is_complete:
            raise ProviderError("The provider's stream ended before the reply was complete.")

    def _first_call_only(self, delta: ReplyDelta) -> ReplyDelta:
        if self._first_call is None:
            self._first_call = delta.tool_calls[0].index
        calls = tuple(call for call in delta.tool_calls if call.index == self._first_call)
        return msgspec.structs.replace(delta, tool_calls=calls)


class LocalBackend:
    """Opt-in local baseline: extractive summary of the conversation, embeddings of the local model; always degraded."""

    def __init__(self, summarize: SummarizeText, embed: EmbedTexts | None) -> None:
        self._summarize = summarize
        self._embed = embed

    @property
    def models(self) -> tuple[str, ...]:
        return LOCAL_MODELS if self._embed else (EXTRACTIVE_MODEL,)

    async def chat(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> ChatReply:
        request.require_neutral(target.name)
        text = "\n\n".join(m.text for m in request.messages if m.role in ("user", "tool") and m.text)
        return ChatReply(target.name, await self._summarize(text), degraded=True)

    async def stream(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> DeltaSource:
        return _SingleDeltaSource(await self.chat(target, request, evidence))

    async def embed(
        self, target: ModelTarget, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: CallEvidence
    ) -> EmbeddingReply:
        if self._embed is None:
            raise InvalidRequest("The local baseline has no embedding model on this machine. Use another model.")
        texts = require_texts("The local baseline", inputs)
        vectors = [[float(number) for number in row] for row in await self._embed(texts)]
        return EmbeddingReply(target.name, vectors, degraded=True)


class _SingleDeltaSource(msgspec.Struct):
    """Stream of a reply that is complete."""

    reply: ChatReply

    def close(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        yield ReplyDelta(content=self.reply.content)
        yield ReplyDelta(finish="stop", is_last=True)
