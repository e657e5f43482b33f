"""GET and HEAD of files, folders and parts of notes, and the two searches: full text and JsonLogic."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from stentor_vault import jsontext
from stentor_vault.jsontext import JsonObject
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import NoSuchNote, Note
from stentor_vault.notes.paths import InvalidPath
from stentor_vault.server import errors, targets
from stentor_vault.server.errors import VaultApiError
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
from stentor_vault.server.search import text_index
from stentor_vault.server.search.jsonlogic import JsonLogicRule
from stentor_vault.server.search.text_index import SimpleSearchHit, VaultTextIndex
from stentor_vault.server.targets import NoteTarget
from stentor_vault.server.write_handlers import DEPRECATION_HEADERS

NOTE_JSON, MAP_JSON = "application/vnd.olrapi.note+json", "application/vnd.olrapi.document-map+json"
JSON_LOGIC = "application/vnd.olrapi.jsonlogic+json"
DATAVIEW = "application/vnd.olrapi.dataview.dql+txt"
DEFAULT_CONTEXT_CHARS = 100
_SCOPES = ("content", "marker", "markerAndContent")
_TYPES = mimetypes.MimeTypes()
_TYPES.add_type("text/markdown", ".md")


class ReadHandlers:
    """Handlers that read files, folders and parts of notes."""

    def __init__(self, vault: FolderVault, texts: VaultTextIndex) -> None:
        self._vault = vault
        self._texts = texts

    async def get(self, request: Request, parts: list[str]) -> Response:
        """Return a listing for a folder, a file in the form that `Accept` names, or a part of a note."""
        resolved = await targets.resolve_path(self._vault.read, parts)
        if resolved is None or resolved.target is not None:
            # An existing folder wins over a part of a note with the same path.
            listing = await self._list_folder(parts)
            if listing is not None:
                return listing
        if resolved is None:
            raise NoSuchNote(f"The vault has no file or folder {join_path(parts)!r}.")
        response = await self._respond(request, resolved.file, resolved.target)
        if resolved.target is not None:
            response.headers["Content-Location"] = encode_path(resolved.file.path)
        return _apply_if_none_match(request, response)

    async def _list_folder(self, parts: list[str]) -> Response | None:
        """List one level; None if there is no folder, or no file below it. Raises InvalidPath."""
        if any("/" in part for part in parts):
            return None
        folder = "/".join(parts[:-1] if parts[-1] == "" else parts)
        try:
            names = await self._vault.run_in_thread(self._vault.list_nonempty_sync, folder)
        except NoSuchNote:
            return None
        except InvalidPath:
            if any(part in TARGET_KINDS for part in parts):
                return None  # the path may name a heading, which may have any characters
            raise
        return None if folder and not names else Response(jsontext.encode({"files": names}), media_type=JSON)

    async def _respond(self, request: Request, note: Note, target: NoteTarget | None) -> Response:
        accept = request.headers.get("accept", "")
        document = text_index.to_document(note)
        if document is not None and NOTE_JSON in accept:
            # The links of a note need the names of all files.
            await self._texts.wait_until_loaded()
            links = self._texts.links.get_links(note.path)
            body = jsontext.encode(text_index.note_to_json(note, document, links))
            # The body depends on links of other notes too, so the file's hash cannot be its version.
            version = hashlib.sha256(body).hexdigest()[:32]
            return Response(body, headers={"ETag": f'W/"{version}"'}, media_type=NOTE_JSON)
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
    media_type = _TYPES.guess_type(path.rpartition("/")[2])[0]
    if media_type == "text/markdown" or (media_type is None and is_text):
        return MARKDOWN_TEXT
    return media_type or "application/octet-stream"


def _document_map_response(request: Request, text: str, headers: dict[str, str]) -> Response:
    if get_patch_version(request) == 2:
        return Response(jsontext.encode(note_parts.build_document_map(text)), headers=headers, media_type=MAP_JSON)
    body = note_parts.build_legacy_document_map(text)
    return Response(jsontext.encode(body), headers=headers | DEPRECATION_HEADERS, media_type=MAP_JSON)


def _part_response(request: Request, text: str, target: NoteTarget | None, headers: dict[str, str]) -> Response:
    if target is None:
        kind, part = _read_legacy_part(request, text)
        headers = headers | DEPRECATION_HEADERS
    elif has_target_header(request):
        raise VaultApiError(errors.AMBIGUOUS_TARGET, "The target is given in the path and in headers. Use only one.")
    else:
        kind, part = target.kind, _read_part(request, text, target)
    if kind == "frontmatter":
        return Response(jsontext.encode(part), headers=headers, media_type=JSON)
    return Response(str(part).encode(), headers=headers, media_type=MARKDOWN_TEXT)


def _read_part(request: Request, text: str, target: NoteTarget) -> Any:
    assert target.names is not None
    if get_patch_version(request) == 1:
        return legacy.read_part(text, target.kind, *target.legacy_target)
    scope = request.headers.get("target-scope", "content")
    if scope not in _SCOPES:
        raise VaultApiError(errors.BAD_SCOPE, f"The header Target-Scope of a GET must be one of {', '.join(_SCOPES)}.")
    return note_parts.read_part(text, target.kind, target.names, scope)


def _read_legacy_part(request: Request, text: str) -> tuple[str, Any]:
    """Read the part that headers name, and its kind: patch format 1."""
    kind, name = request.headers.get("target-type", ""), decode_header(request, "target")
    if kind not in TARGET_KINDS:
        code = errors.BAD_TARGET_TYPE if kind else errors.NO_TARGET_TYPE
        raise VaultApiError(code, f"The header Target-Type must be one of {', '.join(TARGET_KINDS)}.")
    if get_patch_version(request) != 1:
        raise VaultApiError(
            errors.LEGACY_TARGET,
            "Target headers of a GET require Markdown-Patch-Version: 1. Or put the target in the path.",
        )
    if not name:
        raise VaultApiError(errors.NO_TARGET, "The header Target is missing.")
    return kind, legacy.read_part(text, kind, name, unquote(request.headers.get("target-delimiter") or "::"))


def _apply_if_none_match(request: Request, response: Response) -> Response:
    """Return 304 if the caller has this version."""
    tags = parse_preconditions(request.headers).none_match
    version = response.headers["etag"].removeprefix("W/").strip('"')
    if tags is not None and (version in tags or "*" in tags):
        headers = {name: value for name, value in response.headers.items() if name in ("etag", "content-location")}
        return Response(status_code=304, headers=headers)
    return response


class SearchHandlers:
    """Handlers of the two searches, which wait until the text index is loaded."""

    def __init__(self, texts: VaultTextIndex) -> None:
        self._texts = texts

    async def simple(self, request: Request) -> list[SimpleSearchHit]:
        query = request.query_params.get("query", "")
        if not query.strip():
            raise VaultApiError(errors.NO_QUERY, "The parameter query is missing.")
        await self._texts.wait_until_loaded()
        context_chars = _parse_number(request, "contextLength")
        return await asyncio.to_thread(
            self._texts.search,
            query,
            DEFAULT_CONTEXT_CHARS if context_chars is None else min(10_000, context_chars),
            _parse_number(request, "matchLimit"),
        )

    async def logic(self, request: Request, body: bytes) -> list[JsonObject]:
        """Return the notes for which a JsonLogic rule is truthy, with its result. Raises VaultApiError, InvalidRule."""
        kind = get_content_type(request)
        if not kind:
            raise VaultApiError(errors.NO_CONTENT_TYPE, f"The header Content-Type is missing; it must be {JSON_LOGIC}.")
        if kind == DATAVIEW:
            raise VaultApiError(errors.BAD_CONTENT_TYPE, f"Dataview queries are not supported; send {JSON_LOGIC}.")
        if kind != JSON_LOGIC:
            raise VaultApiError(
                errors.BAD_CONTENT_TYPE, f"The Content-Type of a search must be {JSON_LOGIC}, not {kind[:80]!r}."
            )
        rule = decode_json(body)
        await self._texts.wait_until_loaded()
        # The rule's time limit starts here: the first load of a large vault can take longer than the limit.
        return await asyncio.to_thread(JsonLogicRule(rule).find_matches, self._texts.list_rule_data())


def _parse_number(request: Request, name: str) -> int | None:
    """Return a number of at most five digits; None for any other value, which the plugin ignores too."""
    value = request.query_params.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 6 else None
