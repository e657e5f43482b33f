"""What answers a call: a provider over HTTP, or the baseline on this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from stentor.core.errors import InvalidRequest, ProviderError
from stentor.domains.llm import formats
from stentor.domains.llm.directory import EXTRACTIVE, LOCAL_MODELS
from stentor.domains.llm.evidence import Evidence
from stentor.domains.llm.model import Delta, Embedded, EmbeddingInput, Reply, Request
from stentor.domains.llm.routes import Target
from stentor.domains.llm.transport import EventSource, Transport

Summarize = Callable[[str], Awaitable[str]]
Embed = Callable[[Sequence[str]], Awaitable[Any]]


class Deltas(Protocol):
    """A stream that has begun. `close` ends the provider's work."""

    def __aiter__(self) -> AsyncIterator[Delta]: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """All raise ProviderFault; a request's model is the provider's own name for it."""

    async def chat(self, target: Target, request: Request, evidence: Evidence) -> Reply: ...
    async def stream(self, target: Target, request: Request, evidence: Evidence) -> Deltas: ...
    async def embed(
        self, target: Target, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: Evidence
    ) -> Embedded: ...


class Remote:
    """Providers over HTTP, each in its format."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def chat(self, target: Target, request: Request, evidence: Evidence) -> Reply:
        form = formats.of(target.provider.format)
        call = form.chat(request, target.provider.quirks, stream=False)
        reply = form.reply(await self._transport.ask(target.provider, call, evidence), target.name)
        evidence.response_id = reply.id
        return msgspec.structs.replace(reply, tool_calls=reply.tool_calls[:1]) if request.one_call else reply

    async def stream(self, target: Target, request: Request, evidence: Evidence) -> Deltas:
        form = formats.of(target.provider.format)
        call = form.chat(request, target.provider.quirks, stream=True)
        source = await self._transport.open(target.provider, call, evidence)
        return _Read(source, form.reader(), evidence, one_call=request.one_call)

    async def embed(
        self, target: Target, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: Evidence
    ) -> Embedded:
        form = formats.of(target.provider.format)
        call = form.embed(target.model, inputs, dimensions)
        found = form.vectors(await self._transport.ask(target.provider, call, evidence), target.name)
        if len(found.vectors) != len(inputs) or not all(found.vectors):
            raise ProviderError(f"The provider answered {len(found.vectors)} vectors for {len(inputs)} texts.")
        return found


class _Read:
    """`one_call` passes on the first call alone: Gemini cannot be told to make one at a time, and some servers do not
    listen. A model that meant to make more makes them once it has the first one's result.
    """

    def __init__(self, source: EventSource, reader: formats.Reader, evidence: Evidence, *, one_call: bool) -> None:
        self._source, self._reader, self._evidence = source, reader, evidence
        self._one_call = one_call
        self._first: int | None = None

    def close(self) -> None:
        self._source.close()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Raises ProviderError when the stream ends before the provider said so."""
        ended = False
        async for event, data in self._source:
            for delta in self._reader.read(event, data):
                self._evidence.response_id = self._evidence.response_id or delta.id
                ended = ended or delta.last or delta.finish is not None
                yield self._kept(delta) if self._one_call and delta.tool_calls else delta
                if delta.last:
                    return
        if not ended:
            raise ProviderError("The provider's stream stopped in the middle.")

    def _kept(self, delta: Delta) -> Delta:
        if self._first is None:
            self._first = delta.tool_calls[0].index
        kept = tuple(part for part in delta.tool_calls if part.index == self._first)
        return msgspec.structs.replace(delta, tool_calls=kept)


class Local:
    """The opt-in baseline: sentences of the conversation itself, vectors of the local model. All of it `degraded`."""

    def __init__(self, summarize: Summarize, embed: Embed | None) -> None:
        self._summarize = summarize
        self._embed = embed

    @property
    def models(self) -> tuple[str, ...]:
        return LOCAL_MODELS if self._embed else (EXTRACTIVE,)

    async def chat(self, target: Target, request: Request, evidence: Evidence) -> Reply:
        text = "\n\n".join(m.text for m in request.messages if m.role in ("user", "tool") and m.text)
        return Reply(target.name, await self._summarize(text), degraded=True)

    async def stream(self, target: Target, request: Request, evidence: Evidence) -> Deltas:
        return _Whole(await self.chat(target, request, evidence))

    async def embed(
        self, target: Target, inputs: Sequence[EmbeddingInput], dimensions: int | None, evidence: Evidence
    ) -> Embedded:
        if self._embed is None:
            raise InvalidRequest("The local baseline has no embedding model on this machine.")
        texts = formats.texts("The local baseline", inputs)
        vectors = [[float(number) for number in row] for row in await self._embed(texts)]
        return Embedded(target.name, vectors, degraded=True)


class _Whole(msgspec.Struct):
    reply: Reply

    def close(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Delta]:
        yield Delta(content=self.reply.content)
        yield Delta(finish="stop", last=True)
