"""How long requests take, by the template of their route: ids in a path never become labels. Pure ASGI, outermost.

Calls of gRPC are no requests of an ASGI server; who answers them counts them here.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable

from prometheus_client.core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.core.figures import USUAL, Histogram, Histograms, histograms

LABELS = ("route", "method", "status_class")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
UNROUTED = "unrouted"
"""The route of a request that was answered before a route was looked for, or for which there is none."""


class Times:
    """Until the head of the answer is sent: how long a stream stays open after it says nothing of the service."""

    def __init__(self) -> None:
        self._seen = Histograms(USUAL)
        self._found: dict[tuple[str, str, int], Histogram] = {}

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        found = self._found.get((route, method, status))
        (found or self._find(route, method, status)).observe(seconds)

    def _find(self, route: str, method: str, status: int) -> Histogram:
        """Remembered for methods of HTTP alone, because callers can make up others."""
        known = method in METHODS
        found = self._seen.of(route, method if known else "other", f"{status // 100}xx")
        if known:
            self._found[route, method, status] = found
        return found

    def figures(self) -> Iterable[Metric]:
        text = "Time from a request's head to the head of its answer, by the template of its route."
        yield histograms("stentor_http_request_duration_seconds", text, LABELS, self._seen.items())


class CallTimes:
    """The same for calls of gRPC: until the answer, and of a stream until it begins."""

    def __init__(self) -> None:
        self._seen = Histograms(USUAL)

    def observe(self, method: str, code: str, seconds: float) -> None:
        """`method` is one that the service has, `code` the name of a status of gRPC."""
        self._seen.of(method, code).observe(seconds)

    def figures(self) -> Iterable[Metric]:
        text = "Time from a gRPC call's head to its answer, by its method; of a stream until it begins."
        yield histograms("stentor_grpc_call_duration_seconds", text, ("method", "code"), self._seen.items())


class Timing:
    """`direct` are method and path of the routes that are found without the router."""

    def __init__(self, app: ASGIApp, times: Times, direct: Container[tuple[str, str]]) -> None:
        self._app = app
        self._times = times
        self._direct = direct

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                route, seconds = self._route(scope), time.perf_counter() - started
                self._times.observe(route, scope["method"], message["status"], seconds)
            await send(message)

        await self._app(scope, receive, timed)

    def _route(self, scope: Scope) -> str:
        if (scope["method"], scope["path"]) in self._direct:
            return str(scope["path"])
        return getattr(scope.get("route"), "path", UNROUTED)
