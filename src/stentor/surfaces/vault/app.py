"""The ASGI application: key, raw paths, routes. Source: facts of the vault plugin."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stentor import __version__
from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.domains.notes import model
from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import ANYTHING, NOTHING, NoSuchNote, content_hash
from stentor.surfaces.vault import errors, notes, patch
from stentor.surfaces.vault.errors import Refused
from stentor.surfaces.vault.texts import Texts

NOTE_JSON, MAP_JSON = "application/vnd.olrapi.note+json", "application/vnd.olrapi.document-map+json"
TRIES = 16
log = logging.getLogger(__name__)
Handler = Callable[[Request, list[str]], Awaitable[Response]]


class VaultServer:
    """`max_body` in bytes. Changes of one note wait for each other; a lost race with another program is tried again."""

    def __init__(self, vault: FolderVault, texts: Texts, key: str, max_body: int = model.MAX_BYTES) -> None:
        self._vault = vault
        self._texts = texts
        self._key = key.encode()
        self._max_body = max_body
        self._locks = [asyncio.Lock() for _ in range(256)]
        self._on_files: dict[str, Handler] = {
            "GET": self._read,
            "HEAD": self._read,
            "PUT": self._write,
            "POST": self._append,
            "PATCH": self._patch,
            "DELETE": self._delete,
            "MOVE": self._move,
            "COPY": self._copy,
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
        """Splits the raw path, so that an encoded slash stays inside its segment."""
        raw = bytes(request.scope.get("raw_path") or request.scope["path"].encode()).partition(b"?")[0]
        known = self._authenticated(request)
        if raw == b"/":
            return _json(self._about(authenticated=known))
        if not known:
            raise Refused(errors.UNAUTHORIZED, "The request needs the header Authorization: Bearer <key>.")
        head, *rest = [_decoded(part) for part in raw.decode("latin-1").removeprefix("/").split("/")]
        if head == "vault":
            handler = self._on_files.get(request.method)
            if handler is None:
                raise Refused(errors.NO_SUCH_METHOD, f"Files have no {request.method}.")
            return await handler(request, rest or [""])
        return await self._other(request, "/".join([head, *rest]).rstrip("/"))

    async def _other(self, request: Request, route: str) -> Response:
        if route == "search/simple" and request.method == "POST":
            query = request.query_params.get("query", "")
            if not query.strip():
                raise Refused(errors.NO_QUERY, "The parameter query is missing.")
            return _json(self._texts.search(query, _context(request)))
        if route == "tags" and request.method == "GET":
            return _json({"tags": self._texts.tags()})
        raise Refused(errors.NOT_FOUND, f"There is nothing at {request.method} /{route}.")

    def _authenticated(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key)

    def _about(self, *, authenticated: bool) -> dict[str, Any]:
        versions = {"obsidian": "headless", "self": __version__}
        return {"status": "OK", "service": "Stentor vault", "versions": versions, "authenticated": authenticated}

    async def _read(self, request: Request, parts: list[str]) -> Response:
        if parts[-1] == "":
            return await self._list(_joined(parts[:-1]))
        note = await self._vault.read(_joined(parts))
        headers = {"ETag": f'"{note.hash}"'}
        document = notes.document_of(note)
        accept = request.headers.get("accept", "")
        if document is not None and NOTE_JSON in accept:
            return Response(jsontext.encode(notes.as_json(note, document)), headers=headers, media_type=NOTE_JSON)
        if document is not None and MAP_JSON in accept:
            return Response(jsontext.encode(notes.document_map(document)), headers=headers, media_type=MAP_JSON)
        kind = "application/octet-stream" if document is None else "text/markdown; charset=utf-8"
        return Response(note.content, headers=headers, media_type=kind)

    async def _list(self, folder: str) -> Response:
        names = await self._vault.names(folder)
        found = [
            name for name in names if not name.endswith("/") or await self._vault.walk(f"{folder}/{name}".lstrip("/"))
        ]
        if folder and not found:
            raise NoSuchNote(f"The vault has no folder {folder!r}.")
        return _json({"files": found})

    async def _write(self, request: Request, parts: list[str]) -> Response:
        path, body = _file(parts), await self._body(request)
        await self._change(path, lambda _: body, _expected(request))
        return Response(status_code=204)

    async def _append(self, request: Request, parts: list[str]) -> Response:
        path, body = _file(parts), await self._body(request)
        if not request.headers.get("content-type", "text/markdown").startswith("text/"):
            raise Refused(errors.NOT_TEXT, "Only text can be appended: send it with a Content-Type of text/*.")
        await self._change(path, lambda present: _appended(present, body), _expected(request))
        return Response(status_code=204)

    async def _patch(self, request: Request, parts: list[str]) -> Response:
        path, body = _file(parts), await self._body(request)
        wanted = patch.instruction_of({k.lower(): v for k, v in request.headers.items()}, body)

        def edited(present: bytes | None) -> bytes:
            if present is None:
                raise NoSuchNote(f"The vault has no file {path!r}.")
            try:
                return patch.applied(present.decode(), wanted).encode()
            except UnicodeDecodeError:
                raise Refused(errors.BAD_INSTRUCTION, f"{path!r} is no text.") from None

        content = await self._change(path, edited, _expected(request))
        return Response(
            content, media_type="text/markdown; charset=utf-8", headers={"ETag": f'"{content_hash(content)}"'}
        )

    async def _delete(self, request: Request, parts: list[str]) -> Response:
        path = _file(parts)
        permanent = request.query_params.get("permanent", "").lower() == "true"
        expected = _expected(request) or ANYTHING
        await self._vault.run(self._vault.delete_now, path, expected, permanent=permanent)
        await self._texts.refresh(path)
        return Response(status_code=204)

    async def _move(self, request: Request, parts: list[str]) -> Response:
        path, target = _file(parts), self._destination(request)
        overwrite = request.headers.get("allow-overwrite", "").lower() == "true"
        try:
            await self._vault.run(self._vault.move_now, path, target, overwrite=overwrite)
        except model.NoteChanged:
            raise Refused(errors.EXISTS, f"{target!r} exists; Allow-Overwrite: true replaces it.") from None
        await self._texts.refresh(path)
        await self._texts.refresh(target)
        return Response(status_code=204, headers={"Content-Location": _location(target)})

    async def _copy(self, request: Request, parts: list[str]) -> Response:
        note, target = await self._vault.read(_file(parts)), self._destination(request)
        overwrite = request.headers.get("allow-overwrite", "").lower() == "true"
        try:
            await self._vault.write(target, note.content, ANYTHING if overwrite else NOTHING)
        except model.NoteChanged:
            raise Refused(errors.EXISTS, f"{target!r} exists; Allow-Overwrite: true replaces it.") from None
        await self._texts.refresh(target)
        return Response(status_code=204, headers={"Content-Location": _location(target)})

    def _destination(self, request: Request) -> str:
        given = request.headers.get("destination", "").removeprefix("/vault/").lstrip("/")
        if not given:
            raise Refused(errors.BAD_INSTRUCTION, "The header Destination is missing.")
        return _file([_decoded(part) for part in given.split("/")])

    async def _change(self, path: str, edit: Callable[[bytes | None], bytes], if_match: str | None) -> bytes:
        """Read, edit, write, for the state that was read; once more when another program was faster."""
        async with self._locks[hash(path) % len(self._locks)]:
            for _ in range(TRIES):
                present = await self._present(path)
                state = NOTHING if present is None else content_hash(present)
                if if_match not in (None, state):
                    raise model.NoteChanged(path, state)
                content = edit(present)
                try:
                    await self._vault.write(path, content, state)
                except model.NoteChanged:
                    continue
                await self._texts.refresh(path)
                return content
        raise Refused(errors.EXISTS, f"{path!r} changes faster than it can be read; try again.")

    async def _present(self, path: str) -> bytes | None:
        try:
            return (await self._vault.read(path)).content
        except NoSuchNote:
            return None

    async def _body(self, request: Request) -> bytes:
        chunks, size = [], 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > self._max_body:
                raise Refused(
                    errors.TOO_LARGE, f"The body is larger than {self._max_body} bytes.", {"Connection": "close"}
                )
            chunks.append(chunk)
        return b"".join(chunks)


def _json(body: Any) -> Response:
    return Response(jsontext.encode(body), media_type="application/json")


def _decoded(part: str) -> str:
    """Decoded once; what is no UTF-8 is refused with the path."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refused(errors.BEYOND_ROOT, "The path is not UTF-8.") from None


def _joined(parts: list[str]) -> str:
    if any("/" in part for part in parts):
        raise Refused(errors.BEYOND_ROOT, "A name cannot have a slash in it.")
    return "/".join(parts)


def _file(parts: list[str]) -> str:
    if parts[-1] == "":
        raise Refused(errors.IS_FOLDER, "The path ends in a slash, so it names a folder; this works on files.")
    return _joined(parts)


def _expected(request: Request) -> str | None:
    given = request.headers.get("if-match")
    return None if given is None or given == "*" else given.strip('"')


def _appended(present: bytes | None, added: bytes) -> bytes:
    """With a line end between, if one is missing."""
    if not present:
        return added
    return present + (b"" if present.endswith(b"\n") else b"\n") + added


def _context(request: Request) -> int:
    given = request.query_params.get("contextLength", "100")
    return min(10_000, int(given)) if given.isascii() and given.isdigit() and len(given) < 6 else 100


def _location(path: str) -> str:
    return "/vault/" + "/".join(quote(part, safe="") for part in path.split("/"))
