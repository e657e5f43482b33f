"""Assembles the ASGI application of the dashboard service: the API behind its key, the pages behind their session."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor import __version__
from stentor.auth.principal import Principal
from stentor.core.errors import NotFound
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard import api
from stentor.surfaces.dashboard.authentication import DashboardAuthMiddleware
from stentor.surfaces.dashboard.wire import DASHBOARD_ERROR_RESPONSES
from stentor.web import errors
from stentor.web.middleware import BodySizeMiddleware
from stentor.web.request_context import RequestContextMiddleware
from stentor.web.wire import error_schemas

OPENAPI_PATH = "/openapi.json"
MAX_BODY_BYTES = 2_000_000
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
DESCRIPTION = (
    "Read-only view of tasks and agents from the stores of a Stentor, and streamed task execution through its gateway."
)
API_KEY_SCHEME = {"type": "apiKey", "in": "header", "name": "X-API-Key"}


def build_dashboard_app(routers: list[APIRouter], key: str | None, principal: Principal, pages: ASGIApp) -> ASGIApp:
    """Build the ASGI application. All API callers act as `principal`; without `key` the API accepts local callers only.

    `pages` authenticates its own requests: a session that starts with a gateway key.
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
    app.add_api_route("/api/v1/{path:path}", _refuse_gateway_path, methods=_METHODS, include_in_schema=False)
    _install_openapi(app)
    public = frozenset((api.HEALTH_PATH, OPENAPI_PATH))
    authenticated_api = DashboardAuthMiddleware(app, key, principal, public)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] != "http" or scope["path"].startswith("/api/") or scope["path"] in public
        await (authenticated_api if is_api else pages)(scope, receive, send)

    return RequestContextMiddleware(BodySizeMiddleware(dispatch, MAX_BODY_BYTES))


def _refuse_gateway_path(path: str) -> None:
    """Say to a client of the API that it has the wrong port."""
    raise NotFound(
        f"No route /api/v1/{path} here: this is the dashboard. The API is on the gateway's port, by default 8080."
    )


def _install_openapi(app: FastAPI) -> None:
    """Serve an OpenAPI document that declares the key and omits FastAPI's 422, which this service never sends."""
    generate = app.openapi

    def openapi() -> JsonObject:
        if app.openapi_schema is None:
            app.openapi_schema = _correct_schema(generate())
        return app.openapi_schema

    app.openapi = openapi  # pyrefly: ignore[method-assign] - how FastAPI documents it


def _correct_schema(schema: JsonObject) -> JsonObject:
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {"key": API_KEY_SCHEME}
    components["schemas"] = error_schemas() | components.get("schemas", {})
    for operation in (operation for path in schema["paths"].values() for operation in path.values()):
        operation["responses"].pop("422", None)
        if operation.get("x-permission") != "public":
            operation["security"] = [{"key": []}]
    for unused in ("HTTPValidationError", "ValidationError"):
        components.get("schemas", {}).pop(unused, None)
    return schema
