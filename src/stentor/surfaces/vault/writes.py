"""PUT, POST, PATCH, DELETE, MOVE and COPY of files and of parts of notes."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from stentor.domains.notes import model
from stentor.domains.notes.model import NoSuchNote, content_hash
from stentor.domains.notes.paths import InvalidPath
from stentor.surfaces.vault import errors, places
from stentor.surfaces.vault.conditions import conditions_of, tag
from stentor.surfaces.vault.errors import Refused
from stentor.surfaces.vault.files import Files
from stentor.surfaces.vault.orders import Order, old_order, patch_order, write_order
from stentor.surfaces.vault.patching.levels import Warned
from stentor.surfaces.vault.places import Place
from stentor.surfaces.vault.requests import (
    MARKDOWN_TEXT,
    body_of,
    content_type,
    file_of,
    format_of,
    has_target,
    location,
    says_yes,
    text_of,
)

SUNSET = {"Deprecation": 'true; sunset-version="6.0"'}


class Writes:
    """`max_body` in bytes."""

    def __init__(self, files: Files, max_body: int = model.MAX_BYTES) -> None:
        self._files = files
        self._max_body = max_body

    async def put(self, request: Request, parts: list[str]) -> Response:
        return await self._store(request, parts, "replace", lambda _, body: body)

    async def post(self, request: Request, parts: list[str]) -> Response:
        return await self._store(request, parts, "append", appended)

    async def _store(
        self, request: Request, parts: list[str], operation: str, store: Callable[[bytes | None, bytes], bytes]
    ) -> Response:
        """The whole file, or the part that the path or headers of format 1 name."""
        place, body = await self._place(parts), await body_of(request, self._max_body)
        if place is not None and place.target is not None:
            return await self._edit(
                request, place.note.path, write_order(request, body, place.target, operation), place
            )
        path = file_of(parts)
        if has_target(request):
            if format_of(request) != 1:
                raise Refused(errors.OLD_TARGET, "Target headers are of Markdown-Patch-Version 1; or use the path.")
            return await self._edit(request, path, old_order(request, body, operation))
        if operation == "append" and not (content_type(request) or "text/markdown").startswith("text/"):
            raise Refused(errors.NOT_TEXT, "Only text can be appended: send it with a Content-Type of text/*.")
        conditions = conditions_of(request.headers)
        content = await self._files.change(path, lambda present: store(present, body), conditions)
        return Response(status_code=204, headers={"ETag": tag(content_hash(content))})

    async def patch(self, request: Request, parts: list[str]) -> Response:
        place, body = await self._place(parts), await body_of(request, self._max_body)
        path = file_of(parts) if place is None else place.note.path
        return await self._edit(request, path, patch_order(request, body, place.target if place else None), place)

    async def delete(self, request: Request, parts: list[str]) -> Response:
        place = await self._place(parts)
        if place is not None and place.target is not None:
            raise Refused(errors.NO_SUCH_METHOD, "A part of a note is deleted by PATCH with the operation delete.")
        permanent = request.query_params.get("permanent", "").lower() == "true"
        await self._files.delete(file_of(parts), conditions_of(request.headers), permanent=permanent)
        return Response(status_code=204)

    async def move(self, request: Request, parts: list[str]) -> Response:
        path = file_of(parts)
        target, overwrite = _destination(request, path), says_yes(request, "allow-overwrite")
        await self._files.move(path, target, conditions_of(request.headers), overwrite=overwrite)
        return Response(status_code=204, headers={"Content-Location": location(target)})

    async def copy(self, request: Request, parts: list[str]) -> Response:
        path = file_of(parts)
        target, overwrite = _destination(request, path), says_yes(request, "allow-overwrite")
        await self._files.copy(path, target, conditions_of(request.headers), overwrite=overwrite)
        return Response(status_code=204, headers={"Content-Location": location(target)})

    async def _place(self, parts: list[str]) -> Place | None:
        """What is there; a path that ends in a slash is a folder's unless a target stands in it."""
        place = await places.find(self._files.vault, parts)
        if place is None:
            places.refuse_missing(parts)
        return None if place is not None and place.target is None and parts[-1] == "" else place

    async def _edit(self, request: Request, path: str, order: Order, place: Place | None = None) -> Response:
        """The patched note, whose type is Markdown whatever it is."""
        warnings: list[Warned] = []

        def edited(present: bytes | None) -> bytes:
            nonlocal warnings
            done = order(_text(path, present))
            warnings = done.warnings
            return done.text.encode()

        content = await self._files.change(path, edited, conditions_of(request.headers))
        headers = {"ETag": tag(content_hash(content))}
        if request.headers.get("markdown-patch-version") == "1":
            headers |= SUNSET
        if place is not None and place.target is not None:
            headers["Content-Location"] = location(path)
        if warnings:
            shown = json.dumps([{"code": each.code, "message": each.message} for each in warnings], ensure_ascii=False)
            headers["Markdown-Patch-Warnings"] = quote(shown, safe="!'()*~")
        return Response(content, media_type=MARKDOWN_TEXT, headers=headers)


def appended(present: bytes | None, added: bytes) -> bytes:
    """With a line end between, if one is missing."""
    if not present:
        return added
    return present + (b"" if present.endswith(b"\n") else b"\n") + added


def _text(path: str, present: bytes | None) -> str:
    if present is None:
        raise NoSuchNote(f"The vault has no file {path!r}.")
    return text_of(path, present)


def _destination(request: Request, source: str) -> str:
    """A path of the vault; one that ends in a slash is the folder that the file goes into."""
    given = request.headers.get("destination")
    if given is None:
        raise Refused(errors.NO_DESTINATION, "The header Destination is missing.")
    try:
        path = unquote(given.strip(), errors="strict").replace("\\", "/")
    except UnicodeDecodeError:
        raise Refused(errors.BAD_DESTINATION, "The header Destination is not percent-encoded UTF-8.") from None
    while "//" in path:
        path = path.replace("//", "/")
    if path.startswith("/"):
        raise InvalidPath("The destination begins with a slash; it is a path of the vault.")
    return path + source.rpartition("/")[2] if not path or path.endswith("/") else path
