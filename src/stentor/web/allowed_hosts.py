"""Which names a request may call this service by. A page of another site can have its own name lead to this machine
(DNS rebinding); its requests then carry that name as their Host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.web.errors import render_error

LOOPBACK_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
ANY_HOST = "*"
Headers = Iterable[tuple[bytes, bytes]]
HasKnownKey = Callable[[Headers], bool]
"""Whether the headers of a request carry a key that is known. One that is not known proves nothing: a page that led its
name here is of this origin to its browser, and may send every header.
"""


class AllowedHostsMiddleware:
    """Before an application at a listener. Fails closed: a Host that cannot be read is refused.

    Addresses are no names that another site could lead elsewhere, so they pass; a request without a Host comes from no
    browser, and passes too. So does one with a key that is known: a page that led its name here has none, and a proxy
    on this machine hands on the name that its clients used.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str], admits: HasKnownKey) -> None:
        self._app = app
        self._admits = admits
        self._names = LOOPBACK_NAMES | frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope.get("headers", ())
        if (
            scope["type"] != "http"
            or all(self._may(value) for name, value in headers if name == b"host")
            or self._admits(headers)
        ):
            await self._app(scope, receive, send)
            return
        message = "The service does not answer to this host name. The operator can allow it with SERVICE_ALLOWED_HOSTS."
        await render_error(scope, 421, "MISDIRECTED_REQUEST", message)(scope, receive, send)

    def _may(self, host: bytes) -> bool:
        name = host_name(host)
        return name in self._names or _is_address(name)


@lru_cache(maxsize=256)
def host_name(host: bytes) -> str:
    """The name in a Host header, without its port and in lower case; empty for what is none."""
    try:
        return urlsplit("//" + host.decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def wrap_allowed_hosts(app: ASGIApp, names: tuple[str, ...], admits: HasKnownKey, *, loopback: bool) -> ASGIApp:
    """The application behind the names that the operator lists; without a list behind this machine's own, where it
    listens on loopback, and behind none elsewhere.
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
