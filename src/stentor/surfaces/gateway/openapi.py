"""The OpenAPI document, built once: FastAPI's description, corrected to what the service really does."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import FastAPI

from stentor.core.jsontext import JsonObject
from stentor.web.errors import PROBLEM_MEDIA_TYPE
from stentor.web.wire import error_schemas

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
    """Make the application serve the corrected document."""
    build_original = app.openapi

    def build_corrected() -> JsonObject:
        if app.openapi_schema is None:
            schema = build_original()
            _correct(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = build_corrected  # pyrefly: ignore[method-assign]


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
