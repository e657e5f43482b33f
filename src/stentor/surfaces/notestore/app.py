"""The note store's ASGI application: the key, the tools, and one form of failure.

`{success: true, data}` or `{success: false, error}`. Nothing but /health answers without the key, not even
that a path does not exist.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.core import jsontext
from stentor.core.errors import (
    Forbidden,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    StentorError,
)
from stentor.domains.notes.path_locks import LOCK_TIMEOUT_SECONDS
from stentor.domains.notes.paths import display_path
from stentor.surfaces.notestore.tools import NoteStore, NoteTools, parse_body

MAX_BODY_BYTES = 20_000_000
API_PREFIX = "/api/"
UNEXPECTED_MESSAGE = "The note store failed on this request; its log says why."
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
log = logging.getLogger(__name__)


class ClientDisconnected(Exception):
    """The caller has left before its body was complete."""


def create_app(
    store: NoteStore, key: str, max_body: int = MAX_BODY_BYTES, lock_timeout_s: float = LOCK_TIMEOUT_SECONDS
) -> ASGIApp:
    """The application over a store; `key` is the callers' bearer token, `max_body` in bytes.

    `patience` is how many seconds a tool waits for others that change the same note.
    """
    return _App(NoteTools(store, lock_timeout_s), hashlib.sha256(key.encode()).digest(), max_body)


class _App:
    def __init__(self, tools: NoteTools, digest: bytes, max_body: int) -> None:
        self._tools = tools
        self._digest = digest
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            response = await self._answer(scope, receive)
        except ClientDisconnected:
            return
        except StentorError as error:
            response = _failure(error)
        except Exception:
            log.exception("%s %r failed", scope["method"], scope["path"])
            response = _respond({"success": False, "error": UNEXPECTED_MESSAGE}, 500)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        if path == "/health":
            _only(method, path, "GET", "HEAD")
            return _respond({"status": "ok"})
        self._authenticate(scope)
        name = path.removeprefix(API_PREFIX) if path.startswith(API_PREFIX) else ""
        if name not in self._tools.by_name:
            raise NotFound(
                f"There is nothing at {display_path(path)}. Under /api are {', '.join(self._tools.by_name)}."
            )
        _only(method, path, "POST")
        kind, tool = self._tools.by_name[name]
        body = parse_body(kind, await self._body(scope, receive))
        log.debug("call tool=%s", name)
        data = await tool(body)
        log.info("%s answered 200", name)
        return _respond({"success": True, "data": data})

    def _authenticate(self, scope: Scope) -> None:
        """Raises Forbidden unless exactly one Authorization header bears the key."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        digest = hashlib.sha256(token.strip()).digest()
        if scheme.lower() != b"bearer" or not hmac.compare_digest(digest, self._digest):
            raise Forbidden("Forbidden: send the note store's key as 'Authorization: Bearer <key>'.")

    async def _body(self, scope: Scope, receive: Receive) -> Any:
        """The JSON of the body; without one an empty object."""
        content, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            content += message.get("body", b"")
            more = message.get("more_body", False)
            if len(content) > self._max_body:
                raise PayloadTooLarge(f"The body is larger than {self._max_body} bytes.")
        if not content:
            return {}
        _require_json(scope)
        return jsontext.decode(bytes(content))


def _require_json(scope: Scope) -> None:
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"application/json")
    media = kind.partition(b";")[0].strip().lower()
    if media != b"application/json" and not media.endswith(b"+json"):
        raise InvalidRequest("The body must be JSON: send 'Content-Type: application/json'.")


def _only(method: str, path: str, *allowed: str) -> None:
    if method not in allowed:
        raise MethodNotAllowed(f"{path} takes {allowed[0]}.", {"allow": ", ".join(allowed)})


def _failure(error: StentorError) -> Response:
    """A failure in the note store's own form, the same for the caller's mistakes and the plugin's."""
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed) and error.details:
        headers["Allow"] = error.details["allow"]
    if isinstance(error, PayloadTooLarge):
        headers["Connection"] = "close"  # else the rest of the body is read, however long it is
    log.info("answered %d: %s", error.status, error.message)
    return _respond({"success": False, "error": error.message}, error.status, headers)


def _respond(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(jsontext.encode(body), status, {**_HEADERS, **(headers or {})}, "application/json")
