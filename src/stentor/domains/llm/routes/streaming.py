"""The route POST /llm/stream over server-sent events, and what every streaming chat route shares.

The other routes are in `operations`; the streams of the OpenAI-compatible API are in `openai_api`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import ProviderFault, StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.results import AnswerStream
from stentor.domains.llm.routes.chat_router import ChatRouter
from stentor.domains.llm.wire import ChatBody
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.sse import RawStreamResponse, StreamLimit
from stentor.web.wire import Caller, TaskHeader, api_router, error_responses

DONE_FRAME = b"data: [DONE]\n\n"
HEARTBEAT_FRAME = b'event: heartbeat\ndata: {"delta":""}\n\n'
"""A separate event type; a client that reads every data line as a delta gets an empty one."""
SSE: dict[int | str, JsonObject] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Lines `data: {delta}`"}
}


def router(chats: ChatRouter, streams: StreamLimit) -> APIRouter:
    api = api_router("/llm", tags=["llm"])

    @api.post(
        "/stream",
        operation_id="llm_stream",
        response_class=Response,
        responses={**error_responses(404, 409, 422, 502, 504), **SSE},
    )
    async def stream(http: HttpRequest, caller: Caller, body: ChatBody, task: TaskHeader = None) -> RawStreamResponse:
        """Stream a chat reply as server-sent events: a line `data: {delta}` per delta, then `data: [DONE]`."""
        # Before the provider is called, as in the OpenAI-compatible routes: a rejected stream must cost nothing.
        streams.check(caller.stream_owner)
        reply = await cancel_on_disconnect(http, chats.stream(caller, body.to_request(), task))
        frames = _delta_frames(reply)
        return await RawStreamResponse.open(
            frames, streams, caller.stream_owner, _error_frame, reply.close, HEARTBEAT_FRAME
        )

    return api


def stream_error_message(error: Exception) -> str:
    """Return the message in the last frame of an interrupted stream; never the provider's own text."""
    if isinstance(error, ProviderFault):
        return "The stream was interrupted: the provider failed."
    return f"The stream was interrupted. {error.message if isinstance(error, StentorError) else 'The service failed.'}"


async def _delta_frames(reply: AnswerStream) -> AsyncIterator[bytes]:
    if reply.choice:
        # Only for `auto`: without this event the caller would not know the model, nor the id to grade the reply by.
        names = {"delta": "", "model": reply.name, "provenance_id": reply.provenance_id}
        routing = jsontext.encode_line(names | {"routing": msgspec.to_builtins(reply.choice)})
        yield b"event: routing\ndata: " + routing + b"\n\n"
    extra = {"degraded": True} if reply.degraded else {}
    async for delta in reply:
        if delta.content:
            yield b"data: " + jsontext.encode_line({"delta": delta.content} | extra) + b"\n\n"
    yield DONE_FRAME


def _error_frame(error: Exception) -> bytes:
    code = error.code if isinstance(error, StentorError) else StentorError.code
    data = jsontext.encode_line({"error": stream_error_message(error), "code": code})
    return b"event: error\ndata: " + data + b"\n\n"
