"""Routes of the contract that are not implemented or switched off: they return 501 instead of 404."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from stentor.core.errors import FeatureNotImplemented
from stentor.web.routes import GatewayRoute, requires_permission
from stentor.web.wire import API_PREFIX

MEMORY = {"memory": "admin"}
"""For a service whose memory is switched off."""
PREFIXES = {
    "llm": "read",
}
_SEARCHING = "stentor.looking"
"""Scope key: set while `_is_implemented` searches the routes, so that these routes do not match."""
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


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


def router(prefixes: Mapping[str, str]) -> APIRouter:
    """Return routes for each area with its permission; they are not in the OpenAPI."""
    api = APIRouter(prefix=API_PREFIX, route_class=LaterRoute, include_in_schema=False)
    for prefix, permission in prefixes.items():
        for path in (f"/{prefix}", f"/{prefix}/{{rest:path}}"):
            api.add_api_route(path, _not_implemented, methods=METHODS, openapi_extra=requires_permission(permission))
    return api


async def _not_implemented(request: Request) -> Response:
    raise FeatureNotImplemented(f"{request.url.path} is part of the API, but not available in this service.")
