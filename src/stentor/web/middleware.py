"""Middleware before all routes: body size limit, authentication, rate limit, and HEAD. Pure ASGI.

Fails closed: a path that is not listed as public needs a key, whether or not it exists.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

import msgspec
from fastapi import HTTPException
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.api_keys import KeyRing, digest_key
from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.web import errors
from stentor.web.errors import render_error, render_throttled
from stentor.web.sse import CALLER_CHECK

WINDOW_SECONDS = 60
"""Length of the fixed window of the rate limit."""
RATE_LIMITED_PREFIXES = ("/api/v1/", "/v1/")
"""Paths whose requests count against the rate limit."""
UNLIMITED_CALLS = (
    re.compile(
        r"POST /api/v1/(agents/.+/(claims|leave)|tasks/.+/(heartbeat|tokens|steps|effects|waits|suspend|complete|fail))"
        r"|GET /api/v1/(agents/[^/]+|tasks/.+/steps(/.+)?)"
    ),
    re.compile(r"[A-Z]+ /api/v1/sessions/.+/(items|pop|clear|values)"),
)
"""The calls of workers, and those of programs that keep their state in a session: only those that fail count, each sort
for itself. A worker whose heartbeats are limited loses its tasks, and a graph sends several of the others for each of
its steps. The paths are decoded, so an id or the key of a step may have slashes.
"""
PRINCIPAL_SCOPE_KEY = "stentor.principal"
"""Scope key with an authenticated caller. Only code in this process can set it, never a request from the network."""
NO_KEY = ("Authentication required", "Send a key as 'Authorization: Bearer <key>' or 'X-API-Key'.")
WRONG_KEY = ("Invalid API key", "This service does not know the key.")
TWO_KEYS = ("Invalid API key", "The request has two different keys: send one of them.")
AuthFailure = tuple[str, str]
"""A title and a message."""
CLOSE_CONNECTION = {"Connection": "close"}
"""For a response sent before the body was read: without it the server would read the rest, however long it is."""
SMALL_BODY_BYTES = 1_000_000
"""Maximum bytes of a body on paths that take no long texts."""


class BodySizeMiddleware:
    """Limits request bodies by the bytes that arrive, whatever Content-Length claims.

    Bodies above SMALL_BODY_BYTES are only allowed below `large_body_paths`. With `app_renders` the error is only raised
    where the application reads the body.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, large_body_paths: tuple[str, ...] = ("",), *, app_renders: bool = False
    ) -> None:
        self._app = app
        self._max = max_bytes
        self._large_body_paths = large_body_paths
        self._app_renders = app_renders

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_large = scope["path"].startswith(self._large_body_paths)
        limit = self._max if is_large else min(self._max, SMALL_BODY_BYTES)
        message = f"The body is larger than {limit} bytes."
        is_declared = _declared_length(scope) > limit
        if is_declared and not self._app_renders:
            await render_error(scope, 413, "PAYLOAD_TOO_LARGE", message, headers=CLOSE_CONNECTION)(scope, receive, send)
            return
        received_bytes = 0

        async def receive_limited() -> Message:
            nonlocal received_bytes
            received: Message = {} if is_declared else await receive()
            received_bytes += len(received.get("body", b""))
            if is_declared or received_bytes > limit:
                # FastAPI's own class: its body parsing would turn any other into a 400.
                raise HTTPException(413, message, CLOSE_CONNECTION)
            return received

        await self._app(scope, receive_limited, send)


def _declared_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            # More than 18 digits cannot be a real length, and int() raises for thousands of them.
            return int(value[-18:]) if len(value.lstrip(b"0")) <= 18 else sys.maxsize
    return 0


class RateWindow(msgspec.Struct):
    """The requests of one key in the current window; `ends` in seconds of the limiter's clock."""

    ends: float
    used: int = 0


class RateLimiter:
    """A fixed-window rate limiter per key, counted in this process only. `per_minute` 0 disables it.

    `clock` (seconds) must be one that nobody can set, or a window could last for years; `wall_clock` is for the header.
    """

    def __init__(
        self,
        per_minute: int,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.per_minute = per_minute
        self._clock, self._wall_clock = clock, wall_clock
        self._windows: dict[tuple[str, str], RateWindow] = {}

    def copy(self) -> RateLimiter:
        """Return a limiter with the same limit that has counted nothing."""
        return RateLimiter(self.per_minute, self._clock, self._wall_clock)

    def find_rejection(self, principal: Principal) -> dict[str, str] | None:
        """Return the headers of a rejection if the next request would be rejected, without counting it."""
        window = self._windows.get((principal.tenant, principal.name))
        if window is None or self._clock() >= window.ends or window.used < self.per_minute:
            return None
        return self.count_request(principal)[1]

    def count_request(self, principal: Principal) -> tuple[bool, dict[str, str]]:
        """Count one request; return whether it is allowed, and the rate limit headers of its response."""
        now = self._clock()
        key = (principal.tenant, principal.name)
        window = self._windows.get(key)
        if window is None or now >= window.ends:
            window = self._windows[key] = RateWindow(now + WINDOW_SECONDS)
        allowed = window.used < self.per_minute
        window.used += allowed
        remaining, wait_s = self.per_minute - window.used, max(1, int(window.ends - now + 0.999))
        headers = {
            "X-RateLimit-Limit": str(self.per_minute),
            "X-RateLimit-Remaining": str(remaining),
            "X-RateLimit-Reset": str(int(self._wall_clock() + window.ends - now + 0.999)),
            "RateLimit-Policy": f'"default";q={self.per_minute};w={WINDOW_SECONDS}',
            "RateLimit": f'"default";r={remaining};t={wait_s}',
        }
        if not allowed:
            headers["Retry-After"] = str(wait_s)
        return allowed, headers


class AuthMiddleware:
    """Authenticates the key of a request, then applies the rate limit."""

    def __init__(self, app: ASGIApp, keys: KeyRing, rate_limiter: RateLimiter, public: frozenset[str]) -> None:
        self._app = app
        self._keys = keys
        self._rate_limiter = rate_limiter
        self._unlimited = [(pattern, rate_limiter.copy()) for pattern in UNLIMITED_CALLS]
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"] in self._public:
            self._authenticate_optionally(scope)
            await self._app(scope, receive, send)
            return
        if PRINCIPAL_SCOPE_KEY in scope:
            scope.setdefault("state", {})["principal"] = scope[PRINCIPAL_SCOPE_KEY]
            await self._app(scope, receive, send)
            return
        principal = await _authenticate_recent(self._keys, scope["headers"])
        if not isinstance(principal, Principal):
            await _unauthorized(scope, *principal)(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["principal"] = principal
        state[CALLER_CHECK] = partial(_is_unchanged, self._keys, scope["headers"], principal)
        if not self._rate_limiter.per_minute or not scope["path"].startswith(RATE_LIMITED_PREFIXES):
            await self._app(scope, receive, send)
            return
        call = f"{scope['method']} {scope['path']}"
        failed = next((failed for pattern, failed in self._unlimited if pattern.fullmatch(call)), None)
        if failed is not None:
            await self._count_if_failed(failed, principal, scope, receive, send)
            return
        allowed, headers = self._rate_limiter.count_request(principal)
        if not allowed:
            await render_throttled(scope, rate_limit_message(headers), headers)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    async def _count_if_failed(
        self, failed: RateLimiter, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Count the call in `failed` if it fails; reject it once too many have failed."""
        if headers := failed.find_rejection(principal):
            await render_throttled(scope, rate_limit_message(headers), headers)(scope, receive, send)
            return

        async def send_and_count(message: Message) -> None:
            # Not 5xx and 409: the caller is not at fault. A cancel of 100 tasks must not cost a worker the others.
            if message["type"] == "http.response.start" and 400 <= message["status"] < 500 and message["status"] != 409:
                failed.count_request(principal)
            await send(message)

        await self._app(scope, receive, send_and_count)

    def _authenticate_optionally(self, scope: Scope) -> None:
        """Set the principal for public routes, which may return more to a caller with a key; ignore a wrong key."""
        principal = scope.get(PRINCIPAL_SCOPE_KEY) or authenticate(self._keys, scope["headers"])
        if isinstance(principal, Principal):
            scope.setdefault("state", {})["principal"] = principal


def authenticate(keys: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> Principal | AuthFailure:
    """Return the principal of the key in the headers (names in lower case), or the reason why there is none."""
    if keys.development_admin is not None:
        return keys.development_admin
    key = _presented_key(headers)
    if not isinstance(key, str):
        return key
    return keys.find(key) or _explain_refusal(keys, key)


def _explain_refusal(keys: KeyRing, key: str) -> AuthFailure:
    # Only the holder of the secret can ask.
    if (expired_at := keys.find_expiry(digest_key(key))) is None:
        return WRONG_KEY
    return WRONG_KEY[0], f"This key expired on {format_iso(expired_at)[:10]}: an admin can extend it."


async def _authenticate_recent(keys: KeyRing, headers: Iterable[tuple[bytes, bytes]]) -> Principal | AuthFailure:
    """Authenticate a request, also with a key that another process has just created."""
    result = authenticate(keys, headers)
    if isinstance(result, Principal) or not isinstance(key := _presented_key(headers), str):
        return result
    return await keys.find_recent(key) or result


async def _is_unchanged(keys: KeyRing, headers: Iterable[tuple[bytes, bytes]], principal: Principal) -> bool:
    return authenticate(keys, headers) == principal


def known_key_check(keys: KeyRing) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Return a check whether headers have a key of the ring; with SKIP_AUTH it is always False."""

    def check(headers: Iterable[tuple[bytes, bytes]]) -> bool:
        # With SKIP_AUTH every caller passes `authenticate`, which would say yes to a rebinding page as well.
        return keys.development_admin is None and isinstance(authenticate(keys, headers), Principal)

    return check


def rate_limit_message(headers: dict[str, str]) -> str:
    """Return the message for a request that `RateLimiter.count_request` rejected with these headers."""
    return (
        f"The key has used up its {headers['X-RateLimit-Limit']} requests of this minute. Try again in "
        f"{headers['Retry-After']} s; the operator can raise SERVICE_RATE_LIMIT_PER_MINUTE."
    )


def _presented_key(headers: Iterable[tuple[bytes, bytes]]) -> str | AuthFailure:
    """Return the one key in the headers. Two different ones are ambiguous: a proxy may have checked the other."""
    found = ""
    for name, value in headers:
        key = ""
        if name == b"authorization":
            scheme, _, credentials = value.decode("latin-1").partition(" ")
            key = credentials.strip() if scheme.lower() == "bearer" else ""
        elif name == b"x-api-key":
            key = value.decode("latin-1").strip()
        if key and found and key != found:
            return TWO_KEYS
        found = key or found
    return found or NO_KEY


def _unauthorized(scope: Scope, error: str, message: str) -> Response:
    if errors.is_openai_path(scope):
        # Claude Code would retry ten times.
        headers = {"WWW-Authenticate": "Bearer", **errors.NO_RETRY}
        return errors.render_v1_error(scope, 401, "INVALID_API_KEY", f"{error}. {message}", None, headers)
    if scope["path"] == "/":
        message = f"This is the API. People sign in to the dashboard, by default on port 8081. {message}"
    body = {"success": False, "error": error, "message": message}
    return Response(jsontext.encode(body), 401, {"WWW-Authenticate": "Bearer"}, "application/json")


class DefaultHeadersMiddleware:
    """Adds headers to each response that does not have them."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class HeadMiddleware:
    """Handles HEAD on these paths, whose routes only support GET, as GET without the body; monitors use it."""

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
