"""Puts the gateway together: the routes of the domains behind the gate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from stentor import __version__
from stentor.auth.keys import KeyRing
from stentor.domains.monitoring.api import PATHS
from stentor.web import errors
from stentor.web.gate import BodyLimit, Gate, RateLimit
from stentor.web.requests import RequestContext
from stentor.web.wire import ERRORS

DOCUMENTS = frozenset(("/openapi.json",))
DESCRIPTION = (
    "A control plane for software agents: routes tasks to the best agent that may be trusted with them, "
    "learns from outcomes, and keeps a run log that can prove who did what."
)


def build(
    api_routers: Iterable[APIRouter],
    root_routers: Iterable[APIRouter],
    keys: KeyRing,
    limit: RateLimit,
    max_body: int,
) -> ASGIApp:
    """The ASGI application. `api_routers` stand under /api/v1, `max_body` is in bytes."""
    app = FastAPI(
        title="Stentor",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
    )
    errors.install(app)
    for router in root_routers:
        app.include_router(router, responses={400: ERRORS[400]})
    for router in api_routers:
        app.include_router(router, prefix="/api/v1", responses=ERRORS)
    _describe(app)
    gate = Gate(app, keys, limit, PATHS | DOCUMENTS)
    return RequestContext(BodyLimit(gate, max_body))


def _describe(app: FastAPI) -> None:
    """The OpenAPI, made once: without FastAPI's 422, with the two ways to send a key."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            schema.setdefault("components", {})["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            }
            for operations in schema["paths"].values():
                for operation in operations.values():
                    _tidy(operation)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _tidy(operation: dict[str, Any]) -> None:
    unprocessable = operation["responses"].get("422", {})
    if "HTTPValidationError" in str(unprocessable.get("content")):
        del operation["responses"]["422"]
    if operation.get("x-permission") != "public":
        operation["security"] = [{"bearer": []}, {"key": []}]
