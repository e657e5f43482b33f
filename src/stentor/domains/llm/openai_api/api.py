"""OpenAI-compatible routes: /v1/chat/completions, completions, embeddings, models and responses.

They are not in the OpenAPI document: OpenAI's own description applies. Errors have OpenAI's format (`web/errors.py`).
What they share with Anthropic's routes is in `client_requests`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import ModelNotFound, StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import ChatRequest
from stentor.domains.llm.model_routes import resolve_listed_name
from stentor.domains.llm.openai_api import completions
from stentor.domains.llm.openai_api.chat import ChatCompletionIn, ConversationIn
from stentor.domains.llm.openai_api.chat_output import ChatChunks, chat_completion
from stentor.domains.llm.openai_api.completions import EmbeddingIn, TextChunks, TextCompletionIn
from stentor.domains.llm.openai_api.responses_output import ResponseBuilder, ResponseTextCache
from stentor.domains.llm.openai_api.responses_request import ResponseIn
from stentor.domains.llm.providers.registry import ProviderListing
from stentor.domains.llm.results import AnswerStream, ChatResult
from stentor.domains.llm.routes.chat_router import ChatRouter
from stentor.domains.llm.routes.client_requests import (
    map_client_errors,
    read_object,
    session_id,
    task_header,
    validate_body,
)
from stentor.domains.llm.routes.streaming import DONE_FRAME, stream_error_message
from stentor.domains.llm.service import AGENT_PREFIX, AUTO_GROUP_PREFIX, AUTO_MODEL, LlmGateway
from stentor.web import errors
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.fast_routes import FastRoute
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import GatewayRoute
from stentor.web.sse import RawStreamResponse, StreamLimit
from stentor.web.wire import Caller, JsonResponse


def router(gateway: LlmGateway, chats: ChatRouter, streams: StreamLimit) -> APIRouter:
    api = APIRouter(prefix="/v1", route_class=GatewayRoute, include_in_schema=False)
    recent = ResponseTextCache()

    async def chat(request: HttpRequest, caller: Caller) -> Response:  # FastRoute passes them by these names
        raw = await read_object(request)
        body = validate_body(ChatCompletionIn, raw)
        asked = body.to_request(raw, one_model=bool(caller.models))
        session = _session_id(request, body.conversation)
        if not body.stream:
            return await complete_reply(request, caller, asked, chat_completion, session)
        stream = await open_stream(request, caller, asked, session)
        origin, usage = stream.agent_task or stream.choice, body.wants_usage
        chunks = ChatChunks(stream.provenance_id, stream.name, int(time.time()), origin, usage=usage)
        frames = _chunk_frames(stream, chunks, usage=usage)
        return await RawStreamResponse.open(frames, streams, caller.stream_owner, _error_frame, stream.close)

    api.add_api_route("/chat/completions", chat, methods=["POST"], route_class_override=FastRoute)

    @api.post("/completions")
    async def complete(http: HttpRequest, caller: Caller) -> Response:
        raw = await read_object(http)
        body = validate_body(TextCompletionIn, raw)
        if not body.stream:
            return await complete_reply(http, caller, body.to_request(raw), completions.text_completion)
        stream = await open_stream(http, caller, body.to_request(raw))
        chunks = TextChunks(stream.provenance_id, stream.name, int(time.time()), usage=body.wants_usage)
        frames = _chunk_frames(stream, chunks, usage=body.wants_usage)
        return await RawStreamResponse.open(frames, streams, caller.stream_owner, _error_frame, stream.close)

    @api.post("/embeddings")
    async def embed(http: HttpRequest, caller: Caller) -> JsonResponse:
        body = validate_body(EmbeddingIn, await read_object(http))
        llm_caller = await chats.find_caller(caller, task_id=task_header(http))
        work = gateway.embed(llm_caller, body.model, body.inputs, body.dimensions)
        result = await map_client_errors(cancel_on_disconnect(http, work))
        return JsonResponse(completions.embedding_list(result, body.encoding_format))

    @api.post("/responses")
    async def respond(http: HttpRequest, caller: Caller) -> Response:
        raw = await read_object(http)
        body = validate_body(ResponseIn, raw)
        owner = caller.stream_owner
        session = _session_id(http, body.conversation)
        request = body.to_request(raw, lambda id_: recent.get(owner, id_), in_session=session is not None)

        def remember(builder: ResponseBuilder) -> None:
            for id_, text in builder.texts_by_id.items() if body.store is not False else ():
                recent.put(owner, id_, text)

        if not body.stream:
            work = chats.chat(caller, request, task_id=task_header(http), session_id=session)
            result = await map_client_errors(cancel_on_disconnect(http, work))
            origin = result.agent_task or result.choice
            builder = ResponseBuilder(body, result.provenance_id, result.reply.model, time.time, origin)
            response = builder.build(result.reply, result.usage)
            remember(builder)
            return JsonResponse(response)
        stream = await open_stream(http, caller, request, session)
        origin = stream.agent_task or stream.choice
        builder = ResponseBuilder(body, stream.provenance_id, stream.name, time.time, origin)

        def error_frame(error: Exception) -> bytes:
            code = error.code if isinstance(error, StentorError) else StentorError.code
            return _event_frame(builder.error_event(code, stream_error_message(error)))

        # Only complete responses are remembered: a client cannot refer to one that was interrupted.
        frames = _response_frames(stream, builder, remember)
        return await RawStreamResponse.open(frames, streams, owner, error_frame, stream.close)

    @api.get("/models")
    async def models(caller: Caller) -> JsonResponse:
        return JsonResponse({"object": "list", "data": await list_model_objects(caller)})

    @api.get("/models/{model:path}")
    async def model(caller: Caller, model: str) -> JsonResponse:
        name = decode_path_segment(model)
        for model_object in await list_model_objects(caller):
            if model_object["id"] == name:
                return JsonResponse(model_object)
        # As in a chat, a name without a provider must be listed by some provider.
        pairs = [(listing.provider, listing.models or ()) for listing in await list_models(caller)]
        if target := resolve_listed_name(name, pairs, gateway.default_provider):
            return JsonResponse(_model_object(name, target.provider.name))
        reason = "No configured provider has" if not caller.models else f"The key {caller.name!r} cannot use"
        raise ModelNotFound(f"{reason} the model {name!r}. GET /v1/models lists the available ones.")

    async def list_models(caller: Caller) -> list[ProviderListing]:
        return await gateway.listings(caller.tenant, allowed=caller.models)

    async def list_model_objects(caller: Caller) -> list[JsonObject]:
        listings = await list_models(caller)
        auto_names = await gateway.auto_model_names(caller.tenant, caller.models)
        auto_models = [_model_object(name, "stentor") for name in auto_names]
        provider_models = [
            _model_object(f"{listing.provider.name}/{name}", listing.provider.name)
            for listing in listings
            for name in listing.models or ()
        ]
        # A group named auto is listed as `auto`. One whose name begins like an agent's or auto's cannot be called by
        # it: the settings may have such a name, and an earlier version stored them.
        prefixes = (AGENT_PREFIX, AUTO_GROUP_PREFIX)
        names = await gateway.usable_groups(caller.tenant, caller.models)
        group_names = [name for name in names if name != AUTO_MODEL and not name.startswith(prefixes)]
        groups = [_model_object(name, "stentor") for name in group_names]
        agents = [_model_object(name, AGENT_PREFIX.rstrip(":")) for name in chats.agent_model_names(caller.tenant)]
        return auto_models + groups + provider_models + agents

    async def complete_reply(
        http: HttpRequest,
        caller: Caller,
        request: ChatRequest,
        render: Callable[[ChatResult, int], JsonObject],
        session: str | None = None,
    ) -> JsonResponse:
        work = chats.chat(caller, request, task_id=task_header(http), session_id=session)
        result = await map_client_errors(cancel_on_disconnect(http, work))
        return JsonResponse(render(result, int(time.time())))

    async def open_stream(
        http: HttpRequest, caller: Caller, request: ChatRequest, session: str | None = None
    ) -> AnswerStream:
        # Before the call: a stream above the limit must not cost anything.
        streams.check(caller.stream_owner)
        work = chats.stream(caller, request, task_header(http), session)
        return await map_client_errors(cancel_on_disconnect(http, work))

    return api


def _session_id(http: HttpRequest, conversation: str | ConversationIn | None) -> str | None:
    return session_id(http, conversation.id if isinstance(conversation, ConversationIn) else conversation)


async def _chunk_frames(stream: AnswerStream, chunks: ChatChunks | TextChunks, *, usage: bool) -> AsyncIterator[bytes]:
    yield _data_frame(chunks.first_chunk())
    async for delta in stream:
        if delta.content or delta.reasoning or delta.tool_calls or delta.extra or delta.logprobs:
            yield _data_frame(chunks.delta_chunk(delta))
        if delta.is_last:
            yield _data_frame(chunks.last_chunk(delta.finish or "stop"))
            if usage and delta.usage is not None:
                yield _data_frame(chunks.usage_chunk(delta.usage))
    yield DONE_FRAME


async def _response_frames(
    stream: AnswerStream, builder: ResponseBuilder, remember: Callable[[ResponseBuilder], None]
) -> AsyncIterator[bytes]:
    for event in builder.start_events():
        yield _event_frame(event)
    async for delta in stream:
        for event in builder.delta_events(delta):
            yield _event_frame(event)
        if delta.is_last and delta.usage is not None:
            last_events = list(builder.end_events(delta.finish or "stop", delta.usage))
            # Before the last events are sent: the client may refer to the ids as soon as it has read them.
            remember(builder)
            for event in last_events:
                yield _event_frame(event)


def _error_frame(error: Exception) -> bytes:
    status, code = (error.status, error.code) if isinstance(error, StentorError) else (500, StentorError.code)
    return _data_frame(errors.openai_error_body(status, code, stream_error_message(error)))


def _data_frame(value: Any) -> bytes:
    return b"data: " + jsontext.encode_line(value) + b"\n\n"


def _event_frame(event: JsonObject) -> bytes:
    return f"event: {event['type']}\n".encode() + _data_frame(event)


def _model_object(id_: str, owner: str) -> JsonObject:
    return {"id": id_, "object": "model", "created": 0, "owned_by": owner}
