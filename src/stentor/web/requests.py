"""The outermost layer: request id, trace, raw paths, and a last net under everything.

`X-Request-Id` of the caller is kept when it is harmless. An encoded slash stays inside its segment.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stentor.core import ids, tracing
from stentor.core.errors import NotFound
from stentor.web.errors import render_unexpected

SLASH = "\ufdd0"
"""Stands for an encoded slash while the router splits a path; not a character of any text."""

_HARMLESS = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
log = logging.getLogger(__name__)


class RequestContext:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = chosen_id(_header(scope, b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            scope["path"] = "/".join(unquote(p).replace("/", SLASH) for p in raw.decode("latin-1").split("/"))
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
            with tracing.carrying(place_in_trace(_header(scope, b"traceparent"))):
                await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request %s %s failed (request_id %s)", scope["method"], scope["path"], request_id)
            if not started:
                await render_unexpected(scope)(scope, receive, send_with_id)
            elif not ended:
                # Half an answer is out: only a cut connection tells the caller that the rest is missing.
                raise


def chosen_id(given: Iterable[bytes]) -> str:
    """The first of the caller's request ids that is harmless, else a new one."""
    return next((str(value.decode("ascii")) for value in given if _HARMLESS.match(value)), None) or ids.new_id()


def place_in_trace(given: Sequence[bytes]) -> str | None:
    """The caller's `traceparent`, when it sent one and only one."""
    return tracing.parse(given[0].decode("latin-1")) if len(given) == 1 else None


def _header(scope: Scope, name: bytes) -> list[bytes]:
    return [value for found, value in scope["headers"] if found == name]


def segment(text: str) -> str:
    """A path parameter as the caller meant it. Raises NotFound for NUL, which no stored text has."""
    if "\0" in text:
        raise NotFound("Nothing has an id with the character NUL in it.")
    return text.replace(SLASH, "/")
