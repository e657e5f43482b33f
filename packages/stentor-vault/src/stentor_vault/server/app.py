"""The ASGI application of the vault server: key check, routing on the raw path, and `/openapi.yaml`.

Implements the API that the vault plugin publishes. The handlers of its routes are in `read_handlers` and
`write_handlers`.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from functools import cache
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stentor_vault import __version__, jsontext
from stentor_vault.errors import StentorError
from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import model
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.server import errors
from stentor_vault.server.errors import VaultApiError
from stentor_vault.server.read_handlers import ReadHandlers, SearchHandlers
from stentor_vault.server.request_parsing import JSON, read_body, require_inside_vault, split_request_path
from stentor_vault.server.search.text_index import VaultTextIndex
from stentor_vault.server.write_handlers import VaultFiles, WriteHandlers

CERTIFICATE_PATH = "/obsidian-local-rest-api.crt"
API_NAME, API_VERSION = "Obsidian Local REST API", "5.1.0"
"""Name and version of the plugin whose API this server implements; clients choose their requests by the version."""
log = logging.getLogger(__name__)
Handler = Callable[[Request, list[str]], Awaitable[Response]]
CertificateSource = Callable[[], bytes | None]


class VaultServer:
    """The ASGI application.

    `certificate` returns the HTTPS certificate in PEM, or None without HTTPS.
    """

    def __init__(
        self,
        vault: FolderVault,
        texts: VaultTextIndex,
        key: str,
        certificate: CertificateSource = lambda: None,
    ) -> None:
        self._texts = texts
        self._key = key.encode()
        self._certificate = certificate
        self._searches = SearchHandlers(texts)
        reads, writes = ReadHandlers(vault, texts), WriteHandlers(VaultFiles(vault, texts))
        self._file_handlers: dict[str, Handler] = {
            "GET": reads.get,
            "HEAD": reads.get,
            "PUT": writes.put,
            "POST": writes.post,
            "PATCH": writes.patch,
            "DELETE": writes.delete,
            "MOVE": writes.move,
            "COPY": writes.copy,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._dispatch(request)
        except VaultApiError as error:
            response = errors.render_error(error)
        except StentorError as error:
            response = errors.render_error(errors.to_api_error(error))
        except Exception:
            log.exception("vault: request failed method=%s path=%s", scope["method"], scope["path"])
            response = errors.render_error(
                VaultApiError(errors.INTERNAL_ERROR, "Internal error; the server's log has the details.")
            )
        await response(scope, receive, send)

    async def _dispatch(self, request: Request) -> Response:
        first, *rest = split_request_path(request)
        # Checked once, because `/` is public and reports whether the key is right.
        authenticated = self._is_authenticated(request)
        if not rest and request.method in ("GET", "HEAD"):
            public = self._get_public(f"/{first}", authenticated=authenticated)
            if public is not None:
                return public
        if not authenticated:
            raise VaultApiError(
                errors.UNAUTHORIZED,
                "The key is missing or wrong; send the header Authorization: Bearer <key>. "
                "This is a vault, which has a key of its own.",
            )
        if first == "vault":
            handler = self._file_handlers.get(request.method)
            if handler is None:
                raise VaultApiError(errors.METHOD_NOT_ALLOWED, f"Files do not support {request.method}.")
            # `/vault` without a slash means the root folder, like `/vault/`.
            require_inside_vault(rest or [""])
            return await handler(request, rest or [""])
        return await self._handle_other_route(request, "/".join([first, *rest]).rstrip("/"))

    def _get_public(self, path: str, *, authenticated: bool) -> Response | None:
        """Return the response of a path that needs no key, None for other paths."""
        if path == "/":
            return _json_response(self._describe_server(authenticated=authenticated))
        if path == "/openapi.yaml":
            return Response(load_openapi_document(), media_type="application/yaml; charset=utf-8")
        if path != CERTIFICATE_PATH:
            return None
        certificate = self._certificate()
        if certificate is None:
            raise VaultApiError(errors.NOT_FOUND, "There is no certificate: this server runs without HTTPS.")
        headers = {"Content-Disposition": f'attachment; filename="{CERTIFICATE_PATH[1:]}"'}
        return Response(certificate, media_type="application/octet-stream", headers=headers)

    async def _handle_other_route(self, request: Request, route: str) -> Response:
        if route == "search/simple" and request.method == "POST":
            return _json_response(await self._searches.simple(request))
        if route == "search" and request.method == "POST":
            return _json_response(await self._searches.logic(request, await read_body(request, model.MAX_NOTE_BYTES)))
        if route == "tags" and request.method == "GET":
            await self._texts.wait_until_loaded()
            return _json_response({"tags": self._texts.count_tags()})
        raise VaultApiError(errors.NOT_FOUND, f"No route {request.method} /{route}.")

    def _is_authenticated(self, request: Request) -> bool:
        # Two different ones are ambiguous: a proxy may have checked the other one.
        values = set(request.headers.getlist("authorization"))
        scheme, _, key = values.pop().partition(" ") if len(values) == 1 else ("", "", "")
        return scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode(), self._key)

    def _describe_server(self, *, authenticated: bool) -> JsonObject:
        return {
            "status": "OK",
            "service": API_NAME,
            "versions": {"obsidian": "headless", "self": API_VERSION},
            "manifest": {"id": "obsidian-local-rest-api", "name": "Local REST API", "version": API_VERSION},
            "server": {"name": "stentor", "version": __version__},
            "authenticated": authenticated,
        }


def _json_response(body: Any) -> Response:
    return Response(jsontext.encode(body), media_type=JSON)


@cache
def load_openapi_document() -> bytes:
    """Return the OpenAPI document that is part of the package, as YAML."""
    return resources.files("stentor_vault.server").joinpath("openapi.yaml").read_bytes()
