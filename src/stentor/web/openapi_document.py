"""Serves the OpenAPI document of an application: FastAPI's description, corrected to what the service really does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from stentor.core.jsontext import JsonObject
from stentor.web.wire import error_schemas

PATH = "/openapi.json"


def install(app: FastAPI, correct: Callable[[JsonObject], None]) -> None:
    """Make an application without an `openapi_url` serve its document, which `correct` changes in place."""
    building, content = asyncio.Lock(), b""

    async def serve(_: Request) -> Response:
        nonlocal content
        async with building:
            # In a thread: it may take seconds of processor time, in which others are to be answered.
            content = content or await asyncio.to_thread(_build, app, correct)
        return Response(content, media_type="application/json")

    app.add_route(PATH, serve, include_in_schema=False)


def _build(app: FastAPI, correct: Callable[[JsonObject], None]) -> bytes:
    schema = app.openapi()
    components = schema.setdefault("components", {})
    components["schemas"] = dict(sorted((error_schemas() | components.get("schemas", {})).items()))
    for operation in operations_of(schema):
        _remove_422(operation)
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    correct(schema)
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode()


def operations_of(schema: JsonObject) -> Iterator[JsonObject]:
    for operations in schema["paths"].values():
        yield from operations.values()


def add_security(schema: JsonObject, schemes: JsonObject) -> None:
    """Declare the schemes, each of which is enough for every operation that is not public."""
    schema["components"]["securitySchemes"] = schemes
    for operation in operations_of(schema):
        if operation.get("x-permission") != "public":
            operation["security"] = [{name: []} for name in schemes]


def _remove_422(operation: JsonObject) -> None:
    """Remove FastAPI's own response to malformed input, which is 400 here."""
    response = operation["responses"].get("422", {})
    if "HTTPValidationError" in str(response.get("content")):
        del operation["responses"]["422"]
