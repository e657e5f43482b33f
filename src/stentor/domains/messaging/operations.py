"""Operations on messages, and the route of the response stream. Source: core contract, "ATP REST"."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path
from pydantic import AfterValidator
from starlette.requests import Request

from stentor.auth.principal import Principal
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
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.sse import EventStreamResponse, SseEvent, StreamLimit
from stentor.web.wire import Caller, Enveloped, IdempotencyHeader, api_router, error_responses

MessageId = Annotated[str, Path(description="The message's id."), AfterValidator(decode_path_segment)]
LastEventId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=200)]
EVENT_STREAM = "text/event-stream"


class MessageOperations:
    """The operations on messages. Those that take a message but change nothing need only `read`."""

    def __init__(self, messaging: MessagingService) -> None:
        self._messaging = messaging

    @operation("messages.send", "write", "POST /atp/send", 202, (422,), fast=True, grpc="SendMessage")
    async def send(self, caller: Caller, body: MessageIn, idempotency_key: IdempotencyHeader = None) -> wire.Sent:
        """Queue a message and return its id, with which the response can be read later."""
        message, key = body.to_message(), None
        if idempotency_key is not None:
            digest = jsontext.sorted_digest(json_format.message_to_json(message))
            key = IdempotencyKey(caller.tenant, caller.name, "atp/send", idempotency_key, digest)
        return wire.Sent(success=True, message_id=await self._messaging.send(caller, message, key))

    @operation("messages.route", "read", "POST /atp/route", errors=(409, 422), envelope=True)
    async def route(self, caller: Caller, body: RouteIn) -> wire.RouteOut:
        """Return which agent would execute the message now, and why; nothing is sent."""
        return wire.RouteOut.of(self._messaging.route(caller, body.to_message()))

    @operation("messages.validate", "read", "POST /atp/validate", envelope=True)
    async def validate(self, caller: Caller, body: ValidateIn) -> wire.Validated:
        """Validate a message, given in the JSON format or as `text` in the text format; return all errors."""
        errors = _find_errors(self._messaging, caller, body)
        return wire.Validated.of(valid=not errors, errors=errors)

    @operation("messages.format", "read", "POST /atp/format", envelope=True)
    async def formatted(self, caller: Caller, body: MessageIn) -> wire.Formatted:
        """Return the text format of a message, and how it is parsed."""
        message = body.to_message()
        bodies.parse_body(message)
        self._messaging.resolve_sender(caller, message)
        text = format_message(message)
        # Parsed back from the text, so that the caller sees what a recipient sees.
        reread = parse_message(text)
        parsed = {"header": model.header_to_json(reread.header), "body": bodies.decode_content(reread.content)}
        return wire.Formatted.of(formatted=text, message=json_format.message_to_json(message), parsed=parsed)

    @operation("messages.modes", "read", "GET /atp/modes", envelope=True)
    async def modes(self, caller: Caller) -> wire.Modes:
        """List the values of header.mode."""
        return wire.Modes.of(modes=model.MODES)

    @operation("messages.priorities", "read", "GET /atp/priorities", envelope=True)
    async def priorities(self, caller: Caller) -> wire.Priorities:
        """List the values of header.priority, the most urgent first."""
        return wire.Priorities.of(priorities=model.PRIORITIES)

    @operation("messages.action_types", "read", "GET /atp/action-types", envelope=True)
    async def action_types(self, caller: Caller) -> wire.ActionTypes:
        """List the values of header.actionType."""
        return wire.ActionTypes.of(action_types=model.ACTION_TYPES)

    @operation("messages.template", "read", "GET /atp/template", envelope=True)
    async def starter(self, caller: Caller) -> wire.TemplateOut:
        """Return a valid example message and the meaning of its fields."""
        return wire.TemplateOut.model_validate(json_format.message_template())

    @operation("messages.get", "read", "GET /atp/message/{message_id}", errors=(404,), envelope=True)
    async def message(self, caller: Caller, message_id: MessageId) -> wire.StoredOut:
        """Return a message as it was sent, with its status."""
        stored = await self._messaging.get(caller, message_id)
        return wire.StoredOut.of(stored, message=stored.to_json, formatted=format_message(stored.atp_message))

    @operation("messages.response", "read", "GET /atp/response/{message_id}", envelope=True, has_own_route=True)
    async def response(self, caller: Caller, message_id: MessageId) -> wire.ResponseOut:
        """Return the response to a message. Raises NotFound until there is one."""
        stored = await self._messaging.get_answered(caller, message_id)
        return wire.ResponseOut.of(stored, **wire.provenance_block(stored))

    @operation("messages.queue", "read", "GET /atp/queue", envelope=True)
    async def queue(self, caller: Caller) -> wire.QueueOut:
        """Return how many messages are queued, by priority, and the oldest of them."""
        queue = await self._messaging.read_queue(caller.tenant)
        oldest = None
        if queue.oldest is not None:
            message_id, priority, created_at = queue.oldest
            oldest = wire.OldestOut(message_id=message_id, priority=priority, created_at=created_at)
        return wire.QueueOut(depth=queue.depth, oldest=oldest, counts=queue.counts)


def router(messaging: MessagingService, streams: ResponseStreams, limit: StreamLimit) -> APIRouter:
    """Build the route of the response, which is JSON or an event stream depending on Accept."""
    api = api_router("/atp", tags=["atp"])

    @api.get(
        "/response/{message_id}",
        operation_id="messages_response",
        response_model=Enveloped[wire.ResponseOut],
        responses={200: {"content": {EVENT_STREAM: {}}}, **error_responses(404, 410)},
    )
    async def response(
        request: Request, caller: Caller, message_id: MessageId, last_event_id: LastEventId = None
    ) -> Any:
        """Return the response to a message; 404 until there is one. As an event stream: the events of its task too."""
        if EVENT_STREAM in request.headers.get("accept", ""):
            stored = await messaging.get(caller, message_id)
            frames = _frames(streams, caller, stored, last_event_id)
            return EventStreamResponse(frames, limit, caller.stream_owner, wire.provenance_block(stored))
        return {"success": True, "data": await MessageOperations(messaging).response(caller, message_id)}

    return api


def _find_errors(messaging: MessagingService, caller: Principal, body: ValidateIn) -> list[FieldError]:
    """Return the errors with which `send` would reject the message or processing would certainly fail.

    Raises InvalidRequest if both formats are given.
    """
    fields = body.model_dump(exclude_none=True)
    text = fields.pop("text", None)
    if text is not None and fields:
        raise InvalidRequest("text: conflicts with the other fields. Give either the text or the JSON format.")
    try:
        message: AtpMessage = json_format.read_json_message(fields) if text is None else parse_message(text)
    except MessageInvalid as invalid:
        return invalid.field_errors
    errors = []
    try:
        messaging.resolve_sender(caller, message)
    except Forbidden:
        errors.append(
            FieldError("header.senderId", "is not the caller; leave it out, or name the key or an agent that has it")
        )
    try:
        bodies.parse_body(message)
        unavailable = messaging.unavailable_reason(message)
    except MessageInvalid as invalid:
        return errors + invalid.field_errors
    return errors if unavailable is None else [*errors, FieldError("header.targetZone", unavailable)]


async def _frames(
    streams: ResponseStreams, caller: Principal, stored: StoredMessage, last_event_id: str | None
) -> AsyncIterator[SseEvent]:
    async for kind, data, event_id in streams.follow(caller, stored, last_event_id):
        # The message's provenance_id, added last, would hide that of the event.
        provenance = {"event_provenance_id": data["provenance_id"]} if "provenance_id" in data else {}
        yield SseEvent(kind, {**data, **provenance, **wire.provenance_block(stored)}, event_id)
