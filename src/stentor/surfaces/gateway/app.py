"""Puts the gateway together: the routes of the domains behind the gate."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from stentor import __version__
from stentor.auth.api_keys import KeyRing
from stentor.domains.monitoring.api import PATHS
from stentor.surfaces.gateway import openapi
from stentor.web import errors, fast_routes
from stentor.web.fast_routes import FastRouteMiddleware
from stentor.web.middleware import AuthMiddleware, BodySizeMiddleware, HeadMiddleware, RateLimiter
from stentor.web.request_context import RequestContextMiddleware, RequestDurationMiddleware, RequestDurations

LONG = ("/api/v1/tasks", "/api/v1/memory", "/api/v1/llm", "/api/v1/atp", "/v1/")
"""Paths below which bodies hold texts of people and agents; all others have small ones."""
DOCUMENTS = frozenset(("/openapi.json",))
DESCRIPTION = (
    "A control plane for software agents: routes tasks to the best agent that may be trusted with them, "
    "learns from outcomes, and keeps a run log that can prove who did what."
)


def build(
    routers: Iterable[APIRouter],
    keys: KeyRing,
    limit: RateLimiter,
    max_body: int,
    times: RequestDurations | None = None,
) -> ASGIApp:
    """The ASGI application. The routers know their whole paths; `max_body` is in bytes."""
    app = FastAPI(
        title="Stentor",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
    )
    errors.install_error_handlers(app)
    # In this order, because routes are tried one after the other and tasks are asked for most. Not by include_router,
    # which makes every route a second time, at the first request.
    routes = [route for router in routers for route in router.routes]
    app.router.routes.extend(routes)
    openapi.install(app)
    direct = fast_routes.collect_fast_handlers(routes)
    public = PATHS | DOCUMENTS
    gate = HeadMiddleware(AuthMiddleware(FastRouteMiddleware(app, direct), keys, limit, public), public)
    return RequestDurationMiddleware(
        RequestContextMiddleware(BodySizeMiddleware(gate, max_body, LONG)), times or RequestDurations(), direct
    )
