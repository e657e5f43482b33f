"""The outermost middleware: request id, trace context, encoded slashes, unexpected errors, and request durations.

Durations are labelled with the template of the route, never with ids in a path. gRPC calls do not pass ASGI; the gRPC
surface records them in `GrpcCallDurations`.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Container, Iterable, Sequence
from urllib.parse import unquote

from prometheus_client.core import Metric
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.core import ids, trace_context
from stentor.core.errors import NotFound
from stentor.core.metrics import REQUEST_BUCKETS_S, Histogram, HistogramSeries
from stentor.web.errors import render_unexpected

ENCODED_SLASH = "\ufdd0"
"""Replaces an encoded slash while the router splits a path; a Unicode noncharacter that no text contains."""
LABELS = ("route", "method", "status_class")
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
UNROUTED = "unrouted"
"""The route label of a request that got a response before routing, or matched no route."""
_CONTEXT_HEADERS = frozenset((b"x-request-id", b"traceparent", b"cookie"))
_NOT_STORED = (b"cache-control", b"no-store")
"""For responses without a Cache-Control: a proxy does not know that they depend on X-API-Key, and some store whatever
has a path such as /x.css."""
_SAFE_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
log = logging.getLogger(__name__)


class RequestContextMiddleware:
    """Sets request id and trace context, keeps caches out, measures durations, turns unexpected errors into a 500.

    The client's `X-Request-Id` is used if it is safe to log. An encoded slash stays inside its path segment. Without
    `durations` nothing is measured; `fast_routes` are method and path of the routes that bypass the router.
    """

    def __init__(
        self,
        app: ASGIApp,
        durations: RequestDurations | None = None,
        fast_routes: Container[tuple[str, str]] = (),
    ) -> None:
        self._app = app
        self._durations = durations
        self._fast_routes = fast_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_at = time.perf_counter()
        # In one pass: most requests have none of these headers.
        found = [(name, value) for name, value in scope["headers"] if name in _CONTEXT_HEADERS]
        request_id = choose_request_id(value for name, value in found if name == b"x-request-id")
        scope.setdefault("state", {})["request_id"] = request_id
        if any(b"\\" in value for name, value in found if name == b"cookie"):
            _remove_backslashes_from_cookies(scope)
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            # The server decoded the path already; only the raw one still tells a slash in an id from a separator.
            scope["path"] = "/".join(unquote(p).replace("/", ENCODED_SLASH) for p in raw.decode("latin-1").split("/"))
        started = ended = False

        async def send_with_id(message: Message) -> None:
            nonlocal started, ended
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _add_headers(message.get("headers", ()), request_id)
                if self._durations is not None:
                    seconds = time.perf_counter() - started_at
                    self._durations.observe(self._route(scope), scope["method"], message["status"], seconds)
            else:
                ended = not message.get("more_body", False)
            await send(message)

        try:
            traceparent = read_traceparent([value for name, value in found if name == b"traceparent"])
            with trace_context.TraceparentScope(traceparent):
                await self._app(scope, receive, send_with_id)
        except Exception:
            # %r: the path is decoded, and a line break in it (%0A) would forge a line of the log.
            log.exception(
                "http: request failed method=%s path=%r request_id=%s", scope["method"], scope["path"], request_id
            )
            if not started:
                await render_unexpected(scope)(scope, receive, send_with_id)
            elif not ended:
                # Part of the response was sent: only closing the connection shows the client that it is incomplete.
                raise

    def _route(self, scope: Scope) -> str:
        if (scope["method"], scope["path"]) in self._fast_routes:
            return str(scope["path"])
        return getattr(scope.get("route"), "path", UNROUTED)


def _add_headers(headers: Iterable[tuple[bytes, bytes]], request_id: str) -> list[tuple[bytes, bytes]]:
    every = [*headers, (b"x-request-id", request_id.encode())]
    if not any(name == b"cache-control" for name, _ in every):
        every.append(_NOT_STORED)
    return every


def choose_request_id(values: Iterable[bytes]) -> str:
    """Return the first of the client's request ids that is safe to log, else a new one."""
    return next((str(v.decode("ascii")) for v in values if _SAFE_REQUEST_ID.match(v)), None) or ids.new_id()


def read_traceparent(values: Sequence[bytes]) -> str | None:
    """Return the client's `traceparent` if it is valid and the only one, else None."""
    return trace_context.parse_traceparent(values[0].decode("latin-1")) if len(values) == 1 else None


def _remove_backslashes_from_cookies(scope: Scope) -> None:
    """Keep http.cookies, which FastAPI calls for every request, from unquoting values.

    Before Python 3.11.10 and 3.12.6 that takes quadratic time: seconds for a head of 60 kB. No cookie of ours has one.
    """
    scope["headers"] = [
        (name, value.replace(b"\\", b"") if name == b"cookie" else value) for name, value in scope["headers"]
    ]


def find_header(scope: Scope, name: bytes) -> str | None:
    """Return the first header with a name (in lower case), as Starlette's `headers.get` does, which takes longer."""
    for header, value in scope["headers"]:
        if header == name:
            return str(value.decode("latin-1"))
    return None


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for header, value in scope["headers"] if header == name]


def decode_path_segment(text: str) -> str:
    """Return a path parameter with its slashes restored. Raises NotFound for NUL, which no stored id contains."""
    if "\0" in text:
        raise NotFound("No id contains the character NUL.")
    return text.replace(ENCODED_SLASH, "/")


class RequestDurations:
    """Histogram of the seconds from request to response head; how long a stream stays open after it does not count."""

    def __init__(self) -> None:
        text = "Seconds from a request's head to its response's head, by route template."
        self._histogram = Histogram("stentor_http_request_duration_seconds", text, REQUEST_BUCKETS_S, *LABELS)
        self._cache: dict[tuple[str, str, int], HistogramSeries] = {}

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        histogram = self._cache.get((route, method, status))
        (histogram or self._find(route, method, status)).observe(seconds)

    def _find(self, route: str, method: str, status: int) -> HistogramSeries:
        # Clients can invent methods: those get one label and no cache entry, so that neither grows without bound.
        is_known = method in METHODS
        histogram = self._histogram.labels(route, method if is_known else "other", f"{status // 100}xx")
        if is_known:
            self._cache[route, method, status] = histogram
        return histogram

    def collect_metrics(self) -> Iterable[Metric]:
        return self._histogram.collect()


class GrpcCallDurations:
    """Histogram of the seconds of gRPC calls until the response, or until a stream begins."""

    def __init__(self) -> None:
        text = "Seconds from a gRPC call's head to its response, or to the start of its stream, by method."
        self._histogram = Histogram("stentor_grpc_call_duration_seconds", text, REQUEST_BUCKETS_S, "method", "code")

    def observe(self, method: str, code: str, seconds: float) -> None:
        """Record a call. `method` must be one of the service's own, `code` the name of a gRPC status."""
        self._histogram.labels(method, code).observe(seconds)

    def collect_metrics(self) -> Iterable[Metric]:
        return self._histogram.collect()
