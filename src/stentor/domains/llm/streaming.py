"""The streaming chat, over server-sent events, and what every stream of an answer shares.

The other routes are in `operations`; OpenAI's dialect is in `openai_api`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.errors import ProviderFault, StentorError
from stentor.domains.llm.call_guard import LlmCaller
from stentor.domains.llm.service import AnswerStream, ChatRouter
from stentor.domains.llm.wire import ChatBody
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.sse import HEARTBEAT_COMMENT, RawStreamResponse, StreamLimit
from stentor.web.wire import Caller, api_router, error_responses

DONE_FRAME = b"data: [DONE]\n\n"
HEARTBEAT_FRAME = b'event: heartbeat\ndata: {"delta":""}\n\n'
"""An event of its own; a client that reads every data line as a piece of the answer reads an empty one."""
SSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Lines `data: {delta}`"}
}


def llm_caller(principal: Principal) -> LlmCaller:
    return LlmCaller(principal.tenant, principal.name)


def router(chats: ChatRouter, streams: StreamLimit) -> APIRouter:
    api = api_router("/llm", tags=["llm"])

    @api.post("/stream", response_class=Response, responses={**error_responses(404, 409, 422, 502, 504), **SSE})
    async def stream(http: HttpRequest, caller: Caller, body: ChatBody) -> RawStreamResponse:
        """The same as chat, as server-sent events: a line `data: {delta}` per piece, at the end `data: [DONE]`."""
        streams.check(stream_limit_key(caller))
        answer = await cancel_on_disconnect(http, chats.stream(caller, body.to_request()))
        return await stream_response(answer, _pieces(answer), streams, caller, _failed, HEARTBEAT_FRAME)

    return api


async def stream_response(
    found: AnswerStream,
    frames: AsyncIterator[bytes],
    streams: StreamLimit,
    caller: Principal,
    failed: Any,
    heartbeat: bytes = HEARTBEAT_COMMENT,
) -> RawStreamResponse:
    """The streaming answer; the provider's work ends with it."""
    try:
        return RawStreamResponse(frames, streams, stream_limit_key(caller), failed, found.close, heartbeat)
    except BaseException:
        await found.close()
        raise


def stream_error_message(error: Exception) -> str:
    """What the last frame of a stream says that ended before its time; never in a provider's words."""
    if isinstance(error, ProviderFault):
        return "The stream broke off: the provider failed."
    return f"The stream broke off. {error.message if isinstance(error, StentorError) else 'The service failed.'}"


def stream_limit_key(caller: Principal) -> str:
    """Under which the open streams of a caller are counted."""
    return f"{caller.tenant}/{caller.name}"


async def _pieces(found: AnswerStream) -> AsyncIterator[bytes]:
    if found.choice:
        # Only who asked for `auto` reads it; without it nobody could tell the model, or grade the answer.
        told = {"delta": "", "model": found.name, "provenance_id": found.provenance_id}
        yield (
            b"event: routing\ndata: "
            + jsontext.encode_line(told | {"routing": msgspec.to_builtins(found.choice)})
            + b"\n\n"
        )
    async for delta in found:
        if delta.content:
            yield (
                b"data: "
                + jsontext.encode_line({"delta": delta.content} | ({"degraded": True} if found.degraded else {}))
                + b"\n\n"
            )
    yield DONE_FRAME


def _failed(error: Exception) -> bytes:
    code = error.code if isinstance(error, StentorError) else StentorError.code
    return (
        b"event: error\ndata: " + jsontext.encode_line({"error": stream_error_message(error), "code": code}) + b"\n\n"
    )
