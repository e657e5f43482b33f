"""GET and HEAD of files, folders and parts of notes."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from stentor.core import jsontext
from stentor.domains.notes.folder import FolderVault
from stentor.domains.notes.model import NoSuchNote, Note
from stentor.domains.notes.paths import InvalidPath
from stentor.surfaces.vault import errors, notes, places
from stentor.surfaces.vault.conditions import conditions_of, tag
from stentor.surfaces.vault.errors import Refused
from stentor.surfaces.vault.patching import legacy, reading
from stentor.surfaces.vault.patching.instruction import KINDS
from stentor.surfaces.vault.places import Target
from stentor.surfaces.vault.requests import (
    JSON,
    MARKDOWN_TEXT,
    format_of,
    has_target,
    header_text,
    joined,
    location,
    text_of,
)
from stentor.surfaces.vault.texts import Texts
from stentor.surfaces.vault.writes import SUNSET

NOTE_JSON, MAP_JSON = "application/vnd.olrapi.note+json", "application/vnd.olrapi.document-map+json"
_SCOPES = ("content", "marker", "markerAndContent")
_TYPES = mimetypes.MimeTypes()
_TYPES.add_type("text/markdown", ".md")


class Reads:
    def __init__(self, vault: FolderVault, texts: Texts) -> None:
        self._vault = vault
        self._texts = texts

    async def get(self, request: Request, parts: list[str]) -> Response:
        """A folder lists; a file is what the caller accepts of it; a part of a note is that part."""
        place = await places.find(self._vault, parts)
        if place is None or place.target is not None:
            listing = await self._listing(parts)
            if listing is not None:
                return listing
        if place is None:
            raise NoSuchNote(f"The vault has nothing at {joined(parts)!r}.")
        response = await self._answer(request, place.note, place.target)
        if place.target is not None:
            response.headers["Content-Location"] = location(place.note.path)
        return _unless_known(request, response)

    async def _listing(self, parts: list[str]) -> Response | None:
        """One level; a folder without any file below it is not there. Raises InvalidPath for what no vault holds."""
        if any("/" in part for part in parts):
            return None
        folder = "/".join(parts[:-1] if parts[-1] == "" else parts)
        try:
            found = await self._vault.run(self._vault.shown_now, folder)
        except NoSuchNote:
            return None
        except InvalidPath:
            if any(part in KINDS for part in parts):
                return None
            raise
        return None if folder and not found else Response(jsontext.encode({"files": found}), media_type=JSON)

    async def _answer(self, request: Request, note: Note, target: Target | None) -> Response:
        accept = request.headers.get("accept", "")
        document = notes.document_of(note)
        if document is not None and NOTE_JSON in accept:
            await self._texts.ready()
            links = self._texts.links.of(note.path)
            body = jsontext.encode(notes.as_json(note, document, links))
            weak = hashlib.sha256(body).hexdigest()[:32]
            return Response(body, headers={"ETag": f'W/"{weak}"'}, media_type=NOTE_JSON)
        headers = {"ETag": tag(note.hash)}
        if document is not None and MAP_JSON in accept:
            return await asyncio.to_thread(_map, request, text_of(note.path, note.content), headers)
        if target is None and not has_target(request):
            name = quote(note.path, safe="/!'()*~;:@&=+$#?")
            headers["Content-Disposition"] = f'attachment; filename="{name}"'
            kind = _kind(note.path, is_text=document is not None)
            return Response(note.content, headers=headers, media_type=kind)
        return await asyncio.to_thread(_part, request, text_of(note.path, note.content), target, headers)


def _kind(path: str, *, is_text: bool) -> str:
    found = _TYPES.guess_type(path.rpartition("/")[2])[0]
    if found == "text/markdown" or (found is None and is_text):
        return MARKDOWN_TEXT
    return found or "application/octet-stream"


def _map(request: Request, text: str, headers: dict[str, str]) -> Response:
    if format_of(request) == 2:
        return Response(jsontext.encode(reading.document_map(text)), headers=headers, media_type=MAP_JSON)
    body = reading.old_document_map(text)
    return Response(jsontext.encode(body), headers=headers | SUNSET, media_type=MAP_JSON)


def _part(request: Request, text: str, target: Target | None, headers: dict[str, str]) -> Response:
    if target is None:
        kind, found = _by_headers(request, text)
        headers = headers | SUNSET
    elif has_target(request):
        raise Refused(errors.TWO_TARGETS, "The target is named by the path and by headers; use one.")
    else:
        kind, found = target.kind, _by_path(request, text, target)
    if kind == "frontmatter":
        return Response(jsontext.encode(found), headers=headers, media_type=JSON)
    return Response(str(found).encode(), headers=headers, media_type=MARKDOWN_TEXT)


def _by_path(request: Request, text: str, target: Target) -> Any:
    assert target.names is not None
    if format_of(request) == 1:
        return legacy.read(text, target.kind, *target.in_one)
    scope = request.headers.get("target-scope", "content")
    if scope not in _SCOPES:
        raise Refused(errors.BAD_SCOPE, f"The header Target-Scope of a GET is one of {', '.join(_SCOPES)}.")
    return reading.part(text, target.kind, target.names, scope)


def _by_headers(request: Request, text: str) -> tuple[str, Any]:
    """Format 1."""
    kind, name = request.headers.get("target-type", ""), header_text(request, "target")
    if kind not in KINDS:
        code = errors.BAD_TARGET_TYPE if kind else errors.NO_TARGET_TYPE
        raise Refused(code, f"The header Target-Type is one of {', '.join(KINDS)}.")
    if format_of(request) != 1:
        raise Refused(errors.OLD_TARGET, "Target headers of a GET are of Markdown-Patch-Version 1; or use the path.")
    if not name:
        raise Refused(errors.NO_TARGET, "The header Target is missing.")
    return kind, legacy.read(text, kind, name, request.headers.get("target-delimiter") or "::")


def _unless_known(request: Request, response: Response) -> Response:
    """304 when the caller has this version."""
    known = conditions_of(request.headers).none_match
    version = response.headers["etag"].removeprefix("W/").strip('"')
    if known is not None and (version in known or "*" in known):
        headers = {name: value for name, value in response.headers.items() if name in ("etag", "content-location")}
        return Response(status_code=304, headers=headers)
    return response
