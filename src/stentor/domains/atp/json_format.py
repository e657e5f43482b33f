"""The JSON format: `{header {mode, context, ...}, payload {content}, messageId?}`, as strict as `text_format`.

Also its JSON Schema and a template, both derived from the field table that the parser validates with.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.core.validation.validation_errors import MAX_LISTED
from stentor.domains.atp import model
from stentor.domains.atp.header import (
    FIELDS_BY_JSON,
    HEADER_FIELDS,
    MISSING,
    HeaderField,
    build_header,
    find_content_problem,
    find_value_problem,
)
from stentor.domains.atp.model import MAX_SENDER_LENGTH, AtpMessage, FieldError, MessageInvalid

UUID_PATTERN = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
UNKNOWN = "is not a field of a message"


def read_json_message(value: Mapping[str, Any]) -> AtpMessage:
    """Read a message from a decoded JSON object. Raises MessageInvalid with every error found, of unknown fields the
    first.
    """
    errors = _find_unknown(value, ("header", "payload", "messageId"))
    values, sender = _header(value.get("header"), errors)
    content = _payload(value.get("payload"), errors)
    # Checked but not used: a message that is sent again gets a new id.
    message_id = value.get("messageId")
    if message_id is not None and not (isinstance(message_id, str) and UUID_PATTERN.fullmatch(message_id)):
        errors.append(FieldError("messageId", "must be a UUID"))
    if errors:
        raise MessageInvalid(errors)
    return AtpMessage(build_header(values), content, sender)


def read_nested_message(name: str, value: Mapping[str, Any]) -> AtpMessage:
    """Read a message from the field `name`. Raises MessageInvalid with that prefix on its field names."""
    try:
        return read_json_message(value)
    except MessageInvalid as error:
        raise error.with_prefix(name) from None


def message_to_json(message: AtpMessage, message_id: str | None = None) -> JsonObject:
    """Return the JSON format of a message."""
    header = model.header_to_json(message.header)
    if message.sender_id is not None:
        header["senderId"] = message.sender_id
    result: JsonObject = {"header": header, "payload": {"content": message.content}}
    return result if message_id is None else {**result, "messageId": message_id}


def _find_unknown(value: Mapping[str, Any], known: Collection[str], prefix: str = "") -> list[FieldError]:
    unknown = (FieldError(f"{prefix}{name}", UNKNOWN) for name in value if name not in known)
    return list(islice(unknown, MAX_LISTED))


def _header(header: object, errors: list[FieldError]) -> tuple[dict[str, str], str | None]:
    if not isinstance(header, Mapping):
        errors.append(FieldError("header", MISSING if header is None else "must be an object"))
        return {}, None
    errors += _find_unknown(header, (*FIELDS_BY_JSON, "senderId"), "header.")
    values: dict[str, str] = {}
    for field in HEADER_FIELDS:
        value = header.get(field.json)
        if value is None or (value == "" and not field.required):
            if field.required:
                errors.append(FieldError(f"header.{field.json}", MISSING))
        elif problem := find_value_problem(field, value):
            errors.append(FieldError(f"header.{field.json}", problem))
        else:
            values[field.name] = value
    return values, _sender(header.get("senderId"), errors)


def _sender(sender: object, errors: list[FieldError]) -> str | None:
    if sender is None:
        return None
    if not isinstance(sender, str) or not 0 < len(sender) <= MAX_SENDER_LENGTH or not sender.isprintable():
        errors.append(FieldError("header.senderId", f"must be a text of 1 to {MAX_SENDER_LENGTH} printable characters"))
        return None
    return sender


def _payload(payload: object, errors: list[FieldError]) -> str:
    if not isinstance(payload, Mapping):
        errors.append(FieldError("payload", MISSING if payload is None else "must be an object"))
        return ""
    errors += _find_unknown(payload, ("content",), "payload.")
    content = payload.get("content")
    if problem := MISSING if content is None else find_content_problem(content):
        errors.append(FieldError("payload.content", problem))
    return content if isinstance(content, str) else ""


def _field_schema(field: HeaderField) -> JsonObject:
    """Return the JSON Schema of a field. An optional field may be null or empty, which both mean absent."""
    common = {"description": field.purpose}
    if field.values is not None:
        return {"type": "string", "enum": list(field.values), **common}
    if field.required:
        return {"type": "string", "minLength": 1, "maxLength": field.max_length, **common}
    return {"type": ["string", "null"], "maxLength": field.max_length, **common}


_SENDER_SCHEMA = {
    "type": ["string", "null"],
    "minLength": 1,
    "maxLength": MAX_SENDER_LENGTH,
    "description": "The sender: the name of the caller's key or the id of one of its agents.",
}
HEADER_SCHEMA: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "properties": {field.json: _field_schema(field) for field in HEADER_FIELDS} | {"senderId": _SENDER_SCHEMA},
    "required": [field.json for field in HEADER_FIELDS if field.required],
}
PAYLOAD_SCHEMA: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"content": {"type": "string", "description": "The body as text."}},
    "required": ["content"],
}
MESSAGE_ID_SCHEMA = {
    "type": ["string", "null"],
    "format": "uuid",
    "description": "Id of a message that was read before; a sent message gets a new id.",
}
MESSAGE_SCHEMA: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"header": HEADER_SCHEMA, "payload": PAYLOAD_SCHEMA, "messageId": MESSAGE_ID_SCHEMA},
    "required": ["header", "payload"],
}


EXAMPLE_BODY = {
    "task": {"type": "summarize", "input": {"text": "Agents do tasks. Stentor routes each. It records why."}}
}
EXTRA_ANNOTATIONS = {
    "header.senderId": (
        f"Optional: the sender, at most {MAX_SENDER_LENGTH} characters. The caller's key or one of its agents."
    ),
    "payload.content": "A JSON object as text, of the type that zone and action require.",
}


def example_message() -> JsonObject:
    """Return a valid message that requests the summary of a text."""
    return {
        "header": {
            "mode": "direct",
            "context": "trace-0001",
            "priority": "normal",
            "actionType": "execute",
            "targetZone": "kernel",
            "specialNotes": "capability=summarize",
        },
        "payload": {"content": jsontext.dump(EXAMPLE_BODY)},
    }


def message_template() -> JsonObject:
    """Return an example message with the required and optional fields and their meaning."""
    required = [f"header.{field.json}" for field in HEADER_FIELDS if field.required]
    optional = [f"header.{field.json}" for field in HEADER_FIELDS if not field.required]
    return {
        "template": example_message(),
        "requiredFields": [*required, "payload.content"],
        "optionalFields": [*optional, "header.senderId"],
        "annotations": {f"header.{field.json}": _annotation(field) for field in HEADER_FIELDS} | EXTRA_ANNOTATIONS,
    }


def _annotation(field: HeaderField) -> str:
    label = "Required" if field.required else "Optional"
    values = f"at most {field.max_length} characters" if field.values is None else f"one of {', '.join(field.values)}"
    return f"{label}: {values}. {field.purpose}"
