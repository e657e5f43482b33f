"""The gate before all routes: body cap, key, rate limit. Pure ASGI.

Fails closed: a path that is not listed as public needs a key, whether or not it exists.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

import msgspec
from fastapi import HTTPException
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.keys import KeyRing
from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.web import openai_errors
from stentor.web.errors import render, throttled

WINDOW = 60
"""Seconds of the fixed window."""


LIMITED = ("/api/v1/", "/v1/")
"""Paths whose requests count."""
INSIDE = "stentor.principal"
"""A key of the scope that no network server fills: the caller, told by a part of this process that knows who asks."""
NO_KEY = ("Authentication required", "Send a key as 'Authorization: Bearer <key>' or 'X-API-Key'.")
WRONG_KEY = ("Invalid API key", "The key is not one that this service knows.")
Refusal = tuple[str, str]
"""What is refused, and a sentence about it."""
HANG_UP = {"Connection": "close"}
"""For an answer before the body's end: else the rest of it is read, however long it is."""


SMALL = 1_000_000
"""Bytes of a body where no long text belongs."""


class BodyLimit:
    """Counts the bytes that really come, whatever Content-Length says. With `long` a body may be larger than SMALL
    only below these paths.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, long: tuple[str, ...] = ("",)) -> None:
        self._app = app
        self._max = max_bytes
        self._long = long

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._max if scope["path"].startswith(self._long) else min(self._max, SMALL)
        message = f"The body is larger than {most} bytes."
        if _declared_length(scope) > most:
            await render(scope, 413, "PAYLOAD_TOO_LARGE", message, headers=HANG_UP)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            received = await receive()
            seen += len(received.get("body", b""))
            if seen > most:
                # FastAPI's own class: any other would become a 400 in its body parsing.
                raise HTTPException(413, message, HANG_UP)
            return received

        await self._app(scope, counted, send)


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            # No body has a length of more digits, and int() refuses thousands of them.
            return int(value[-18:]) if len(value.lstrip(b"0")) <= 18 else sys.maxsize
    return 0


class Window(msgspec.Struct):
    ends: float
    used: int = 0


class RateLimit:
    """A fixed window per key, counted in this process. 0 switches it off."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.time) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._windows: dict[tuple[str, str], Window] = {}

    def take(self, principal: Principal) -> tuple[bool, dict[str, str]]:
        """Count one request; answers whether it may pass, and the headers that say so."""
        now = self._clock()
        key = (principal.tenant, principal.name)
        window = self._windows.get(key)
        if window is None or now >= window.ends:
            window = self._windows[key] = Window(now + WINDOW)
        allowed = window.used < self.per_minute
        window.used += allowed
        left, wait = self.per_minute - window.used, max(1, int(window.ends - now + 0.999))
        headers = {
            "X-RateLimit-Limit": str(self.per_minute),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": str(int(window.ends + 0.999)),
            "RateLimit-Policy": f'"default";q={self.per_minute};w={WINDOW}',
            "RateLimit": f'"default";r={left};t={wait}',
        }
        if not allowed:
            headers["Retry-After"] = str(wait)
        return allowed, headers


class Gate:
    """Key to principal, then the rate limit for protected routes."""

    def __init__(self, app: ASGIApp, keys: KeyRing, limit: RateLimit, public: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._limit = limit
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in self._public:
            self._recognise(scope)
            await self._app(scope, receive, send)
            return
        if INSIDE in scope:
            scope.setdefault("state", {})["principal"] = scope[INSIDE]
            await self._app(scope, receive, send)
            return
        principal = authenticate(self._keys, scope["headers"])
        if not isinstance(principal, Principal):
            await _unauthorized(scope, *principal)(scope, receive, send)
            return
        scope.setdefault("state", {})["principal"] = principal
        if not self._limit.per_minute or not scope["path"].startswith(LIMITED):
            await self._app(scope, receive, send)
            return
        allowed, headers = self._limit.take(principal)
        if not allowed:
            await throttled(scope, used_up(headers), headers)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _recognise(self, scope: Scope) -> None:
        """A public route may say more to a caller with a key. A wrong key is none: probes send all kinds of things."""
        principal = scope.get(INSIDE) or authenticate(self._keys, scope["headers"])
        if isinstance(principal, Principal):
            scope.setdefault("state", {})["principal"] = principal


def authenticate(keys: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> Principal | Refusal:
    """Who presents a key in these headers, whose names are in lower case; or why nobody does."""
    if keys.development_admin is not None:
        return keys.development_admin
    key = _presented_key(headers)
    if key is None:
        return NO_KEY
    return keys.find(key) or WRONG_KEY


def knows_key(keys: KeyRing) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Whether headers carry a key of the ring; nothing does where keys are not looked at (SKIP_AUTH)."""

    def check(headers: Iterable[tuple[bytes, bytes]]) -> bool:
        return keys.development_admin is None and isinstance(authenticate(keys, headers), Principal)

    return check


def used_up(headers: dict[str, str]) -> str:
    """What a caller reads whom `RateLimit.take` did not let pass."""
    return f"The key's requests of this minute are used up. Try again in {headers['Retry-After']} s."


def _presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    bearer = api_key = None
    for name, value in headers:
        if name == b"authorization":
            scheme, _, credentials = value.decode("latin-1").partition(" ")
            bearer = credentials.strip() if scheme.lower() == "bearer" else None
        elif name == b"x-api-key":
            api_key = value.decode("latin-1").strip()
    return bearer or api_key or None


def _unauthorized(scope: Scope, error: str, message: str) -> Response:
    if openai_errors.speaks(scope):
        return openai_errors.render(401, "INVALID_API_KEY", f"{error}. {message}", None, {"WWW-Authenticate": "Bearer"})
    body = {"success": False, "error": error, "message": message}
    return Response(jsontext.encode(body), 401, {"WWW-Authenticate": "Bearer"}, "application/json")
