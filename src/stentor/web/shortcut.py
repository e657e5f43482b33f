"""Direct routes are found by their whole address, before the router tries all routes one after the other.

They answer as they would behind the router: the same checks, the same errors. Source: docs/decisions, 0014.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.web import errors
from stentor.web.direct import DirectRoute, Handler

Addresses = dict[tuple[str, str], Handler]


def addresses(routes: Iterable[BaseRoute]) -> Addresses:
    """Method and path of each direct route that has no parameters in its path."""
    return {
        (method, route.path): route.get_route_handler()
        for route in routes
        if isinstance(route, DirectRoute) and "{" not in route.path
        for method in route.methods or ()
    }


class Shortcut:
    """Before the application: answers the direct routes, hands everything else on. Unexpected errors go up."""

    def __init__(self, app: ASGIApp, known: Addresses) -> None:
        self._app = app
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._known.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if handler is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await handler(request)
        except Exception as error:
            if (known := errors.handler_of(error)) is None:
                raise
            response = await known(request, error)
        await response(scope, receive, send)
