"""Routes of the contract that this service does not have: they are named, and answer 501."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stentor.core.errors import NotBuilt
from stentor.web.routes import GatewayRoute, needs

MEMORY = {"memory": "admin"}
"""When it is switched off."""
PREFIXES = {
    "governance": "admin",
    "llm": "read",
    "webhooks": "admin",
}
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def router(prefixes: Mapping[str, str]) -> APIRouter:
    """Routes for each area (with its permission); not in the OpenAPI, because there is nothing to describe yet."""
    api = APIRouter(route_class=GatewayRoute, include_in_schema=False)
    for prefix, permission in prefixes.items():
        for path in (f"/{prefix}", f"/{prefix}/{{rest:path}}"):
            api.add_api_route(path, _not_built, methods=METHODS, openapi_extra=needs(permission))
    return api


async def _not_built(request: Request) -> Response:
    raise NotBuilt(f"{request.url.path} is part of the API, but this service does not have it.")
