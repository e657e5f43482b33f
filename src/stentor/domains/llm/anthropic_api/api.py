"""Routes for Anthropic's clients: POST /v1/messages and /v1/messages/count_tokens.

They are not in the OpenAPI document: Anthropic's own description applies. Errors have Anthropic's format
(`web/errors.py`). What they share with OpenAI's routes is in `client_requests`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm import token_estimates
from stentor.domains.llm.anthropic_api.messages_output import MessageEvents, build_message
from stentor.domains.llm.anthropic_api.messages_request import CountIn, MessagesIn, require_one_model
from stentor.domains.llm.results import AnswerStream
from stentor.domains.llm.routes.chat_router import ChatRouter
from stentor.domains.llm.routes.client_requests import (
    map_client_errors,
    read_object,
    session_id,
    task_header,
    validate_body,
)
from stentor.domains.llm.routes.streaming import stream_error_message
from stentor.web import errors
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.fast_routes import FastRoute
from stentor.web.request_context import find_header
from stentor.web.routes import GatewayRoute
from stentor.web.sse import RawStreamResponse, StreamLimit
from stentor.web.wire import Caller, JsonResponse


def router(chats: ChatRouter, streams: StreamLimit) -> APIRouter:
    api = APIRouter(prefix="/v1", route_class=GatewayRoute, include_in_schema=False)

    async def create_message(request: HttpRequest, caller: Caller) -> Response:  # FastRoute passes them by these names
        raw = await read_object(request)
        body = validate_body(MessagesIn, raw)
        if caller.models:
            require_one_model(raw, caller.name)
        # The beta methods of many clients add it, as in Claude Code.
        query = "?beta=true" if request.query_params.get("beta") == "true" else ""
        chat = body.to_request(raw, _anthropic_headers(request), query)
        session, task = session_id(request), task_header(request)
        if not body.stream:
            work = chats.chat(caller, chat, task_id=task, session_id=session)
            result = await map_client_errors(cancel_on_disconnect(request, work))
            return JsonResponse(build_message(result, shows_thinking=body.shows_thinking))
        # Before the call: a stream above the limit must not cost anything.
        streams.check(caller.stream_owner)
        opening = chats.stream(caller, chat, task, session)
        stream = await map_client_errors(cancel_on_disconnect(request, opening))
        origin = stream.agent_task or stream.choice
        events = MessageEvents(stream.provenance_id, stream.name, origin, shows_thinking=body.shows_thinking)
        frames = _frames(stream, events)
        ping = _frame({"type": "ping"})
        error_frame = partial(_error_frame, request.scope["state"]["request_id"])
        return await RawStreamResponse.open(frames, streams, caller.stream_owner, error_frame, stream.close, ping)

    async def count_tokens(request: HttpRequest, caller: Caller) -> Response:
        raw = await read_object(request)
        counted = validate_body(CountIn, raw).to_request(raw, {})
        return JsonResponse({"input_tokens": token_estimates.estimate_input_tokens(counted)})

    api.add_api_route("/messages", create_message, methods=["POST"], route_class_override=FastRoute)
    api.add_api_route("/messages/count_tokens", count_tokens, methods=["POST"], route_class_override=FastRoute)
    return api


def _anthropic_headers(request: HttpRequest) -> dict[str, str]:
    # The client reads the reply as its version of the API describes it.
    values = {name: find_header(request.scope, name.encode()) for name in ("anthropic-version", "anthropic-beta")}
    for name, value in values.items():
        # The HTTP client would raise an error, and five of them pause the provider for everybody.
        if value and not value.isprintable():
            raise InvalidRequest(f"{name}: must be printable text.")
    return {name: value for name, value in values.items() if value}


async def _frames(stream: AnswerStream, events: MessageEvents) -> AsyncIterator[bytes]:
    async for delta in stream:
        for event in events.delta_events(delta):
            yield _frame(event)


def _error_frame(request_id: str, error: Exception) -> bytes:
    status, code = (error.status, error.code) if isinstance(error, StentorError) else (500, StentorError.code)
    return _frame(errors.anthropic_error_body(status, code, stream_error_message(error), request_id))


def _frame(event: JsonObject) -> bytes:
    return f"event: {event['type']}\n".encode() + b"data: " + jsontext.encode_line(event) + b"\n\n"
