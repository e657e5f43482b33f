"""The JSON form as JSON Schema, from the same table of fields that the codec checks with."""

from __future__ import annotations

from typing import Any

from stentor.domains.atp.header import FIELDS, Field
from stentor.domains.atp.model import MAX_SENDER


def _schema(field: Field) -> dict[str, Any]:
    """An optional one may be null or empty, which is none."""
    said = {"description": field.purpose}
    if field.values is not None:
        return {"type": "string", "enum": list(field.values), **said}
    if field.required:
        return {"type": "string", "minLength": 1, "maxLength": field.most, **said}
    return {"type": ["string", "null"], "maxLength": field.most, **said}


_SENDER = {
    "type": ["string", "null"],
    "minLength": 1,
    "maxLength": MAX_SENDER,
    "description": "Who sends: the caller, whether it says so or not.",
}
HEADER: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {field.json: _schema(field) for field in FIELDS} | {"senderId": _SENDER},
    "required": [field.json for field in FIELDS if field.required],
}
PAYLOAD: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"content": {"type": "string", "description": "The body, as text."}},
    "required": ["content"],
}
MESSAGE_ID = {
    "type": ["string", "null"],
    "format": "uuid",
    "description": "Of a message that was read before; what is sent gets an id of its own.",
}
MESSAGE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"header": HEADER, "payload": PAYLOAD, "messageId": MESSAGE_ID},
    "required": ["header", "payload"],
}
