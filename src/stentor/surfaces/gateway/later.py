"""Routes of the contract that this service does not have: they are named, and answer 501."""

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
"""When it is switched off."""
PREFIXES = {
    "llm": "read",
}
_LOOKING = "stentor.looking"
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class LaterRoute(GatewayRoute):
    """Takes what no other route has a path for, so that another method of a built path stays a 405."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope.get(_LOOKING):
            return Match.NONE, {}
        found = super().matches(scope)
        return (Match.NONE, {}) if found[0] != Match.NONE and _built(scope) else found


def _built(scope: Scope) -> bool:
    """Whether a route but for these has the path, with whatever method."""
    looking = {**scope, _LOOKING: True}
    return any(route.matches(looking)[0] != Match.NONE for route in scope["app"].routes)


def router(prefixes: Mapping[str, str]) -> APIRouter:
    """Routes for each area (with its permission); not in the OpenAPI, because there is nothing to describe yet."""
    api = APIRouter(prefix=API_PREFIX, route_class=LaterRoute, include_in_schema=False)
    for prefix, permission in prefixes.items():
        for path in (f"/{prefix}", f"/{prefix}/{{rest:path}}"):
            api.add_api_route(path, _not_built, methods=METHODS, openapi_extra=requires_permission(permission))
    return api


async def _not_built(request: Request) -> Response:
    raise FeatureNotImplemented(f"{request.url.path} is part of the API, but this service does not have it.")
