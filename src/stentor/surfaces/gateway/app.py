"""Puts the gateway together: the routes of the domains behind the gate."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from stentor import __version__
from stentor.auth.keys import KeyRing
from stentor.domains.monitoring.api import PATHS
from stentor.surfaces.gateway import openapi
from stentor.web import errors, shortcut
from stentor.web.gate import BodyLimit, Gate, RateLimit
from stentor.web.requests import RequestContext
from stentor.web.shortcut import Shortcut
from stentor.web.timing import Times, Timing, templates
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
    times: Times | None = None,
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
    # In this order, because routes are tried one after the other and tasks are asked for most.
    api_routers, root_routers = list(api_routers), list(root_routers)
    for router in api_routers:
        app.include_router(router, prefix="/api/v1", responses=ERRORS)
    for router in root_routers:
        app.include_router(router, responses={400: ERRORS[400]})
    openapi.install(app)
    direct = shortcut.addresses("/api/v1", api_routers) | shortcut.addresses("", root_routers)
    gate = Gate(Shortcut(app, direct), keys, limit, PATHS | DOCUMENTS)
    known = templates("/api/v1", api_routers) | templates("", root_routers)
    return Timing(RequestContext(BodyLimit(gate, max_body)), times or Times(), direct, known)
