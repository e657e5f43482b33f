"""AtpService: send."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import TypeAdapter

from stentor.domains.messaging.api import build_idempotency_key
from stentor.domains.messaging.service import MessagingService
from stentor.domains.messaging.wire import MessageIn
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.generated import atp_pb2 as pb
from stentor.surfaces.grpc.methods import Method, Unary
from stentor.web.fast_routes import OptionalHeader, validate_value
from stentor.web.wire import IdempotencyHeader

SERVICE = pb.DESCRIPTOR.services_by_name["AtpService"].full_name
_MESSAGE = TypeAdapter(MessageIn)
_IDEMPOTENCY_KEY = OptionalHeader("idempotency_key", IdempotencyHeader)


class AtpService:
    def __init__(self, messaging: MessagingService) -> None:
        self._messaging = messaging

    def methods(self) -> Mapping[str, Method]:
        return {f"/{SERVICE}/SendMessage": Unary("write", pb.SendMessageRequest, self.send)}

    async def send(self, call: Call, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        body = validate_value(_MESSAGE, _body(request))
        key = build_idempotency_key(call.caller, body, _IDEMPOTENCY_KEY.check(call.metadata.text(b"idempotency-key")))
        return pb.SendMessageResponse(message_id=await self._messaging.send(call.caller, body.to_message(), key))


def _body(request: pb.SendMessageRequest) -> dict[str, dict[str, str]]:
    """The JSON form: what is empty is left out, and the codec says what is missing."""
    header = {field.json_name: value for field, value in request.header.ListFields()}
    return {"header": header, "payload": {"content": request.payload.content}}
