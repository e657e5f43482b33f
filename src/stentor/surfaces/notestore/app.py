"""The ASGI application: token, body, tool, envelope."""

from __future__ import annotations

import hmac
import logging
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, MethodNotAllowed, NotFound, PayloadTooLarge, StentorError
from stentor.surfaces.notestore.tools import Tools

log = logging.getLogger(__name__)


class NoteStore:
    """`key` is what agents send, `max_body` in bytes."""

    def __init__(self, tools: Tools, key: str, max_body: int) -> None:
        self._tools = tools
        self._key = key.encode()
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            response = await self._answer(Request(scope, receive))
        except StentorError as error:
            response = _failure(error.status, error.message)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = _failure(500, "The server failed on this request; its log says why.")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path == "/health":
            if request.method not in ("GET", "HEAD"):
                raise MethodNotAllowed("/health takes GET.")
            return Response(jsontext.encode({"status": "ok"}), media_type="application/json")
        if not self._known(request):
            return _failure(403, "Forbidden: the request needs the header Authorization: Bearer <MCP_API_KEY>.")
        tool = self._tools.by_name.get(path.removeprefix("/api/")) if path.startswith("/api/") else None
        if tool is None:
            names = ", ".join(self._tools.by_name)
            raise NotFound(f"There is nothing at {path}. The tools under /api are {names}.")
        if request.method != "POST":
            raise MethodNotAllowed(f"{path} takes POST.")
        data = await tool(await self._body(request))
        return Response(jsontext.encode({"success": True, "data": data}), media_type="application/json")

    def _known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._key)

    async def _body(self, request: Request) -> dict[str, Any]:
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise InvalidRequest("The body must be application/json.")
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_body:
                raise PayloadTooLarge(f"The body is larger than {self._max_body} bytes.")
            chunks.append(chunk)
        found = jsontext.decode(b"".join(chunks)) if size else {}
        if not isinstance(found, dict):
            raise InvalidRequest("The body must be an object.")
        return found


def _failure(status: int, message: str) -> Response:
    headers = {"Connection": "close"} if status == 413 else None
    return Response(jsontext.encode({"success": False, "error": message}), status, headers, "application/json")
