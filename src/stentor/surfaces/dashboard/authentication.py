"""Who may ask the dashboard service. Source: second contract, "Authentication".

With a key every request must carry it in X-API-Key; a bearer credential of the gateway does not stand for it. Without
one the service listens on loopback only (the start sees to that), and a page of another site, which reaches loopback
through somebody's browser, is refused by the names in Host and Origin.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.web.allowed_hosts import LOOPBACK_NAMES, host_name
from stentor.web.errors import render_error

RESPONSE_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
CROSS_SITE_MESSAGE = (
    "Without a key the dashboard service answers only to its own address on this machine. Set DASHBOARD_API_KEY."
)


class DashboardAuthMiddleware:
    """The gate before all routes but the `public` ones; behind it `state.credential` is what the gateway may get."""

    def __init__(self, app: ASGIApp, key: str | None, principal: Principal, public: frozenset[str]) -> None:
        self._app = app
        self._keyed = key is not None
        self._knows = dashboard_key_check(key)
        self._principal = principal
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in RESPONSE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = None if scope["path"] in self._public else self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_safely)
            return
        scope.setdefault("state", {}).update(principal=self._principal, credential=_credential(scope))
        await self._app(scope, receive, send_safely)

    def _refusal(self, scope: Scope) -> Response | None:
        if not self._keyed:
            return None if _is_local_request(scope) else render_error(scope, 403, "FORBIDDEN", CROSS_SITE_MESSAGE)
        if not _header_values(scope, b"x-api-key"):
            return _unauthorized("Authentication required", "Send the key of the dashboard service as 'X-API-Key'.")
        if not self._knows(scope["headers"]):
            return _unauthorized("Invalid API key", "The key is not that of the dashboard service.")
        return None


def dashboard_key_check(key: str | None) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Whether headers carry the key of the service, if it has one."""
    digest = None if key is None else _digest(key.encode())

    def check(headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"x-api-key"]
        return digest is not None and len(given) == 1 and hmac.compare_digest(_digest(given[0].strip()), digest)

    return check


def _credential(scope: Scope) -> str:
    """The caller's own key for the gateway: a bearer credential, else the key that it came here with; may be empty."""
    for value in _header_values(scope, b"authorization"):
        scheme, _, token = value.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
    given = _header_values(scope, b"x-api-key")
    return given[0].decode("latin-1").strip() if given else ""


def _is_local_request(scope: Scope) -> bool:
    """Fails closed: exactly one Host of this machine, and no Origin but the same."""
    hosts, origins = _header_values(scope, b"host"), _header_values(scope, b"origin")
    if len(hosts) != 1 or len(origins) > 1 or host_name(hosts[0]) not in LOOPBACK_NAMES:
        return False
    return not origins or origins[0].lower().partition(b"://")[2] == hosts[0].lower()


def _header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for known, value in scope["headers"] if known == name]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _unauthorized(error: str, message: str) -> Response:
    body = {"success": False, "error": error, "message": message}
    headers = {"WWW-Authenticate": 'ApiKey header="X-API-Key"'}
    return Response(jsontext.encode(body), 401, headers, "application/json")
