"""What the routes of messaging take and answer. The codec of `atp` checks what a message holds, the same everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from stentor.core.errors import InvalidRequest
from stentor.domains.atp import json_format
from stentor.domains.atp.json_format import HEADER_SCHEMA, MESSAGE_ID_SCHEMA, MESSAGE_SCHEMA, PAYLOAD_SCHEMA
from stentor.domains.atp.json_format import example_message as example_message
from stentor.domains.atp.model import AtpMessage, header_to_json
from stentor.domains.messaging.model import MessageStatus, StoredMessage
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import CamelCaseModel, OmittedWhenNone, ResponseModel, Timestamp

AnyObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": True})]


Header = Annotated[dict[str, Any], WithJsonSchema(HEADER_SCHEMA)]
Payload = Annotated[dict[str, Any], WithJsonSchema(PAYLOAD_SCHEMA)]
ReadId = Annotated[str | None, WithJsonSchema(MESSAGE_ID_SCHEMA)]


class MessageIn(RequestModel):
    """A message to send."""

    model_config = example_config(**example_message())

    header: Header
    payload: Payload
    messageId: ReadId = None  # noqa: N815

    def to_message(self) -> AtpMessage:
        """Raises MessageInvalid."""
        return json_format.read_json_message(
            {"header": self.header, "payload": self.payload, "messageId": self.messageId}
        )


class RouteIn(RequestModel):
    """The `message` of the contract, or the message by itself as it is sent."""

    model_config = example_config(message=example_message())

    message: Annotated[dict[str, Any], WithJsonSchema(MESSAGE_SCHEMA)] | None = None
    header: Header | None = None
    payload: Payload | None = None
    messageId: ReadId = None  # noqa: N815

    def to_message(self) -> AtpMessage:
        """Raises MessageInvalid, InvalidRequest for both forms at once."""
        if self.message is None:
            return json_format.read_json_message(self.model_dump(exclude={"message"}))
        if self.model_fields_set != {"message"}:
            raise InvalidRequest("message: is the whole message; header and payload are not given beside it.")
        return json_format.read_nested_message("message", self.message)


class ValidateIn(RequestModel):
    """A message in its JSON form, or `text` with its wire form."""

    model_config = example_config(**example_message())

    text: str | None = None
    header: AnyObject | None = None
    payload: AnyObject | None = None
    messageId: str | None = None  # noqa: N815


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
    """What a reader of `formatted` finds: the header, and the body where it is JSON."""

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
    """`atp` is the header of the message that it answers: as `header`, like everywhere, and as its own fields, as it
    was before the others had one.
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


def provenance_block(stored: StoredMessage) -> dict[str, Any]:
    """What every answer to the execution of a message carries."""
    header = header_to_json(stored.header)
    return {"provenance_id": stored.provenance_id, "atp": {**header, "header": header}}
