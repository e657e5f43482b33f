"""Assembles the gateway: the routes of the domains behind the middleware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from stentor import __version__
from stentor.auth.api_keys import KeyRing
from stentor.domains.monitoring.api import PUBLIC_PATHS
from stentor.domains.people.operations import SIGN_IN_PATHS
from stentor.surfaces.gateway import openapi
from stentor.web import errors, fast_routes
from stentor.web.fast_routes import FastRouteMiddleware
from stentor.web.middleware import AuthMiddleware, BodySizeMiddleware, HeadMiddleware, RateLimiter
from stentor.web.operations import Operation
from stentor.web.request_context import RequestContextMiddleware, RequestDurationMiddleware, RequestDurations

LARGE_BODY_PATHS = ("/api/v1/tasks", "/api/v1/sessions", "/api/v1/memory", "/api/v1/llm", "/api/v1/atp", "/v1/")
"""Paths whose bodies contain texts of people and agents; all others only allow small bodies."""
DESCRIPTION = (
    "A control plane for software agents: routes tasks to the best agent that may be trusted with them, "
    "learns from outcomes, and keeps a run log that can prove who did what."
)


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
        redirect_slashes=False,
        strict_content_type=False,
    )
    errors.install_error_handlers(app)
    app.state.operations = operations
    # Not with include_router, which builds every route a second time at the first request.
    app.router.routes.extend(routes)
    openapi.install(app)
    fast_handlers, fast_templates = (
        fast_routes.collect_fast_handlers(routes),
        fast_routes.collect_fast_templates(routes),
    )
    public = PUBLIC_PATHS | SIGN_IN_PATHS | {openapi.PATH}
    protected = HeadMiddleware(
        AuthMiddleware(FastRouteMiddleware(app, fast_handlers, fast_templates), keys, rate_limiter, public), public
    )
    return RequestDurationMiddleware(
        RequestContextMiddleware(BodySizeMiddleware(protected, max_body, LARGE_BODY_PATHS)),
        durations or RequestDurations(),
        fast_handlers,
    )
