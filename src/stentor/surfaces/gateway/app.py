"""Assembles the gateway: the routes of the domains behind the middleware.

Routes of the contract that are not implemented or switched off return 501 instead of 404 (`LaterRoute`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Scope

from stentor import __version__
from stentor.auth.api_keys import KeyRing
from stentor.core.errors import FeatureNotImplemented
from stentor.core.jsontext import JsonObject
from stentor.domains.monitoring.api import PUBLIC_PATHS
from stentor.domains.people.operations import SIGN_IN_PATHS
from stentor.web import errors, fast_routes, openapi_document
from stentor.web.errors import PROBLEM_MEDIA_TYPE
from stentor.web.fast_routes import FastRouteMiddleware
from stentor.web.middleware import AuthMiddleware, BodySizeMiddleware, HeadMiddleware, RateLimiter
from stentor.web.operations import Operation
from stentor.web.request_context import RequestContextMiddleware, RequestDurations
from stentor.web.routes import GatewayRoute, requires_permission
from stentor.web.wire import API_PREFIX

LARGE_BODY_PATHS = ("/api/v1/tasks", "/api/v1/sessions", "/api/v1/memory", "/api/v1/llm", "/api/v1/atp", "/v1/")
"""Paths whose bodies contain texts of people and agents; all others only allow small bodies."""
DESCRIPTION = (
    "A control plane for software agents: routes tasks to the best agent that may be trusted with them, "
    "learns from outcomes, and keeps a run log that can prove who did what."
)
LATER_MEMORY = {"memory": "admin"}
"""For a service whose memory is switched off."""
# Each area with the permission that its missing routes would need, so that a 501 tells nothing to a key without it.
LATER_PREFIXES = {"llm": "read"}
_SEARCHING = "stentor.looking"
"""Scope key: set while `_is_implemented` searches the routes, so that these routes do not match."""
LATER_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
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


def build(
    routes: Sequence[BaseRoute],
    operations: Mapping[str, Operation],
    keys: KeyRing,
    rate_limiter: RateLimiter,
    max_body: int,
    durations: RequestDurations | None = None,
) -> ASGIApp:
    """Return the ASGI application.

    `routes` have complete paths and are tried in their order; those of operations call the ones in `operations`.
    `max_body` is in bytes.
    """
    app = FastAPI(
        title="Stentor",
        version=__version__,
        description=DESCRIPTION,
        openapi_url=None,
        # A redirect would drop the body of a POST at some clients, and hide a wrong path.
        redirect_slashes=False,
        strict_content_type=False,
    )
    errors.install_error_handlers(app)
    app.state.operations = operations
    # Not with include_router, which builds every route a second time at the first request.
    app.router.routes.extend(routes)
    openapi_document.install(app, _correct_document)
    fast_handlers, fast_templates = (
        fast_routes.collect_fast_handlers(routes),
        fast_routes.collect_fast_templates(routes),
    )
    public = PUBLIC_PATHS | SIGN_IN_PATHS | {openapi_document.PATH}
    routed = FastRouteMiddleware(app, fast_handlers, fast_templates, others=HeadMiddleware(app, public))
    protected = AuthMiddleware(routed, keys, rate_limiter, public)
    # The size before the key: a declared length above the limit is rejected without asking who calls.
    limited = BodySizeMiddleware(protected, max_body, LARGE_BODY_PATHS)
    # Outermost, so that rejected requests are measured too.
    return RequestContextMiddleware(limited, durations or RequestDurations(), fast_handlers)


class LaterRoute(GatewayRoute):
    """Matches only paths that no other route has, so that a wrong method on an implemented path stays a 405."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope.get(_SEARCHING):
            return Match.NONE, {}
        match = super().matches(scope)
        return (Match.NONE, {}) if match[0] != Match.NONE and _is_implemented(scope) else match


def _is_implemented(scope: Scope) -> bool:
    """Return whether another route has the path, with any method."""
    searching = {**scope, _SEARCHING: True}
    return any(route.matches(searching)[0] != Match.NONE for route in scope["app"].routes)


def create_later_routes(prefixes: Mapping[str, str]) -> APIRouter:
    """Return routes for each area with its permission; they are not in the OpenAPI."""
    api = APIRouter(prefix=API_PREFIX, route_class=LaterRoute, include_in_schema=False)
    for prefix, permission in prefixes.items():
        for path in (f"/{prefix}", f"/{prefix}/{{rest:path}}"):
            api.add_api_route(
                path, _not_implemented, methods=LATER_METHODS, openapi_extra=requires_permission(permission)
            )
    return api


async def _not_implemented(request: Request) -> Response:
    raise FeatureNotImplemented(f"{request.url.path} is part of the API, but not available in this service.")


def _correct_document(schema: JsonObject) -> None:
    """Add the credentials, and problem+json next to the error envelope, to the OpenAPI document."""
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
