"""Authentication of the dashboard's API (the pages use `site.sessions`). Source: second contract, "Authentication".

With a key, every request must carry it in X-API-Key; a gateway credential is not accepted in its place. Without one
the service listens on loopback only (ensured at start), and cross-site requests, which reach loopback through a
browser, are rejected by their Host and Origin.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.web.allowed_hosts import LOOPBACK_NAMES, host_name
from stentor.web.errors import render_error
from stentor.web.request_context import header_values

RESPONSE_HEADERS = {"X-Content-Type-Options": "nosniff"}
CROSS_SITE_MESSAGE = (
    "Without a key the dashboard service answers only to its own address on this machine. Set DASHBOARD_API_KEY."
)


class DashboardAuthMiddleware:
    """ASGI middleware that authenticates all paths except `public` ones.

    Sets `state.principal`, and `state.credential` to the caller's credential for the gateway.
    """

    def __init__(self, app: ASGIApp, key: str | None, principal: Principal, public: frozenset[str]) -> None:
        self._app = app
        self._has_key = key is not None
        self._carries_key = dashboard_key_check(key)
        self._principal = principal
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rejection = None if scope["path"] in self._public else self._rejection(scope)
        if rejection is not None:
            await rejection(scope, receive, send)
            return
        scope.setdefault("state", {}).update(principal=self._principal, credential=_credential(scope))
        await self._app(scope, receive, send)

    def _rejection(self, scope: Scope) -> Response | None:
        if not self._has_key:
            return None if _is_local_request(scope) else render_error(scope, 403, "FORBIDDEN", CROSS_SITE_MESSAGE)
        if not header_values(scope, b"x-api-key"):
            return _unauthorized("Authentication required", "Send the key of the dashboard service as 'X-API-Key'.")
        if not self._carries_key(scope["headers"]):
            return _unauthorized("Invalid API key", "The key in X-API-Key is not the key of the dashboard service.")
        return None


def dashboard_key_check(key: str | None) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Return a check whether headers carry exactly one X-API-Key with this key; always false without a key."""
    digest = None if key is None else _digest(key.encode())

    def check(headers: Iterable[tuple[bytes, bytes]]) -> bool:
        keys = [value for name, value in headers if name == b"x-api-key"]
        # Repeated headers are ambiguous. Digests have equal length, so the timing does not reveal the key's length.
        return digest is not None and len(keys) == 1 and hmac.compare_digest(_digest(keys[0].strip()), digest)

    return check


def _credential(scope: Scope) -> str:
    """Return the caller's credential for the gateway: the bearer token, else the X-API-Key; may be empty."""
    for value in header_values(scope, b"authorization"):
        scheme, _, token = value.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    keys = header_values(scope, b"x-api-key")
    return keys[0].decode("latin-1").strip() if keys else ""


def _is_local_request(scope: Scope) -> bool:
    """Return whether the request has exactly one Host, on loopback, and no Origin or the same one. Fails closed."""
    hosts, origins = header_values(scope, b"host"), header_values(scope, b"origin")
    # The name must be one of loopback: a foreign name that resolves to 127.0.0.1 is DNS rebinding.
    if len(hosts) != 1 or len(origins) > 1 or host_name(hosts[0]) not in LOOPBACK_NAMES:
        return False
    # A page of another origin can send requests to loopback, but the browser adds its Origin.
    return not origins or origins[0].lower().partition(b"://")[2] == hosts[0].lower()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(error: str, message: str) -> Response:
    body = {"success": False, "error": error, "message": message}
    headers = {"WWW-Authenticate": 'ApiKey header="X-API-Key"'}
    return Response(jsontext.encode(body), 401, headers, "application/json")
