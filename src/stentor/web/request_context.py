"""The outermost layer: request id, trace, raw paths, and a last net under everything.

`X-Request-Id` of the caller is kept when it is harmless. An encoded slash stays inside its segment.

How long requests take, by the template of their route: ids in a path never become labels. Pure ASGI, outermost.

Calls of gRPC are no requests of an ASGI server; who answers them counts them here.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Container, Iterable, Sequence
from urllib.parse import unquote

from prometheus_client.core import Metric
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.core import ids, trace_context
from stentor.core.errors import NotFound
from stentor.core.metrics import REQUEST_BUCKETS_S, Histogram, LabeledHistogram, labeled_histogram_family
from stentor.web.errors import render_unexpected

ENCODED_SLASH = "\ufdd0"
"""Stands for an encoded slash while the router splits a path; not a character of any text."""

_HARMLESS = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
log = logging.getLogger(__name__)


class RequestContextMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = choose_request_id(_header(scope, b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            scope["path"] = "/".join(unquote(p).replace("/", ENCODED_SLASH) for p in raw.decode("latin-1").split("/"))
        started = ended = False

        async def send_with_id(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            with trace_context.use_traceparent(read_traceparent(_header(scope, b"traceparent"))):
                await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s %s failed (request_id %s)", scope["method"], scope["path"], request_id)
            if not started:
                await render_unexpected(scope)(scope, receive, send_with_id)
            elif not ended:
                # Half an answer is out: only a cut connection tells the caller that the rest is missing.
                raise


def choose_request_id(given: Iterable[bytes]) -> str:
    """The first of the caller's request ids that is harmless, else a new one."""
    return next((str(value.decode("ascii")) for value in given if _HARMLESS.match(value)), None) or ids.new_id()


def read_traceparent(given: Sequence[bytes]) -> str | None:
    """The caller's `traceparent`, when it sent one and only one."""
    return trace_context.parse_traceparent(given[0].decode("latin-1")) if len(given) == 1 else None


def _header(scope: Scope, name: bytes) -> list[bytes]:
    return [value for found, value in scope["headers"] if found == name]


def decode_path_segment(text: str) -> str:
    """A path parameter as the caller meant it. Raises NotFound for NUL, which no stored text has."""
    if "\0" in text:
        raise NotFound("Nothing has an id with the character NUL in it.")
    return text.replace(ENCODED_SLASH, "/")


LABELS = ("route", "method", "status_class")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
UNROUTED = "unrouted"
"""The route of a request that was answered before a route was looked for, or for which there is none."""


class RequestDurations:
    """Until the head of the answer is sent: how long a stream stays open after it says nothing of the service."""

    def __init__(self) -> None:
        self._seen = LabeledHistogram(REQUEST_BUCKETS_S)
        self._found: dict[tuple[str, str, int], Histogram] = {}

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        found = self._found.get((route, method, status))
        (found or self._find(route, method, status)).observe(seconds)

    def _find(self, route: str, method: str, status: int) -> Histogram:
        """Remembered for methods of HTTP alone, because callers can make up others."""
        known = method in METHODS
        found = self._seen.labels(route, method if known else "other", f"{status // 100}xx")
        if known:
            self._found[route, method, status] = found
        return found

    def collect_metrics(self) -> Iterable[Metric]:
        text = "Time from a request's head to the head of its answer, by the template of its route."
        yield labeled_histogram_family("stentor_http_request_duration_seconds", text, LABELS, self._seen.items())


class GrpcCallDurations:
    """The same for calls of gRPC: until the answer, and of a stream until it begins."""

    def __init__(self) -> None:
        self._seen = LabeledHistogram(REQUEST_BUCKETS_S)

    def observe(self, method: str, code: str, seconds: float) -> None:
        """`method` is one that the service has, `code` the name of a status of gRPC."""
        self._seen.labels(method, code).observe(seconds)

    def collect_metrics(self) -> Iterable[Metric]:
        text = "Time from a gRPC call's head to its answer, by its method; of a stream until it begins."
        yield labeled_histogram_family(
            "stentor_grpc_call_duration_seconds", text, ("method", "code"), self._seen.items()
        )


class RequestDurationMiddleware:
    """`direct` are method and path of the routes that are found without the router."""

    def __init__(self, app: ASGIApp, times: RequestDurations, fast_routes: Container[tuple[str, str]]) -> None:
        self._app = app
        self._times = times
        self._direct = fast_routes

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
