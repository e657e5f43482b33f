"""The JSON form: `{header {mode, context, ...}, payload {content}, messageId?}`. As strict as the wire form.

The JSON form as JSON Schema, from the same table of fields that the codec checks with.

A message to start from, and what each of its fields means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stentor.core import jsontext
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
    """The message of a decoded JSON object. Raises MessageInvalid with all that is wrong."""
    flaws = [FieldError(name, UNKNOWN) for name in value if name not in ("header", "payload", "messageId")]
    values, sender = _header(value.get("header"), flaws)
    content = _payload(value.get("payload"), flaws)
    given = value.get("messageId")
    if given is not None and not (isinstance(given, str) and UUID_PATTERN.fullmatch(given)):
        flaws.append(FieldError("messageId", "must be a UUID"))
    if flaws:
        raise MessageInvalid(flaws)
    return AtpMessage(build_header(values), content, sender)


def read_nested_message(name: str, value: Mapping[str, Any]) -> AtpMessage:
    """The message in the field `name` of a decoded JSON object. Raises MessageInvalid, which names it so."""
    try:
        return read_json_message(value)
    except MessageInvalid as error:
        raise error.with_prefix(name) from None


def message_to_json(message: AtpMessage, message_id: str | None = None) -> dict[str, Any]:
    """The JSON form of a message."""
    header = model.header_to_json(message.header)
    if message.sender_id is not None:
        header["senderId"] = message.sender_id
    form: dict[str, Any] = {"header": header, "payload": {"content": message.content}}
    return form if message_id is None else {**form, "messageId": message_id}


def _header(header: Any, flaws: list[FieldError]) -> tuple[dict[str, str], str | None]:
    if not isinstance(header, Mapping):
        flaws.append(FieldError("header", MISSING if header is None else "must be an object"))
        return {}, None
    flaws += [
        FieldError(f"header.{name}", UNKNOWN) for name in header if name not in FIELDS_BY_JSON and name != "senderId"
    ]
    values: dict[str, str] = {}
    for field in HEADER_FIELDS:
        value = header.get(field.json)
        if value is None or (value == "" and not field.required):
            if field.required:
                flaws.append(FieldError(f"header.{field.json}", MISSING))
        elif found := find_value_problem(field, value):
            flaws.append(FieldError(f"header.{field.json}", found))
        else:
            values[field.name] = value
    return values, _sender(header.get("senderId"), flaws)


def _sender(sender: Any, flaws: list[FieldError]) -> str | None:
    if sender is None:
        return None
    if not isinstance(sender, str) or not 0 < len(sender) <= MAX_SENDER_LENGTH or not sender.isprintable():
        flaws.append(FieldError("header.senderId", f"must be a text of 1 to {MAX_SENDER_LENGTH} printable characters"))
        return None
    return sender


def _payload(payload: Any, flaws: list[FieldError]) -> str:
    if not isinstance(payload, Mapping):
        flaws.append(FieldError("payload", MISSING if payload is None else "must be an object"))
        return ""
    flaws += [FieldError(f"payload.{name}", UNKNOWN) for name in payload if name != "content"]
    content = payload.get("content")
    if found := MISSING if content is None else find_content_problem(content):
        flaws.append(FieldError("payload.content", found))
    return content if isinstance(content, str) else ""


def _field_schema(field: HeaderField) -> dict[str, Any]:
    """An optional one may be null or empty, which is none."""
    said = {"description": field.purpose}
    if field.values is not None:
        return {"type": "string", "enum": list(field.values), **said}
    if field.required:
        return {"type": "string", "minLength": 1, "maxLength": field.max_length, **said}
    return {"type": ["string", "null"], "maxLength": field.max_length, **said}


_SENDER_SCHEMA = {
    "type": ["string", "null"],
    "minLength": 1,
    "maxLength": MAX_SENDER_LENGTH,
    "description": "Who sends: the caller, whether it says so or not.",
}
HEADER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {field.json: _field_schema(field) for field in HEADER_FIELDS} | {"senderId": _SENDER_SCHEMA},
    "required": [field.json for field in HEADER_FIELDS if field.required],
}
PAYLOAD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"content": {"type": "string", "description": "The body, as text."}},
    "required": ["content"],
}
MESSAGE_ID_SCHEMA = {
    "type": ["string", "null"],
    "format": "uuid",
    "description": "Of a message that was read before; what is sent gets an id of its own.",
}
MESSAGE_SCHEMA: dict[str, Any] = {
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
        f"Optional: who sends, at most {MAX_SENDER_LENGTH} characters. It is you, whether you say so or not."
    ),
    "payload.content": "The body: a JSON object as text, in the form that zone and action take.",
}


def example_message() -> dict[str, Any]:
    """A valid message that has a text summarized."""
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


def message_template() -> dict[str, Any]:
    required = [f"header.{field.json}" for field in HEADER_FIELDS if field.required]
    optional = [f"header.{field.json}" for field in HEADER_FIELDS if not field.required]
    return {
        "template": example_message(),
        "requiredFields": [*required, "payload.content"],
        "optionalFields": [*optional, "header.senderId"],
        "annotations": {f"header.{field.json}": _annotation(field) for field in HEADER_FIELDS} | EXTRA_ANNOTATIONS,
    }


def _annotation(field: HeaderField) -> str:
    word = "Required" if field.required else "Optional"
    values = f"at most {field.max_length} characters" if field.values is None else f"one of {', '.join(field.values)}"
    return f"{word}: {values}. {field.purpose}"
