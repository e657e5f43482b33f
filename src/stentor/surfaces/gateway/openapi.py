"""The OpenAPI, made once: what FastAPI writes, corrected to what the service does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from stentor.web.errors import PROBLEM_MEDIA_TYPE
from stentor.web.wire import error_schemas

SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
ENVELOPE = "#/components/schemas/ErrorAnswer"
PROBLEM_SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "RFC 9457, for a caller that accepts it.",
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
    """Have the application serve the corrected description."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            _correct(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _correct(schema: dict[str, Any]) -> None:
    components = schema.setdefault("components", {})
    components["securitySchemes"] = SECURITY
    schemas = components["schemas"] = dict(sorted((error_schemas() | components.get("schemas", {})).items()))
    schemas["Problem"] = PROBLEM_SCHEMA
    for operation in _operations(schema):
        _leave_out_422(operation)
        _name_problems(operation)
        if operation.get("x-permission") != "public":
            operation["security"] = [{"bearer": []}, {"key": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for operations in schema["paths"].values():
        yield from operations.values()


def _leave_out_422(operation: dict[str, Any]) -> None:
    """FastAPI's own answer to malformed input, which is 400 here."""
    answer = operation["responses"].get("422", {})
    if "HTTPValidationError" in str(answer.get("content")):
        del operation["responses"]["422"]


def _name_problems(operation: dict[str, Any]) -> None:
    for answer in operation["responses"].values():
        content = answer.get("content", {})
        if content.get("application/json", {}).get("schema", {}).get("$ref") == ENVELOPE:
            content[PROBLEM_MEDIA_TYPE] = {"schema": {"$ref": "#/components/schemas/Problem"}}
