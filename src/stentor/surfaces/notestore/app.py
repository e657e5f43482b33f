"""The note store's ASGI application: authentication, dispatch to the tools, and error responses.

Responses are `{success: true, data}` or `{success: false, error}`. Everything except /health needs the key, even a
404. The tools are in `tools`.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import Any

from starlette.requests import ClientDisconnect
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
from stentor.core.jsontext import JsonObject
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.surfaces.notestore.tools import NoteTools, parse_body
from stentor_vault.notes.paths import display_path

MAX_BODY_BYTES = 20_000_000
API_PREFIX = "/api/"
UNEXPECTED_MESSAGE = "The note store failed on this request; its log has the reason."
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
log = logging.getLogger(__name__)


def create_app(store: PluginVault, key: str, lock_timeout_s: float) -> ASGIApp:
    """Return the application over a store; `key` is the bearer token of its clients.

    `lock_timeout_s` limits how long a tool waits for others that change the same note.
    """
    return _App(NoteTools(store, lock_timeout_s), hashlib.sha256(key.encode()).digest())


class _App:
    def __init__(self, tools: NoteTools, digest: bytes) -> None:
        self._tools = tools
        self._digest = digest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            response = await self._handle(scope, receive)
        except ClientDisconnect:
            return
        except StentorError as error:
            response = _error_response(error)
        except Exception:
            log.exception("notes: request failed method=%s path=%r", scope["method"], scope["path"])
            response = _json_response({"success": False, "error": UNEXPECTED_MESSAGE}, 500)
        await response(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive) -> Response:
        path, method = scope["path"], scope["method"]
        if path == "/health":
            _require_method(method, path, "GET", "HEAD")
            return _json_response({"status": "ok"})
        # Before the lookup: without the key not even the existence of a path is revealed.
        self._authenticate(scope)
        name = path.removeprefix(API_PREFIX) if path.startswith(API_PREFIX) else ""
        if name not in self._tools.by_name:
            raise NotFound(f"No route {display_path(path)}. Tools below /api: {', '.join(self._tools.by_name)}.")
        _require_method(method, path, "POST")
        body_type, tool = self._tools.by_name[name]
        body = parse_body(body_type, await self._read_json(scope, receive))
        log.debug("notes: tool started tool=%s", name)
        data = await tool(body)
        # Never the arguments: notes and paths are the users' own.
        log.info("notes: tool finished tool=%s", name)
        return _json_response({"success": True, "data": data})

    def _authenticate(self, scope: Scope) -> None:
        """Raise Forbidden unless there is exactly one Authorization header, with the key as bearer token."""
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
        # Digests have equal lengths, so that the comparison does not reveal the length of the key.
        digest = hashlib.sha256(token.strip()).digest()
        if scheme.lower() != b"bearer" or not hmac.compare_digest(digest, self._digest):
            raise Forbidden("Forbidden: send the note store's key as 'Authorization: Bearer <key>'.")

    async def _read_json(self, scope: Scope, receive: Receive) -> Any:
        """Return the JSON of the body; an empty object if there is none."""
        content, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            content += message.get("body", b"")
            more = message.get("more_body", False)
            if len(content) > MAX_BODY_BYTES:
                raise PayloadTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
        if not content:
            return {}
        content_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"application/json")
        media_type = content_type.partition(b";")[0].strip().lower()
        if media_type != b"application/json" and not media_type.endswith(b"+json"):
            raise InvalidRequest("The body must be JSON: send 'Content-Type: application/json'.")
        return jsontext.decode(bytes(content))


def _require_method(method: str, path: str, *allowed: str) -> None:
    if method not in allowed:
        raise MethodNotAllowed(f"{path} only supports {allowed[0]}.", {"allow": ", ".join(allowed)})


def _error_response(error: StentorError) -> Response:
    """Return an error in the note store's format, the same for errors of the client and of the plugin."""
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowed) and error.details:
        headers["Allow"] = error.details["allow"]
    if isinstance(error, PayloadTooLarge):
        # Otherwise the server would read the rest of the body, however long it is.
        headers["Connection"] = "close"
    # These two need no key, so anybody could fill the log with them.
    level = logging.DEBUG if isinstance(error, Forbidden | MethodNotAllowed) else logging.INFO
    # Not the message, which names the note.
    log.log(level, "notes: request rejected status=%d code=%s", error.status, error.code)
    return _json_response({"success": False, "error": error.message}, error.status, headers)


def _json_response(body: JsonObject, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(jsontext.encode(body), status, {**_HEADERS, **(headers or {})}, "application/json")
