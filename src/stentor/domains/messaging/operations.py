"""Operations on messages. Source: core contract, "ATP REST"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path
from pydantic import AfterValidator
from starlette.requests import Request

from stentor.core import jsontext
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import Forbidden, InvalidRequest
from stentor.domains.atp import bodies, json_format, model
from stentor.domains.atp.model import AtpMessage, FieldError, MessageInvalid
from stentor.domains.atp.text_format import format_message, parse_message
from stentor.domains.messaging import wire
from stentor.domains.messaging.model import StoredMessage
from stentor.domains.messaging.service import MessagingService, ResponseStreams
from stentor.domains.messaging.wire import MessageIn, RouteIn, ValidateIn
from stentor.web.operations import Operation
from stentor.web.request_context import decode_path_segment
from stentor.web.sse import EventStreamResponse, SseEvent, StreamLimit
from stentor.web.wire import Caller, Enveloped, IdempotencyHeader, api_router, error_responses

MessageId = Annotated[str, Path(description="The message's id."), AfterValidator(decode_path_segment)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=200)]
EVENT_STREAM = "text/event-stream"


class MessageOperations:
    """What callers can do with messages. Each method is an operation: see the table below."""

    def __init__(self, messaging: MessagingService) -> None:
        self._messaging = messaging

    async def send(self, caller: Caller, body: MessageIn, idempotency_key: IdempotencyHeader = None) -> wire.Sent:
        """Queue a message; its id asks for the answer later."""
        message, key = body.to_message(), None
        if idempotency_key is not None:
            digest = jsontext.sorted_digest(body.model_dump(exclude={"messageId"}))
            key = IdempotencyKey(caller.tenant, caller.name, "atp/send", idempotency_key, digest)
        return wire.Sent(success=True, message_id=await self._messaging.send(caller, message, key))

    async def route(self, caller: Caller, body: RouteIn) -> wire.RouteOut:
        """Who would carry the message out now, and why; nothing is sent."""
        return wire.RouteOut.of(self._messaging.route(caller, body.to_message()))

    async def validate(self, caller: Caller, body: ValidateIn) -> wire.Validated:
        """All that is wrong with a message, in its JSON form or as `text` in its wire form."""
        errors = _find_errors(self._messaging, caller, body)
        return wire.Validated.of(valid=not errors, errors=errors)

    async def formatted(self, caller: Caller, body: MessageIn) -> wire.Formatted:
        """The wire form of a message, and what a reader finds in it."""
        message = body.to_message()
        bodies.parse_body(message)
        self._messaging.resolve_sender(caller, message)
        text = format_message(message)
        read = parse_message(text)
        parsed = {"header": model.header_to_json(read.header), "body": bodies.decode_content(read.content)}
        return wire.Formatted.of(formatted=text, message=json_format.message_to_json(message), parsed=parsed)

    async def modes(self, caller: Caller) -> wire.Modes:
        """The values of header.mode."""
        return wire.Modes.of(modes=model.MODES)

    async def priorities(self, caller: Caller) -> wire.Priorities:
        """The values of header.priority, the most urgent first."""
        return wire.Priorities.of(priorities=model.PRIORITIES)

    async def action_types(self, caller: Caller) -> wire.ActionTypes:
        """The values of header.actionType."""
        return wire.ActionTypes.of(action_types=model.ACTION_TYPES)

    async def starter(self, caller: Caller) -> wire.TemplateOut:
        """A valid message to start from, and what its fields mean."""
        return wire.TemplateOut.model_validate(json_format.message_template())

    async def message(self, caller: Caller, message_id: MessageId) -> wire.StoredOut:
        """A message as it was sent, and how far it has come."""
        stored = await self._messaging.get(caller, message_id)
        return wire.StoredOut.of(stored, message=stored.to_json, formatted=format_message(stored.atp_message))

    async def response(self, caller: Caller, message_id: MessageId) -> wire.ResponseOut:
        """The answer to a message; NotFound until it is known."""
        stored = await self._messaging.get_answered(caller, message_id)
        return wire.ResponseOut.of(stored, **wire.provenance_block(stored))

    async def queue(self, caller: Caller) -> wire.QueueOut:
        """How many messages wait, of each priority, and which has waited longest."""
        queue = await self._messaging.read_queue(caller.tenant)
        oldest = None
        if queue.oldest is not None:
            message_id, priority, created_at = queue.oldest
            oldest = wire.OldestOut(message_id=message_id, priority=priority, created_at=created_at)
        return wire.QueueOut(depth=queue.depth, oldest=oldest, counts=queue.counts)


# Those that take a message and change nothing need no more than `read`.
OPERATIONS = [
    Operation(
        "messages.send", "write", MessageOperations.send, "POST /atp/send", 202, (422,), fast=True, grpc="SendMessage"
    ),
    Operation("messages.route", "read", MessageOperations.route, "POST /atp/route", errors=(409, 422), envelope=True),
    Operation("messages.validate", "read", MessageOperations.validate, "POST /atp/validate", envelope=True),
    Operation("messages.format", "read", MessageOperations.formatted, "POST /atp/format", envelope=True),
    Operation("messages.modes", "read", MessageOperations.modes, "GET /atp/modes", envelope=True),
    Operation("messages.priorities", "read", MessageOperations.priorities, "GET /atp/priorities", envelope=True),
    Operation("messages.action_types", "read", MessageOperations.action_types, "GET /atp/action-types", envelope=True),
    Operation("messages.template", "read", MessageOperations.starter, "GET /atp/template", envelope=True),
    Operation(
        "messages.get", "read", MessageOperations.message, "GET /atp/message/{message_id}", errors=(404,), envelope=True
    ),
    Operation(
        "messages.response",
        "read",
        MessageOperations.response,
        "GET /atp/response/{message_id}",
        envelope=True,
        has_own_route=True,
    ),
    Operation("messages.queue", "read", MessageOperations.queue, "GET /atp/queue", envelope=True),
]


def router(messaging: MessagingService, streams: ResponseStreams, limit: StreamLimit) -> APIRouter:
    """The route that answers with JSON or with a stream."""
    api = api_router("/atp", tags=["atp"])

    @api.get(
        "/response/{message_id}",
        response_model=Enveloped[wire.ResponseOut],
        responses={200: {"content": {EVENT_STREAM: {}}}, **error_responses(404)},
    )
    async def response(
        request: Request, caller: Caller, message_id: MessageId, last_event_id: LastEventId = None
    ) -> Any:
        """The answer to a message; 404 until it is known. As an event stream: what its task says meanwhile."""
        if EVENT_STREAM in request.headers.get("accept", ""):
            stored = await messaging.get(caller, message_id)
            frames = _frames(streams, stored, last_event_id)
            return EventStreamResponse(frames, limit, f"{caller.tenant}/{caller.name}", wire.provenance_block(stored))
        return {"success": True, "data": await MessageOperations(messaging).response(caller, message_id)}

    return api


def _find_errors(messaging: MessagingService, caller: Any, body: ValidateIn) -> list[FieldError]:
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
    errors = []
    try:
        messaging.resolve_sender(caller, message)
    except Forbidden:
        errors.append(FieldError("header.senderId", "is not the caller"))
    try:
        bodies.parse_body(message)
        missing = messaging.unavailable_reason(message)
    except MessageInvalid as invalid:
        return errors + invalid.field_errors
    return errors if missing is None else [*errors, FieldError("header.targetZone", missing)]


async def _frames(
    streams: ResponseStreams, stored: StoredMessage, last_event_id: str | None
) -> AsyncIterator[SseEvent]:
    async for kind, data, at in streams.follow(stored, last_event_id):
        own = {"event_provenance_id": data["provenance_id"]} if "provenance_id" in data else {}
        yield SseEvent(kind, {**data, **own, **wire.provenance_block(stored)}, at)
