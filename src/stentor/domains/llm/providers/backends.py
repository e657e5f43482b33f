"""What answers a call: a provider over HTTP, or the baseline on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from stentor.core.errors import InvalidRequest, ProviderError
from stentor.domains.llm import formats
from stentor.domains.llm.model import ChatReply, ChatRequest, EmbeddingInput, EmbeddingReply, ReplyDelta
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers.registry import EXTRACTIVE_MODEL, LOCAL_MODELS
from stentor.domains.llm.providers.transport import CallEvidence, EventSource, ProviderTransport

SummarizeText = Callable[[str], Awaitable[str]]
EmbedTexts = Callable[[Sequence[str]], Awaitable[Any]]


class DeltaSource(Protocol):
    """A stream that has begun. `close` ends the provider's work."""

    def __aiter__(self) -> AsyncIterator[ReplyDelta]: ...
    def close(self) -> None: ...


class LlmBackend(Protocol):
    """All raise ProviderFault; a request's model is the provider's own name for it."""

    async def chat(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> ChatReply: ...
    async def stream(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> DeltaSource: ...
    async def embed(
        self, target: ModelTarget, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: CallEvidence
    ) -> EmbeddingReply: ...


class HttpBackend:
    """Providers over HTTP, each in its format."""

    def __init__(self, transport: ProviderTransport) -> None:
        self._transport = transport

    async def chat(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> ChatReply:
        form = formats.get_format(target.provider.format)
        call = form.build_chat_request(request, target.provider.quirks, stream=False)
        reply = form.parse_reply(await self._transport.send(target.provider, call, evidence), target.name)
        evidence.response_id = reply.id
        return msgspec.structs.replace(reply, tool_calls=reply.tool_calls[:1]) if request.is_single_tool_call else reply

    async def stream(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> DeltaSource:
        form = formats.get_format(target.provider.format)
        call = form.build_chat_request(request, target.provider.quirks, stream=True)
        source = await self._transport.open_stream(target.provider, call, evidence)
        return _HttpDeltaSource(source, form.stream_reader(), evidence, one_call=request.is_single_tool_call)

    async def embed(
        self, target: ModelTarget, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: CallEvidence
    ) -> EmbeddingReply:
        form = formats.get_format(target.provider.format)
        call = form.build_embedding_request(target.model, inputs, dimensions)
        found = form.parse_embeddings(await self._transport.send(target.provider, call, evidence), target.name)
        if len(found.vectors) != len(inputs) or not all(found.vectors):
            raise ProviderError(f"The provider answered {len(found.vectors)} vectors for {len(inputs)} texts.")
        return found


class _HttpDeltaSource:
    """`one_call` passes on the first call alone: Gemini cannot be told to make one at a time, and some servers do not
    listen. A model that meant to make more makes them once it has the first one's result.
    """

    def __init__(
        self, source: EventSource, reader: formats.StreamReader, evidence: CallEvidence, *, one_call: bool
    ) -> None:
        self._source, self._reader, self._evidence = source, reader, evidence
        self._one_call = one_call
        self._first: int | None = None

    def close(self) -> None:
        self._source.close()

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Raises ProviderError when the stream ends before the provider said so."""
        ended = False
        async for event, data in self._source:
            for delta in self._reader.read(event, data):
                self._evidence.response_id = self._evidence.response_id or delta.id
                ended = ended or delta.is_last or delta.finish is not None
                yield self._kept(delta) if self._one_call and delta.tool_calls else delta
                if delta.is_last:
                    return
        if not ended:
            raise ProviderError("The provider's stream stopped in the middle.")

    def _kept(self, delta: ReplyDelta) -> ReplyDelta:
        if self._first is None:
            self._first = delta.tool_calls[0].index
        kept = tuple(part for part in delta.tool_calls if part.index == self._first)
        return msgspec.structs.replace(delta, tool_calls=kept)


class LocalBackend:
    """The opt-in baseline: sentences of the conversation itself, vectors of the local model. All of it `degraded`."""

    def __init__(self, summarize: SummarizeText, embed: EmbedTexts | None) -> None:
        self._summarize = summarize
        self._embed = embed

    @property
    def models(self) -> tuple[str, ...]:
        return LOCAL_MODELS if self._embed else (EXTRACTIVE_MODEL,)

    async def chat(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> ChatReply:
        text = "\n\n".join(m.text for m in request.messages if m.role in ("user", "tool") and m.text)
        return ChatReply(target.name, await self._summarize(text), degraded=True)

    async def stream(self, target: ModelTarget, request: ChatRequest, evidence: CallEvidence) -> DeltaSource:
        return _SingleDeltaSource(await self.chat(target, request, evidence))

    async def embed(
        self, target: ModelTarget, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: CallEvidence
    ) -> EmbeddingReply:
        if self._embed is None:
            raise InvalidRequest("The local baseline has no embedding model on this machine.")
        texts = formats.require_texts("The local baseline", inputs)
        vectors = [[float(number) for number in row] for row in await self._embed(texts)]
        return EmbeddingReply(target.name, vectors, degraded=True)


class _SingleDeltaSource(msgspec.Struct):
    reply: ChatReply

    def close(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        yield ReplyDelta(content=self.reply.content)
        yield ReplyDelta(finish="stop", is_last=True)
