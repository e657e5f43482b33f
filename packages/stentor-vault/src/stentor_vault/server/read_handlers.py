"""GET and HEAD of files, folders and parts of notes.

The two searches: words, and JsonLogic.
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from stentor_vault import jsontext
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import NoSuchNote, Note
from stentor_vault.notes.paths import InvalidPath
from stentor_vault.server import errors, targets, text_index
from stentor_vault.server.errors import VaultApiError
from stentor_vault.server.jsonlogic import JsonLogicRule
from stentor_vault.server.patching import legacy, note_parts
from stentor_vault.server.patching.instruction import TARGET_KINDS
from stentor_vault.server.request_parsing import (
    JSON,
    MARKDOWN_TEXT,
    decode_header,
    decode_json,
    decode_note,
    encode_path,
    format_etag,
    get_content_type,
    get_patch_version,
    has_target_header,
    join_path,
    parse_preconditions,
)
from stentor_vault.server.targets import NoteTarget
from stentor_vault.server.text_index import SimpleSearchHit, VaultTextIndex
from stentor_vault.server.write_handlers import DEPRECATION_HEADERS

NOTE_JSON, MAP_JSON = "application/vnd.olrapi.note+json", "application/vnd.olrapi.document-map+json"
_SCOPES = ("content", "marker", "markerAndContent")
_TYPES = mimetypes.MimeTypes()
_TYPES.add_type("text/markdown", ".md")


class ReadHandlers:
    def __init__(self, vault: FolderVault, texts: VaultTextIndex) -> None:
        self._vault = vault
        self._texts = texts

    async def get(self, request: Request, parts: list[str]) -> Response:
        """A folder lists; a file is what the caller accepts of it; a part of a note is that part."""
        place = await targets.resolve_path(self._vault, parts)
        if place is None or place.target is not None:
            listing = await self._listing(parts)
            if listing is not None:
                return listing
        if place is None:
            raise NoSuchNote(f"The vault has nothing at {join_path(parts)!r}.")
        response = await self._answer(request, place.note, place.target)
        if place.target is not None:
            response.headers["Content-Location"] = encode_path(place.note.path)
        return _apply_if_none_match(request, response)

    async def _listing(self, parts: list[str]) -> Response | None:
        """One level; a folder without any file below it is not there. Raises InvalidPath for what no vault holds."""
        if any("/" in part for part in parts):
            return None
        folder = "/".join(parts[:-1] if parts[-1] == "" else parts)
        try:
            found = await self._vault.run_in_thread(self._vault.list_nonempty_sync, folder)
        except NoSuchNote:
            return None
        except InvalidPath:
            if any(part in TARGET_KINDS for part in parts):
                return None
            raise
        return None if folder and not found else Response(jsontext.encode({"files": found}), media_type=JSON)

    async def _answer(self, request: Request, note: Note, target: NoteTarget | None) -> Response:
        accept = request.headers.get("accept", "")
        document = text_index.to_document(note)
        if document is not None and NOTE_JSON in accept:
            await self._texts.wait_until_loaded()
            links = self._texts.links.get_links(note.path)
            body = jsontext.encode(text_index.note_to_json(note, document, links))
            weak = hashlib.sha256(body).hexdigest()[:32]
            return Response(body, headers={"ETag": f'W/"{weak}"'}, media_type=NOTE_JSON)
        headers = {"ETag": format_etag(note.hash)}
        if document is not None and MAP_JSON in accept:
            return await asyncio.to_thread(
                _document_map_response, request, decode_note(note.path, note.content), headers
            )
        if target is None and not has_target_header(request):
            name = quote(note.path, safe="/!'()*~;:@&=+$#?")
            headers["Content-Disposition"] = f'attachment; filename="{name}"'
            kind = _guess_media_type(note.path, is_text=document is not None)
            return Response(note.content, headers=headers, media_type=kind)
        return await asyncio.to_thread(_part_response, request, decode_note(note.path, note.content), target, headers)


def _guess_media_type(path: str, *, is_text: bool) -> str:
    found = _TYPES.guess_type(path.rpartition("/")[2])[0]
    if found == "text/markdown" or (found is None and is_text):
        return MARKDOWN_TEXT
    return found or "application/octet-stream"


def _document_map_response(request: Request, text: str, headers: dict[str, str]) -> Response:
    if get_patch_version(request) == 2:
        return Response(jsontext.encode(note_parts.build_document_map(text)), headers=headers, media_type=MAP_JSON)
    body = note_parts.build_legacy_document_map(text)
    return Response(jsontext.encode(body), headers=headers | DEPRECATION_HEADERS, media_type=MAP_JSON)


def _part_response(request: Request, text: str, target: NoteTarget | None, headers: dict[str, str]) -> Response:
    if target is None:
        kind, found = _by_headers(request, text)
        headers = headers | DEPRECATION_HEADERS
    elif has_target_header(request):
        raise VaultApiError(errors.AMBIGUOUS_TARGET, "The target is named by the path and by headers; use one.")
    else:
        kind, found = target.kind, _by_path(request, text, target)
    if kind == "frontmatter":
        return Response(jsontext.encode(found), headers=headers, media_type=JSON)
    return Response(str(found).encode(), headers=headers, media_type=MARKDOWN_TEXT)


def _by_path(request: Request, text: str, target: NoteTarget) -> Any:
    assert target.names is not None
    if get_patch_version(request) == 1:
        return legacy.read_part(text, target.kind, *target.legacy_target)
    scope = request.headers.get("target-scope", "content")
    if scope not in _SCOPES:
        raise VaultApiError(errors.BAD_SCOPE, f"The header Target-Scope of a GET is one of {', '.join(_SCOPES)}.")
    return note_parts.read_part(text, target.kind, target.names, scope)


def _by_headers(request: Request, text: str) -> tuple[str, Any]:
    """Format 1."""
    kind, name = request.headers.get("target-type", ""), decode_header(request, "target")
    if kind not in TARGET_KINDS:
        code = errors.BAD_TARGET_TYPE if kind else errors.NO_TARGET_TYPE
        raise VaultApiError(code, f"The header Target-Type is one of {', '.join(TARGET_KINDS)}.")
    if get_patch_version(request) != 1:
        raise VaultApiError(
            errors.LEGACY_TARGET, "Target headers of a GET are of Markdown-Patch-Version 1; or use the path."
        )
    if not name:
        raise VaultApiError(errors.NO_TARGET, "The header Target is missing.")
    return kind, legacy.read_part(text, kind, name, request.headers.get("target-delimiter") or "::")


def _apply_if_none_match(request: Request, response: Response) -> Response:
    """304 when the caller has this version."""
    known = parse_preconditions(request.headers).none_match
    version = response.headers["etag"].removeprefix("W/").strip('"')
    if known is not None and (version in known or "*" in known):
        headers = {name: value for name, value in response.headers.items() if name in ("etag", "content-location")}
        return Response(status_code=304, headers=headers)
    return response


JSON_LOGIC = "application/vnd.olrapi.jsonlogic+json"
DATAVIEW = "application/vnd.olrapi.dataview.dql+txt"
DEFAULT_CONTEXT_CHARS = 100


class SearchHandlers:
    def __init__(self, texts: VaultTextIndex) -> None:
        self._texts = texts

    async def simple(self, request: Request) -> list[SimpleSearchHit]:
        query = request.query_params.get("query", "")
        if not query.strip():
            raise VaultApiError(errors.NO_QUERY, "The parameter query is missing.")
        await self._texts.wait_until_loaded()
        return await asyncio.to_thread(self._texts.search, query, _parse_context_length(request))

    async def logic(self, request: Request, body: bytes) -> list[dict[str, Any]]:
        """Notes for which the rule is true, with what it gives. Raises Refused, BadLogic."""
        kind = get_content_type(request)
        if not kind:
            raise VaultApiError(errors.NO_CONTENT_TYPE, f"The header Content-Type is missing; it is {JSON_LOGIC}.")
        if kind == DATAVIEW:
            raise VaultApiError(errors.BAD_CONTENT_TYPE, "Dataview's language is not understood; JsonLogic is.")
        if kind != JSON_LOGIC:
            raise VaultApiError(errors.BAD_CONTENT_TYPE, f"A search is sent as {JSON_LOGIC}, not as {kind[:80]!r}.")
        rule = JsonLogicRule(decode_json(body))
        await self._texts.wait_until_loaded()
        return await asyncio.to_thread(rule.find_matches, self._texts.list_rule_data())


def _parse_context_length(request: Request) -> int:
    given = request.query_params.get("contextLength", str(DEFAULT_CONTEXT_CHARS))
    return min(10_000, int(given)) if given.isascii() and given.isdigit() and len(given) < 6 else DEFAULT_CONTEXT_CHARS
