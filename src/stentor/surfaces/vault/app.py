"""The ASGI application: key, raw paths, routes. Source: facts of the vault plugin."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stentor import __version__
from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.domains.notes import model
from stentor.domains.notes.folder import FolderVault
from stentor.surfaces.vault import errors, openapi
from stentor.surfaces.vault.errors import Refused
from stentor.surfaces.vault.files import Files
from stentor.surfaces.vault.reads import Reads
from stentor.surfaces.vault.requests import JSON, body_of, path_of, refuse_beyond
from stentor.surfaces.vault.searches import Searches
from stentor.surfaces.vault.texts import Texts
from stentor.surfaces.vault.writes import Writes

CERTIFICATE = "/obsidian-local-rest-api.crt"
API_NAME, API_VERSION = "Obsidian Local REST API", "5.1.0"
"""Of the API that is spoken: clients ask for both. `server` says who speaks it."""
log = logging.getLogger(__name__)
Handler = Callable[[Request, list[str]], Awaitable[Response]]
Certificate = Callable[[], bytes | None]


class VaultServer:
    """`max_body` in bytes; `certificate` gives the one that HTTPS shows, in PEM, or None without HTTPS."""

    def __init__(
        self,
        vault: FolderVault,
        texts: Texts,
        key: str,
        max_body: int = model.MAX_BYTES,
        certificate: Certificate = lambda: None,
    ) -> None:
        self._texts = texts
        self._key = key.encode()
        self._max_body = max_body
        self._certificate = certificate
        self._searches = Searches(texts)
        reads, writes = Reads(vault, texts), Writes(Files(vault, texts), max_body)
        self._on_files: dict[str, Handler] = {
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
            response = await self._answer(request)
        except Refused as refused:
            response = errors.render(refused)
        except StentorError as error:
            response = errors.render(errors.refusal_of(error))
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = errors.render(Refused(errors.FAILED, "The server failed on this request; its log says why."))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        head, *rest = path_of(request)
        known = self._authenticated(request)
        if not rest and request.method in ("GET", "HEAD"):
            public = self._public(f"/{head}", known=known)
            if public is not None:
                return public
        if not known:
            raise Refused(errors.UNAUTHORIZED, "The request needs the header Authorization: Bearer <key>.")
        if head == "vault":
            handler = self._on_files.get(request.method)
            if handler is None:
                raise Refused(errors.NO_SUCH_METHOD, f"Files have no {request.method}.")
            refuse_beyond(rest or [""])
            return await handler(request, rest or [""])
        return await self._other(request, "/".join([head, *rest]).rstrip("/"))

    def _public(self, path: str, *, known: bool) -> Response | None:
        """What needs no key."""
        if path == "/":
            return _json(self._about(authenticated=known))
        if path == "/openapi.yaml":
            return Response(openapi.document(), media_type="application/yaml; charset=utf-8")
        if path != CERTIFICATE:
            return None
        certificate = self._certificate()
        if certificate is None:
            raise Refused(errors.NOT_FOUND, "There is no certificate: this server answers without HTTPS.")
        headers = {"Content-Disposition": f'attachment; filename="{CERTIFICATE[1:]}"'}
        return Response(certificate, media_type="application/octet-stream", headers=headers)

    async def _other(self, request: Request, route: str) -> Response:
        if route == "search/simple" and request.method == "POST":
            return _json(await self._searches.simple(request))
        if route == "search" and request.method == "POST":
            return _json(await self._searches.logic(request, await body_of(request, self._max_body)))
        if route == "tags" and request.method == "GET":
            await self._texts.ready()
            return _json({"tags": self._texts.tags()})
        raise Refused(errors.NOT_FOUND, f"There is nothing at {request.method} /{route}.")

    def _authenticated(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key)

    def _about(self, *, authenticated: bool) -> dict[str, Any]:
        return {
            "status": "OK",
            "service": API_NAME,
            "versions": {"obsidian": "headless", "self": API_VERSION},
            "manifest": {"id": "obsidian-local-rest-api", "name": "Local REST API", "version": API_VERSION},
            "server": {"name": "stentor", "version": __version__},
            "authenticated": authenticated,
        }


def _json(body: Any) -> Response:
    return Response(jsontext.encode(body), media_type=JSON)
