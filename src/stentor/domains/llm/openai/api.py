"""The same gateway for OpenAI's clients: /v1/chat/completions, completions, embeddings, models, responses.

The routes read the body themselves, because what OpenAI's clients send has more fields than anybody lists, and they
are no part of the OpenAPI: OpenAI's own description holds. Errors have OpenAI's form (web/openai_errors.py).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, ModelNotFound, ProviderFault, StentorError
from stentor.domains.llm.api import DONE, broke_off, caller_for, stream_key, streaming
from stentor.domains.llm.model import Request
from stentor.domains.llm.openai import answers, reading
from stentor.domains.llm.openai.answers import Chunks, TextChunks
from stentor.domains.llm.openai.embedding import EmbeddingIn
from stentor.domains.llm.openai.recent import Recent
from stentor.domains.llm.openai.responding import Responding
from stentor.domains.llm.openai.responses import ResponseIn
from stentor.domains.llm.service import AGENT, WRONG, Gateway
from stentor.domains.llm.talk import Answering, Talk
from stentor.web import errors
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.fast_routes import FastRoute
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import GatewayRoute, get_principal
from stentor.web.sse import StreamLimit
from stentor.web.wire import Caller, JsonResponse

T = TypeVar("T")


def router(gateway: Gateway, talk: Talk, streams: StreamLimit) -> APIRouter:
    api = APIRouter(prefix="/v1", route_class=GatewayRoute, include_in_schema=False)
    recent = Recent()

    async def chat(http: HttpRequest) -> Response:
        caller, raw = get_principal(http), await _object(http)
        asked = reading.read(reading.ChatIn, raw)
        if not asked.stream:
            return await whole(http, caller, asked.request(raw), answers.chat)
        found = await begun(http, caller, asked.request(raw))
        chunks = Chunks(found.provenance_id, found.name, int(time.time()), found.work or found.choice)
        frames = _frames(found, chunks, usage=asked.wants_usage)
        return await streaming(found, frames, streams, caller, _failed)

    api.add_api_route("/chat/completions", chat, methods=["POST"], route_class_override=FastRoute)

    @api.post("/completions")
    async def complete(http: HttpRequest, caller: Caller) -> Response:
        raw = await _object(http)
        asked = reading.read(reading.CompletionIn, raw)
        if not asked.stream:
            return await whole(http, caller, asked.request(raw), answers.completion)
        found = await begun(http, caller, asked.request(raw))
        chunks = TextChunks(found.provenance_id, found.name, int(time.time()))
        frames = _frames(found, chunks, usage=asked.wants_usage)
        return await streaming(found, frames, streams, caller, _failed)

    @api.post("/embeddings")
    async def embed(http: HttpRequest, caller: Caller) -> JsonResponse:
        asked = reading.read(EmbeddingIn, await _object(http))
        work = gateway.embed(caller_for(caller), asked.model, asked.inputs, asked.dimensions)
        made = await _plain(lambda: cancel_on_disconnect(http, work))
        return JsonResponse(answers.embeddings(made, asked.encoding_format))

    @api.post("/responses")
    async def respond(http: HttpRequest, caller: Caller) -> Response:
        raw = await _object(http)
        asked = reading.read(ResponseIn, raw)
        request = asked.request(raw, lambda id_: recent.text(stream_key(caller), id_))

        def ended() -> None:
            for id_, text in made.said.items() if asked.store is not False else ():
                recent.keep(stream_key(caller), id_, text)

        if not asked.stream:
            done = await _plain(lambda: cancel_on_disconnect(http, talk.chat(caller, request)))
            made = Responding(asked, done.provenance_id, done.reply.model, time.time, done.work or done.choice)
            answer = made.whole(done.reply, done.usage)
            ended()
            return JsonResponse(answer)
        found = await begun(http, caller, request)
        made = Responding(asked, found.provenance_id, found.name, time.time, found.work or found.choice)
        return await streaming(found, _events(found, made, ended), streams, caller, _failure_of(made))

    @api.get("/models")
    async def models(caller: Caller) -> JsonResponse:
        return JsonResponse({"object": "list", "data": await listed(caller)})

    @api.get("/models/{model:path}")
    async def model(caller: Caller, model: str) -> JsonResponse:
        for found in await listed(caller):
            if found["id"] == decode_path_segment(model):
                return JsonResponse(found)
        raise ModelNotFound(f"No configured provider has the model {decode_path_segment(model)!r}.")

    async def listed(caller: Caller) -> list[dict[str, Any]]:
        listings = await gateway.listings(caller.tenant)
        found = [
            answers.model(f"{listing.provider.name}/{name}", listing.provider.name)
            for listing in listings
            for name in listing.models or ()
        ]
        chosen = [answers.model(name, "stentor") for name in await gateway.auto_names(caller.tenant)]
        return chosen + found + [answers.model(name, AGENT.rstrip(":")) for name in talk.models(caller.tenant)]

    async def whole(http: HttpRequest, caller: Caller, request: Request, render: Callable[..., Any]) -> JsonResponse:
        work = talk.chat(caller, request)
        return JsonResponse(render(await _plain(lambda: cancel_on_disconnect(http, work)), int(time.time())))

    async def begun(http: HttpRequest, caller: Caller, request: Request) -> Answering:
        streams.check(stream_key(caller))
        work = talk.stream(caller, request)
        return await _plain(lambda: cancel_on_disconnect(http, work))

    return api


async def _object(http: HttpRequest) -> dict[str, Any]:
    raw = await http.json()
    if not isinstance(raw, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return raw


async def _plain(work: Callable[[], Awaitable[T]]) -> T:
    """A request that the provider called wrong is the caller's: 400, which no client sends again."""
    try:
        return await work()
    except ProviderFault as fault:
        if fault.upstream_status in WRONG:
            raise InvalidRequest(fault.message) from None
        raise


async def _frames(found: Answering, chunks: Chunks | TextChunks, *, usage: bool) -> AsyncIterator[bytes]:
    yield _data(chunks.first())
    async for delta in found:
        if delta.content or delta.reasoning or delta.tool_calls:
            yield _data(chunks.piece(delta))
        if delta.last:
            yield _data(chunks.last(delta.finish or "stop"))
            if usage and delta.usage is not None:
                yield _data(chunks.counted(delta.usage))
    yield DONE


async def _events(found: Answering, made: Responding, ended: Callable[[], None]) -> AsyncIterator[bytes]:
    for event in made.begun():
        yield _named(event)
    async for delta in found:
        for event in made.piece(delta):
            yield _named(event)
        if delta.last and delta.usage is not None:
            last = list(made.ended(delta.finish or "stop", delta.usage))
            ended()
            for event in last:
                yield _named(event)


def _failed(error: Exception) -> bytes:
    known = error if isinstance(error, StentorError) else None
    status, code = (known.status, known.code) if known else (500, StentorError.code)
    return _data(errors.openai_error_body(status, code, broke_off(error)))


def _failure_of(made: Responding) -> Callable[[Exception], bytes]:
    return lambda error: _named(made.failed(getattr(error, "code", StentorError.code), broke_off(error)))


def _data(value: Any) -> bytes:
    return b"data: " + jsontext.encode_line(value) + b"\n\n"


def _named(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)
