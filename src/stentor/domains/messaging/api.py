"""Routes of messaging. Source: core contract, "ATP REST"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import Forbidden, InvalidRequest
from stentor.domains.atp import bodies, json_format, model
from stentor.domains.atp.json_format import message_template
from stentor.domains.atp.model import AtpMessage, FieldError, MessageInvalid
from stentor.domains.atp.text_format import format_message, parse_message
from stentor.domains.messaging import wire
from stentor.domains.messaging.model import StoredMessage
from stentor.domains.messaging.service import MessagingService, ResponseStreams
from stentor.domains.messaging.wire import MessageIn, RouteIn, ValidateIn
from stentor.web.fast_routes import FastRoute
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import get_principal, requires_permission
from stentor.web.sse import EventStreamResponse, SseEvent, StreamLimit
from stentor.web.wire import (
    Caller,
    Enveloped,
    IdempotencyHeader,
    JsonResponse,
    api_router,
    enveloped_response,
    error_responses,
)

MessageId = Annotated[str, Path(description="The message's id."), AfterValidator(decode_path_segment)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=200)]
EVENTS = "text/event-stream"
ASKS: dict[str, Any] = {"openapi_extra": requires_permission("read")}
"""Routes that take a message and change nothing."""


def router(messaging: MessagingService, streams: ResponseStreams, limit: StreamLimit) -> APIRouter:
    api = api_router("/atp", tags=["atp"])

    async def send(request: Request, body: MessageIn, idempotency_key: IdempotencyHeader = None) -> JsonResponse:
        """Queue a message; its id asks for the answer later."""
        caller, message = get_principal(request), body.to_message()
        key = build_idempotency_key(caller, body, idempotency_key)
        return JsonResponse({"success": True, "messageId": await messaging.send(caller, message, key)}, 202)

    api.add_api_route(
        "/send",
        send,
        methods=["POST"],
        status_code=202,
        response_model=wire.Sent,
        responses=error_responses(422),
        route_class_override=FastRoute,
    )

    @api.post("/route", response_model=Enveloped[wire.RouteOut], responses=error_responses(409, 422), **ASKS)
    async def route(caller: Caller, body: RouteIn) -> JsonResponse:
        """Who would carry the message out now, and why; nothing is sent."""
        return enveloped_response(messaging.route(caller, body.to_message()))

    @api.post("/validate", response_model=Enveloped[wire.Validated], **ASKS)
    async def validate(caller: Caller, body: ValidateIn) -> JsonResponse:
        """All that is wrong with a message, in its JSON form or as `text` in its wire form."""
        flaws = _flaws(messaging, caller, body)
        return enveloped_response({"valid": not flaws, "errors": flaws})

    @api.post("/format", response_model=Enveloped[wire.Formatted], **ASKS)
    async def formatted(caller: Caller, body: MessageIn) -> JsonResponse:
        """The wire form of a message, and what a reader finds in it."""
        message = body.to_message()
        bodies.parse_body(message)
        messaging.resolve_sender(caller, message)
        text = format_message(message)
        read = parse_message(text)
        parsed = {"header": model.header_to_json(read.header), "body": bodies.decode_content(read.content)}
        return enveloped_response(
            {"formatted": text, "message": json_format.message_to_json(message), "parsed": parsed}
        )

    _lists(api)

    @api.get("/message/{message_id}", response_model=Enveloped[wire.StoredOut], responses=error_responses(404))
    async def message(caller: Caller, message_id: MessageId) -> JsonResponse:
        """A message as it was sent, and how far it has come."""
        return enveloped_response(wire.stored_to_json(await messaging.get(caller, message_id)))

    @api.get(
        "/response/{message_id}",
        response_model=Enveloped[wire.ResponseOut],
        responses={200: {"content": {EVENTS: {}}}, **error_responses(404)},
    )
    async def response(
        request: Request, caller: Caller, message_id: MessageId, last_event_id: LastEventId = None
    ) -> Response:
        """The answer to a message; 404 until it is known. As an event stream: what its task says meanwhile."""
        if EVENTS in request.headers.get("accept", ""):
            stored = await messaging.get(caller, message_id)
            frames = _frames(streams, stored, last_event_id)
            return EventStreamResponse(frames, limit, f"{caller.tenant}/{caller.name}", wire.provenance_block(stored))
        return enveloped_response(wire.response_to_json(await messaging.get_answered(caller, message_id)))

    @api.get("/queue", response_model=Enveloped[wire.QueueOut])
    async def queue(caller: Caller) -> JsonResponse:
        """How many messages wait, of each priority, and which has waited longest."""
        found = await messaging.read_queue(caller.tenant)
        oldest = None
        if found.oldest is not None:
            message_id, priority, created_at = found.oldest
            oldest = {"message_id": message_id, "priority": priority, "created_at": format_iso(created_at)}
        return enveloped_response({"depth": found.depth, "oldest": oldest, "counts": found.counts})

    return api


def build_idempotency_key(caller: Principal, body: MessageIn, value: str | None) -> IdempotencyKey | None:
    """The caller's Idempotency-Key for the sending of this message, on whichever surface it came."""
    if value is None:
        return None
    return IdempotencyKey(
        caller.tenant, caller.name, "atp/send", value, jsontext.sorted_digest(body.model_dump(exclude={"messageId"}))
    )


def _lists(api: APIRouter) -> None:
    """What a header may hold, and a message to start from."""

    @api.get("/modes", response_model=Enveloped[wire.Modes])
    async def modes(caller: Caller) -> JsonResponse:
        """The values of header.mode."""
        return enveloped_response({"modes": model.MODES})

    @api.get("/priorities", response_model=Enveloped[wire.Priorities])
    async def priorities(caller: Caller) -> JsonResponse:
        """The values of header.priority, the most urgent first."""
        return enveloped_response({"priorities": model.PRIORITIES})

    @api.get("/action-types", response_model=Enveloped[wire.ActionTypes])
    async def action_types(caller: Caller) -> JsonResponse:
        """The values of header.actionType."""
        return enveloped_response({"actionTypes": model.ACTION_TYPES})

    @api.get("/template", response_model=Enveloped[wire.TemplateOut])
    async def starter(caller: Caller) -> JsonResponse:
        """A valid message to start from, and what its fields mean."""
        return enveloped_response(message_template())


def _flaws(messaging: MessagingService, caller: Any, body: ValidateIn) -> list[FieldError]:
    """What `send` would refuse or could only fail, and for a text what the wire form does not allow.

    Raises InvalidRequest for both forms at once.
    """
    given = body.model_dump(exclude_none=True)
    text = given.pop("text", None)
    if text is not None and given:
        raise InvalidRequest("text: give the wire form or the JSON form, not both.")
    try:
        message: AtpMessage = json_format.read_json_message(given) if text is None else parse_message(text)
    except MessageInvalid as invalid:
        return invalid.field_errors
    flaws = []
    try:
        messaging.resolve_sender(caller, message)
    except Forbidden:
        flaws.append(FieldError("header.senderId", "is not the caller"))
    try:
        bodies.parse_body(message)
        missing = messaging.unavailable_reason(message)
    except MessageInvalid as invalid:
        return flaws + invalid.field_errors
    return flaws if missing is None else [*flaws, FieldError("header.targetZone", missing)]


async def _frames(
    streams: ResponseStreams, stored: StoredMessage, last_event_id: str | None
) -> AsyncIterator[SseEvent]:
    async for kind, data, at in streams.follow(stored, last_event_id):
        own = {"event_provenance_id": data["provenance_id"]} if "provenance_id" in data else {}
        yield SseEvent(kind, {**data, **own, **wire.provenance_block(stored)}, at)
