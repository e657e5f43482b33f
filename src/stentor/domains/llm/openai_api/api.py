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
from stentor.domains.llm.model import ChatRequest
from stentor.domains.llm.openai_api import completions, wire
from stentor.domains.llm.openai_api.completions import ChatChunks, TextChunks
from stentor.domains.llm.openai_api.responses_output import ResponseBuilder, ResponseTextCache
from stentor.domains.llm.openai_api.responses_request import ResponseIn
from stentor.domains.llm.openai_api.wire import EmbeddingIn
from stentor.domains.llm.service import AGENT_PREFIX, CLIENT_ERROR_STATUSES, AnswerStream, ChatRouter, LlmGateway
from stentor.domains.llm.streaming import (
    DONE_FRAME,
    llm_caller,
    stream_error_message,
    stream_limit_key,
    stream_response,
)
from stentor.web import errors
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.fast_routes import FastRoute
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import GatewayRoute, get_principal
from stentor.web.sse import StreamLimit
from stentor.web.wire import Caller, JsonResponse

T = TypeVar("T")


def router(gateway: LlmGateway, talk: ChatRouter, streams: StreamLimit) -> APIRouter:
    api = APIRouter(prefix="/v1", route_class=GatewayRoute, include_in_schema=False)
    recent = ResponseTextCache()

    async def chat(request: HttpRequest) -> Response:
        caller, raw = get_principal(request), await _object(request)
        asked = wire.validate_body(wire.ChatCompletionIn, raw)
        if not asked.stream:
            return await whole(request, caller, asked.to_request(raw), completions.chat_completion)
        found = await begun(request, caller, asked.to_request(raw))
        chunks = ChatChunks(found.provenance_id, found.name, int(time.time()), found.agent_task or found.choice)
        frames = _frames(found, chunks, usage=asked.wants_usage)
        return await stream_response(found, frames, streams, caller, _failed)

    api.add_api_route("/chat/completions", chat, methods=["POST"], route_class_override=FastRoute)

    @api.post("/completions")
    async def complete(http: HttpRequest, caller: Caller) -> Response:
        raw = await _object(http)
        asked = wire.validate_body(wire.TextCompletionIn, raw)
        if not asked.stream:
            return await whole(http, caller, asked.to_request(raw), completions.text_completion)
        found = await begun(http, caller, asked.to_request(raw))
        chunks = TextChunks(found.provenance_id, found.name, int(time.time()))
        frames = _frames(found, chunks, usage=asked.wants_usage)
        return await stream_response(found, frames, streams, caller, _failed)

    @api.post("/embeddings")
    async def embed(http: HttpRequest, caller: Caller) -> JsonResponse:
        asked = wire.validate_body(EmbeddingIn, await _object(http))
        work = gateway.embed(llm_caller(caller), asked.model, asked.inputs, asked.dimensions)
        made = await _plain(lambda: cancel_on_disconnect(http, work))
        return JsonResponse(completions.embedding_list(made, asked.encoding_format))

    @api.post("/responses")
    async def respond(http: HttpRequest, caller: Caller) -> Response:
        raw = await _object(http)
        asked = wire.validate_body(ResponseIn, raw)
        request = asked.to_request(raw, lambda id_: recent.get(stream_limit_key(caller), id_))

        def ended() -> None:
            for id_, text in made.texts_by_id.items() if asked.store is not False else ():
                recent.put(stream_limit_key(caller), id_, text)

        if not asked.stream:
            done = await _plain(lambda: cancel_on_disconnect(http, talk.chat(caller, request)))
            made = ResponseBuilder(
                asked, done.provenance_id, done.reply.model, time.time, done.agent_task or done.choice
            )
            answer = made.build(done.reply, done.usage)
            ended()
            return JsonResponse(answer)
        found = await begun(http, caller, request)
        made = ResponseBuilder(asked, found.provenance_id, found.name, time.time, found.agent_task or found.choice)
        return await stream_response(found, _events(found, made, ended), streams, caller, _failure_of(made))

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
            completions.model_object(f"{listing.provider.name}/{name}", listing.provider.name)
            for listing in listings
            for name in listing.models or ()
        ]
        chosen = [completions.model_object(name, "stentor") for name in await gateway.auto_model_names(caller.tenant)]
        return (
            chosen
            + found
            + [
                completions.model_object(name, AGENT_PREFIX.rstrip(":"))
                for name in talk.agent_model_names(caller.tenant)
            ]
        )

    async def whole(
        http: HttpRequest, caller: Caller, request: ChatRequest, render: Callable[..., Any]
    ) -> JsonResponse:
        work = talk.chat(caller, request)
        return JsonResponse(render(await _plain(lambda: cancel_on_disconnect(http, work)), int(time.time())))

    async def begun(http: HttpRequest, caller: Caller, request: ChatRequest) -> AnswerStream:
        streams.check(stream_limit_key(caller))
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
        if fault.upstream_status in CLIENT_ERROR_STATUSES:
            raise InvalidRequest(fault.message) from None
        raise


async def _frames(found: AnswerStream, chunks: ChatChunks | TextChunks, *, usage: bool) -> AsyncIterator[bytes]:
    yield _data(chunks.first_chunk())
    async for delta in found:
        if delta.content or delta.reasoning or delta.tool_calls:
            yield _data(chunks.delta_chunk(delta))
        if delta.is_last:
            yield _data(chunks.last_chunk(delta.finish or "stop"))
            if usage and delta.usage is not None:
                yield _data(chunks.usage_chunk(delta.usage))
    yield DONE_FRAME


async def _events(found: AnswerStream, made: ResponseBuilder, ended: Callable[[], None]) -> AsyncIterator[bytes]:
    for event in made.start_events():
        yield _named(event)
    async for delta in found:
        for event in made.delta_events(delta):
            yield _named(event)
        if delta.is_last and delta.usage is not None:
            last = list(made.end_events(delta.finish or "stop", delta.usage))
            ended()
            for event in last:
                yield _named(event)


def _failed(error: Exception) -> bytes:
    known = error if isinstance(error, StentorError) else None
    status, code = (known.status, known.code) if known else (500, StentorError.code)
    return _data(errors.openai_error_body(status, code, stream_error_message(error)))


def _failure_of(made: ResponseBuilder) -> Callable[[Exception], bytes]:
    return lambda error: _named(
        made.error_event(getattr(error, "code", StentorError.code), stream_error_message(error))
    )


def _data(value: Any) -> bytes:
    return b"data: " + jsontext.encode_line(value) + b"\n\n"


def _named(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + _data(event)
