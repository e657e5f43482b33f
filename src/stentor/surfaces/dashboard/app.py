"""Puts the dashboard service together: its routes behind its key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor import __version__
from stentor.auth.principal import Principal
from stentor.surfaces.dashboard import api
from stentor.surfaces.dashboard.authentication import DashboardAuthMiddleware
from stentor.surfaces.dashboard.wire import DASHBOARD_ERROR_RESPONSES
from stentor.web import errors
from stentor.web.middleware import BodySizeMiddleware
from stentor.web.request_context import RequestContextMiddleware
from stentor.web.wire import error_schemas

OPENAPI_PATH = "/openapi.json"
MAX_BODY_BYTES = 2_000_000
"""Bytes."""
DESCRIPTION = (
    "What tasks and agents do, read from the stores of a Stentor; and work that is streamed through its gateway."
)
API_KEY_SCHEME = {"type": "apiKey", "in": "header", "name": "X-API-Key"}


def build_dashboard_app(routers: list[APIRouter], key: str | None, principal: Principal, pages: ASGIApp) -> ASGIApp:
    """The ASGI application. Without a key its API answers to this machine alone; `principal` is who its callers are.

    The pages have a door of their own: a session, which begins with a key of the gateway.
    """
    app = FastAPI(
        title="Stentor dashboard service",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    errors.install_error_handlers(app)
    app.include_router(api.create_health_router())
    for router in routers:
        app.include_router(router, responses=DASHBOARD_ERROR_RESPONSES)
    _describe(app)
    public = frozenset((api.HEALTH_PATH, OPENAPI_PATH))
    gate = DashboardAuthMiddleware(app, key, principal, public)

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] != "http" or scope["path"].startswith("/api/") or scope["path"] in public
        await (gate if is_api else pages)(scope, receive, send)

    return RequestContextMiddleware(BodySizeMiddleware(either, MAX_BODY_BYTES))


def _describe(app: FastAPI) -> None:
    """Have the application serve its OpenAPI with its key, and without FastAPI's own answer to malformed input."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _corrected(plain())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _corrected(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {"key": API_KEY_SCHEME}
    components["schemas"] = error_schemas() | components.get("schemas", {})
    for operation in _operations(schema):
        operation["responses"].pop("422", None)
        if operation.get("x-permission") != "public":
            operation["security"] = [{"key": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(unused, None)
    return schema


def _operations(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for operations in schema["paths"].values():
        yield from operations.values()
