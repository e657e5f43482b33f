"""The gateway's OpenAPI document: its credentials, and problem+json beside the error envelope."""

from __future__ import annotations

from fastapi import FastAPI

from stentor.core.jsontext import JsonObject
from stentor.web import openapi_document
from stentor.web.errors import PROBLEM_MEDIA_TYPE

SECURITY: JsonObject = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
ENVELOPE = "#/components/schemas/ErrorAnswer"
PROBLEM_SCHEMA: JsonObject = {
    "title": "Problem",
    "description": "RFC 9457, for clients that accept it.",
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "request_id": {"type": "string"},
        "details": {"type": "object", "additionalProperties": True},
    },
    "required": ["type", "title", "status", "detail", "code", "request_id"],
}


def install(app: FastAPI) -> None:
    """Make the application, which has no `openapi_url`, serve the corrected document."""
    openapi_document.install(app, _correct)


def _correct(schema: JsonObject) -> None:
    schema["components"]["schemas"]["Problem"] = PROBLEM_SCHEMA
    openapi_document.add_security(schema, SECURITY)
    for operation in openapi_document.operations_of(schema):
        _add_problems(operation)


def _add_problems(operation: JsonObject) -> None:
    """Add problem+json to every response that has the error envelope."""
    for response in operation["responses"].values():
        content = response.get("content", {})
        if content.get("application/json", {}).get("schema", {}).get("$ref") == ENVELOPE:
            content[PROBLEM_MEDIA_TYPE] = {"schema": {"$ref": "#/components/schemas/Problem"}}
