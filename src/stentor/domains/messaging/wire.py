"""Request and response models of the messaging routes. The content of a message is validated by `domains/atp`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.atp import json_format
from stentor.domains.atp.json_format import (
    HEADER_SCHEMA,
    MESSAGE_ID_SCHEMA,
    MESSAGE_SCHEMA,
    PAYLOAD_SCHEMA,
    example_message,
)
from stentor.domains.atp.model import AtpMessage, header_to_json
from stentor.domains.messaging.model import MessageStatus, StoredMessage
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import CamelCaseModel, OmittedWhenNone, ResponseModel, Timestamp

# Of any type, because a wrong one is among the errors that validation returns.
AnyObject = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]})
]
AnyText = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})]
Header = Annotated[JsonObject, WithJsonSchema(HEADER_SCHEMA)]
Payload = Annotated[JsonObject, WithJsonSchema(PAYLOAD_SCHEMA)]
ReadId = Annotated[str | None, WithJsonSchema(MESSAGE_ID_SCHEMA)]


class MessageIn(RequestModel):
    """A message to send."""

    model_config = example_config(**example_message())

    header: Header
    payload: Payload
    messageId: ReadId = None  # noqa: N815

    def to_message(self) -> AtpMessage:
        """Read the message. Raises MessageInvalid."""
        return json_format.read_json_message(
            {"header": self.header, "payload": self.payload, "messageId": self.messageId}
        )


class RouteIn(RequestModel):
    """A message in the field `message`, as in the contract, or directly, as it is sent."""

    model_config = example_config(message=example_message())

    message: Annotated[JsonObject, WithJsonSchema(MESSAGE_SCHEMA)] | None = None
    header: Header | None = None
    payload: Payload | None = None
    messageId: ReadId = None  # noqa: N815

    def to_message(self) -> AtpMessage:
        """Read the message. Raises MessageInvalid, and InvalidRequest if both forms are given."""
        if self.message is None:
            return json_format.read_json_message(self.model_dump(exclude={"message"}))
        if self.model_fields_set != {"message"}:
            raise InvalidRequest("message: conflicts with header and payload. Give either message or the other fields.")
        return json_format.read_nested_message("message", self.message)


class ValidateIn(RequestModel):
    """A message in the JSON format, or `text` in the text format."""

    model_config = example_config(**example_message())

    text: str | None = None
    header: AnyObject = None
    payload: AnyObject = None
    messageId: AnyText = None  # noqa: N815


class Sent(CamelCaseModel):
    success: bool
    message_id: str


class RouteOut(CamelCaseModel):
    target_agents: list[str]
    rationale: str


class FlawOut(ResponseModel):
    field: str
    message: str


class Validated(ResponseModel):
    valid: bool
    errors: list[FlawOut]


class MessageOut(CamelCaseModel):
    header: dict[str, str]
    payload: dict[str, str]
    message_id: str | None = OmittedWhenNone


class ParsedOut(ResponseModel):
    """The parsed text of `formatted`: the header, and the body if it is JSON."""

    header: dict[str, str]
    body: Any


class Formatted(ResponseModel):
    formatted: str
    message: MessageOut
    parsed: ParsedOut


class Modes(ResponseModel):
    modes: list[str]


class Priorities(ResponseModel):
    priorities: list[str]


class ActionTypes(CamelCaseModel):
    action_types: list[str]


class TemplateOut(CamelCaseModel):
    template: MessageOut
    required_fields: list[str]
    optional_fields: list[str]
    annotations: dict[str, str]


class StoredOut(ResponseModel):
    message_id: str
    message: MessageOut
    formatted: str
    status: MessageStatus
    route: RouteOut | None
    provenance_id: str
    created_at: Timestamp
    updated_at: Timestamp


class ResponseOut(ResponseModel):
    """The response to a message. `atp` is the header of that message: in the field `header`, as elsewhere, and
    repeated as fields of its own for older clients.
    """

    message_id: str
    status: MessageStatus
    response: Any
    route: RouteOut | None
    provenance_id: str
    atp: dict[str, str | dict[str, str]]


class OldestOut(ResponseModel):
    message_id: str
    priority: str
    created_at: Timestamp


class QueueOut(ResponseModel):
    depth: int
    oldest: OldestOut | None
    counts: dict[str, int]


def provenance_block(stored: StoredMessage) -> JsonObject:
    """Return the fields that every response to a message has: its provenance id and header."""
    header = header_to_json(stored.header)
    return {"provenance_id": stored.provenance_id, "atp": {**header, "header": header}}
