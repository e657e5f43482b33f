"""A gateway over a few routes of its own, for what must hold whatever the routes are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
from fastapi import APIRouter
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from stentor.auth.api_keys import KeyRing, digest_key, parse_key_variable
from stentor.core import errors
from stentor.surfaces.gateway import app as gateway
from stentor.web.middleware import RateLimiter
from stentor.web.routes import PUBLIC, GatewayRoute, requires_permission
from stentor.web.wire import api_router

MAX_BODY = 1000
LEAK = "password hunter2 in /srv/stentor/secret.py line 7"
RAISED: dict[str, Exception] = {
    "exception": RuntimeError(LEAK),
    "lookup": KeyError(LEAK),
    "recursion": RecursionError(LEAK),
    "system": OSError(28, LEAK),
    "conflict": errors.Conflict("It has ended.", {"status": "completed"}),
    "unavailable": errors.StoreUnavailable("The database cannot be used."),
    "timeout": errors.Timeout("It took too long."),
    "throttled": errors.RateLimited("Too many streams."),
    "corrupt": errors.RegistryRecordError("The record of agent 7 cannot be read.", "7", "default"),
}


def build(limit: RateLimiter | None = None) -> ASGIApp:
    """GET /api/v1/things, /api/v1/raise/{what}, /api/v1/half and the public /health."""
    api, root = api_router(), APIRouter(route_class=GatewayRoute)

    @api.get("/things")
    async def things() -> dict[str, bool]:
        return {"ok": True}

    @api.get("/raise/{what}")
    async def fail(what: str) -> None:
        raise RAISED[what]

    @api.get("/half")
    async def half() -> StreamingResponse:
        return StreamingResponse(_half())

    @root.get("/health", openapi_extra=requires_permission(PUBLIC))
    async def health() -> dict[str, bool]:
        return {"ok": True}

    keys = [
        parse_key_variable("SERVICE_API_KEY_ONE", "key-one:admin:read"),
        parse_key_variable("SERVICE_API_KEY_TWO", "key-two:agent:read"),
    ]
    ring = KeyRing({digest_key(key): principal for key, principal in keys})
    return gateway.build([*api.routes, *root.routes], {}, ring, limit or RateLimiter(0), MAX_BODY)


async def _half() -> AsyncIterator[bytes]:
    yield b"one"
    raise RuntimeError(LEAK)


def client(app: ASGIApp, key: str = "key-one") -> httpx.AsyncClient:
    """Errors that leave the application are the test's to see."""
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://stentor.test", headers={"X-API-Key": key})
