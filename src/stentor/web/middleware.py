"""The gate before all routes: body cap, key, rate limit. Pure ASGI.

Fails closed: a path that is not listed as public needs a key, whether or not it exists.

HEAD for routes that only know GET: monitors ask that way. Pure ASGI.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Container, Iterable

import msgspec
from fastapi import HTTPException
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.api_keys import KeyRing
from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.web import errors
from stentor.web.errors import render_error, render_throttled

WINDOW_SECONDS = 60
"""Seconds of the fixed window."""


RATE_LIMITED_PREFIXES = ("/api/v1/", "/v1/")
"""Paths whose requests count."""
PRINCIPAL_SCOPE_KEY = "stentor.principal"
"""A key of the scope that no network server fills: the caller, told by a part of this process that knows who asks."""
NO_KEY = ("Authentication required", "Send a key as 'Authorization: Bearer <key>' or 'X-API-Key'.")
WRONG_KEY = ("Invalid API key", "The key is not one that this service knows.")
AuthFailure = tuple[str, str]
"""What is refused, and a sentence about it."""
CLOSE_CONNECTION = {"Connection": "close"}
"""For an answer before the body's end: else the rest of it is read, however long it is."""


SMALL_BODY_BYTES = 1_000_000
"""Bytes of a body where no long text belongs."""


class BodySizeMiddleware:
    """Counts the bytes that really come, whatever Content-Length says. With `long` a body may be larger than SMALL
    only below these paths.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, large_body_paths: tuple[str, ...] = ("",)) -> None:
        self._app = app
        self._max = max_bytes
        self._long = large_body_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._max if scope["path"].startswith(self._long) else min(self._max, SMALL_BODY_BYTES)
        message = f"The body is larger than {most} bytes."
        if _declared_length(scope) > most:
            await render_error(scope, 413, "PAYLOAD_TOO_LARGE", message, headers=CLOSE_CONNECTION)(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            received = await receive()
            seen += len(received.get("body", b""))
            if seen > most:
                # FastAPI's own class: any other would become a 400 in its body parsing.
                raise HTTPException(413, message, CLOSE_CONNECTION)
            return received

        await self._app(scope, counted, send)


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            # No body has a length of more digits, and int() refuses thousands of them.
            return int(value[-18:]) if len(value.lstrip(b"0")) <= 18 else sys.maxsize
    return 0


class RateWindow(msgspec.Struct):
    ends: float
    used: int = 0


class RateLimiter:
    """A fixed window per key, counted in this process. 0 switches it off."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.time) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._windows: dict[tuple[str, str], RateWindow] = {}

    def count_request(self, principal: Principal) -> tuple[bool, dict[str, str]]:
        """Count one request; answers whether it may pass, and the headers that say so."""
        now = self._clock()
        key = (principal.tenant, principal.name)
        window = self._windows.get(key)
        if window is None or now >= window.ends:
            window = self._windows[key] = RateWindow(now + WINDOW_SECONDS)
        allowed = window.used < self.per_minute
        window.used += allowed
        left, wait = self.per_minute - window.used, max(1, int(window.ends - now + 0.999))
        headers = {
            "X-RateLimit-Limit": str(self.per_minute),
            "X-RateLimit-Remaining": str(left),
            "X-RateLimit-Reset": str(int(window.ends + 0.999)),
            "RateLimit-Policy": f'"default";q={self.per_minute};w={WINDOW_SECONDS}',
            "RateLimit": f'"default";r={left};t={wait}',
        }
        if not allowed:
            headers["Retry-After"] = str(wait)
        return allowed, headers


class AuthMiddleware:
    """Key to principal, then the rate limit for protected routes."""

    def __init__(self, app: ASGIApp, keys: KeyRing, limit: RateLimiter, public: frozenset[str]) -> None:
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
        if PRINCIPAL_SCOPE_KEY in scope:
            scope.setdefault("state", {})["principal"] = scope[PRINCIPAL_SCOPE_KEY]
            await self._app(scope, receive, send)
            return
        principal = authenticate(self._keys, scope["headers"])
        if not isinstance(principal, Principal):
            await _unauthorized(scope, *principal)(scope, receive, send)
            return
        scope.setdefault("state", {})["principal"] = principal
        if not self._limit.per_minute or not scope["path"].startswith(RATE_LIMITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        allowed, headers = self._limit.count_request(principal)
        if not allowed:
            await render_throttled(scope, rate_limit_message(headers), headers)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _recognise(self, scope: Scope) -> None:
        """A public route may say more to a caller with a key. A wrong key is none: probes send all kinds of things."""
        principal = scope.get(PRINCIPAL_SCOPE_KEY) or authenticate(self._keys, scope["headers"])
        if isinstance(principal, Principal):
            scope.setdefault("state", {})["principal"] = principal


def authenticate(keys: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> Principal | AuthFailure:
    """Who presents a key in these headers, whose names are in lower case; or why nobody does."""
    if keys.development_admin is not None:
        return keys.development_admin
    key = _presented_key(headers)
    if key is None:
        return NO_KEY
    return keys.find(key) or WRONG_KEY


def known_key_check(keys: KeyRing) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Whether headers carry a key of the ring; nothing does where keys are not looked at (SKIP_AUTH)."""

    def check(headers: Iterable[tuple[bytes, bytes]]) -> bool:
        return keys.development_admin is None and isinstance(authenticate(keys, headers), Principal)

    return check


def rate_limit_message(headers: dict[str, str]) -> str:
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
    if errors.is_openai_path(scope):
        return errors.render_openai_error(
            401, "INVALID_API_KEY", f"{error}. {message}", None, {"WWW-Authenticate": "Bearer"}
        )
    body = {"success": False, "error": error, "message": message}
    return Response(jsontext.encode(body), 401, {"WWW-Authenticate": "Bearer"}, "application/json")


class HeadMiddleware:
    """Answers HEAD on these paths as GET, without the body."""

    def __init__(self, app: ASGIApp, paths: Container[str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_head)
