"""Check of the Host header against DNS rebinding.

A page of another site can make its own host name resolve to this machine; its requests then have that name as Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.web.errors import render_error

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
ANY_HOST = "*"
_PLAIN_NAME = re.compile(r"[a-z0-9._-]{1,253}")
Headers = Iterable[tuple[bytes, bytes]]
HasKnownKey = Callable[[Headers], bool]
"""Whether the headers have a known API key. An unknown key proves nothing: after DNS rebinding a page counts as
same-origin in its browser and may send any header.
"""


class AllowedHostsMiddleware:
    """Rejects requests whose Host is not allowed with 421. Fails closed for a malformed Host.

    Allowed as well are IP addresses (they cannot be rebound), requests without a Host (HTTP/1.0, which no browser
    sends), and requests with a known API key: a rebinding page has none, and a proxy on this machine forwards its
    clients' Host.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], admits: HasKnownKey) -> None:
        self._app = app
        self._admits = admits
        self._names = LOOPBACK_NAMES | frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        refused = [value for name, value in headers if name == b"host" and not self._is_allowed(value)]
        if scope["type"] != "http" or not refused or self._admits(headers):
            await self._app(scope, receive, send)
            return
        name = host_name(refused[0])
        subject = f"The host name {name}" if _PLAIN_NAME.fullmatch(name) else "This host name"
        message = f"{subject} is not allowed. The operator can allow it with SERVICE_ALLOWED_HOSTS."
        await render_error(scope, 421, "MISDIRECTED_REQUEST", message)(scope, receive, send)

    def _is_allowed(self, host: bytes) -> bool:
        name = host_name(host)
        return name in self._names or _is_address(name)


@lru_cache(maxsize=256)
def host_name(host: bytes) -> str:
    """Return the name in a Host header in lower case and without its port; empty if it is malformed."""
    try:
        return urlsplit("//" + host.decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def wrap_allowed_hosts(app: ASGIApp, names: tuple[str, ...], admits: HasKnownKey, *, loopback: bool) -> ASGIApp:
    """Wrap the application in the Host check.

    Without configured names only a listener on loopback is checked, against the names of this machine.
    """
    if ANY_HOST in names or not (names or loopback):
        return app
    return AllowedHostsMiddleware(app, names, admits)


@lru_cache(maxsize=256)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
