"""The OpenAPI document, built once: FastAPI's description, corrected to what the service really does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from stentor.core.jsontext import JsonObject
from stentor.web.errors import PROBLEM_MEDIA_TYPE
from stentor.web.wire import error_schemas

PATH = "/openapi.json"
SECURITY = {
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
    building, content = asyncio.Lock(), b""

    async def serve(_: Request) -> Response:
        nonlocal content
        async with building:
            # Takes seconds of processor time, in which others are to be answered.
            content = content or await asyncio.to_thread(_build, app)
        return Response(content, media_type="application/json")

    app.add_route(PATH, serve, include_in_schema=False)


def _build(app: FastAPI) -> bytes:
    schema = app.openapi()
    _correct(schema)
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()


def _correct(schema: JsonObject) -> None:
    components = schema.setdefault("components", {})
    components["securitySchemes"] = SECURITY
    schemas = components["schemas"] = dict(sorted((error_schemas() | components.get("schemas", {})).items()))
    schemas["Problem"] = PROBLEM_SCHEMA
    for operation in _operations(schema):
        _remove_422(operation)
        _add_problems(operation)
        if operation.get("x-permission") != "public":
            operation["security"] = [{"bearer": []}, {"key": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)


def _operations(schema: JsonObject) -> Iterator[JsonObject]:
    for operations in schema["paths"].values():
        yield from operations.values()


def _remove_422(operation: JsonObject) -> None:
    """Remove FastAPI's own response to malformed input, which is 400 here."""
    response = operation["responses"].get("422", {})
    if "HTTPValidationError" in str(response.get("content")):
        del operation["responses"]["422"]


def _add_problems(operation: JsonObject) -> None:
    """Add problem+json to every response that has the error envelope."""
    for response in operation["responses"].values():
        content = response.get("content", {})
        if content.get("application/json", {}).get("schema", {}).get("$ref") == ENVELOPE:
            content[PROBLEM_MEDIA_TYPE] = {"schema": {"$ref": "#/components/schemas/Problem"}}
