"""PUT, POST, PATCH, DELETE, MOVE and COPY of files and of parts of notes.

The files of the vault as the routes use them: read, changed for the state that was read, moved, deleted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from stentor_vault.notes import model
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import ANY_STATE, NO_FILE, NoSuchNote, NoteChanged, content_hash
from stentor_vault.notes.paths import InvalidPath
from stentor_vault.server import errors, targets
from stentor_vault.server.errors import FILE_EXISTS, VaultApiError
from stentor_vault.server.patch_ops import TextPatch, parse_legacy_patch, parse_part_write, parse_patch
from stentor_vault.server.patching.markdown_text import PatchWarning
from stentor_vault.server.request_parsing import (
    MARKDOWN_TEXT,
    Preconditions,
    decode_note,
    encode_path,
    format_etag,
    get_content_type,
    get_patch_version,
    has_target_header,
    is_true_header,
    parse_preconditions,
    read_body,
    require_file_path,
)
from stentor_vault.server.targets import ResolvedPath
from stentor_vault.server.text_index import VaultTextIndex

DEPRECATION_HEADERS = {"Deprecation": 'true; sunset-version="6.0"'}


class WriteHandlers:
    """`max_body` in bytes."""

    def __init__(self, files: VaultFiles, max_body: int = model.MAX_NOTE_BYTES) -> None:
        self._files = files
        self._max_body = max_body

    async def put(self, request: Request, parts: list[str]) -> Response:
        return await self._store(request, parts, "replace", lambda _, body: body)

    async def post(self, request: Request, parts: list[str]) -> Response:
        return await self._store(request, parts, "append", append_on_new_line)

    async def _store(
        self, request: Request, parts: list[str], operation: str, store: Callable[[bytes | None, bytes], bytes]
    ) -> Response:
        """The whole file, or the part that the path or headers of format 1 name."""
        place, body = await self._place(parts), await read_body(request, self._max_body)
        if place is not None and place.target is not None:
            return await self._edit(
                request, place.note.path, parse_part_write(request, body, place.target, operation), place
            )
        path = require_file_path(parts)
        if has_target_header(request):
            if get_patch_version(request) != 1:
                raise VaultApiError(
                    errors.LEGACY_TARGET, "Target headers are of Markdown-Patch-Version 1; or use the path."
                )
            return await self._edit(request, path, parse_legacy_patch(request, body, operation))
        if operation == "append" and not (get_content_type(request) or "text/markdown").startswith("text/"):
            raise VaultApiError(errors.NOT_TEXT, "Only text can be appended: send it with a Content-Type of text/*.")
        conditions = parse_preconditions(request.headers)
        content = await self._files.edit(path, lambda present: store(present, body), conditions)
        return Response(status_code=204, headers={"ETag": format_etag(content_hash(content))})

    async def patch(self, request: Request, parts: list[str]) -> Response:
        place, body = await self._place(parts), await read_body(request, self._max_body)
        path = require_file_path(parts) if place is None else place.note.path
        return await self._edit(request, path, parse_patch(request, body, place.target if place else None), place)

    async def delete(self, request: Request, parts: list[str]) -> Response:
        place = await self._place(parts)
        if place is not None and place.target is not None:
            raise VaultApiError(
                errors.METHOD_NOT_ALLOWED, "A part of a note is deleted by PATCH with the operation delete."
            )
        permanent = request.query_params.get("permanent", "").lower() == "true"
        await self._files.delete(require_file_path(parts), parse_preconditions(request.headers), permanent=permanent)
        return Response(status_code=204)

    async def move(self, request: Request, parts: list[str]) -> Response:
        path = require_file_path(parts)
        target, overwrite = _destination(request, path), is_true_header(request, "allow-overwrite")
        await self._files.move(path, target, parse_preconditions(request.headers), overwrite=overwrite)
        return Response(status_code=204, headers={"Content-Location": encode_path(target)})

    async def copy(self, request: Request, parts: list[str]) -> Response:
        path = require_file_path(parts)
        target, overwrite = _destination(request, path), is_true_header(request, "allow-overwrite")
        await self._files.copy(path, target, parse_preconditions(request.headers), overwrite=overwrite)
        return Response(status_code=204, headers={"Content-Location": encode_path(target)})

    async def _place(self, parts: list[str]) -> ResolvedPath | None:
        """What is there; a path that ends in a slash is a folder's unless a target stands in it."""
        place = await targets.resolve_path(self._files.vault, parts)
        if place is None:
            targets.reject_missing_target(parts)
        return None if place is not None and place.target is None and parts[-1] == "" else place

    async def _edit(self, request: Request, path: str, order: TextPatch, place: ResolvedPath | None = None) -> Response:
        """The patched note, whose type is Markdown whatever it is."""
        warnings: list[PatchWarning] = []

        def edited(present: bytes | None) -> bytes:
            nonlocal warnings
            done = order(_require_text(path, present))
            warnings = done.warnings
            return done.text.encode()

        content = await self._files.edit(path, edited, parse_preconditions(request.headers))
        headers = {"ETag": format_etag(content_hash(content))}
        if request.headers.get("markdown-patch-version") == "1":
            headers |= DEPRECATION_HEADERS
        if place is not None and place.target is not None:
            headers["Content-Location"] = encode_path(path)
        if warnings:
            shown = json.dumps([{"code": each.code, "message": each.message} for each in warnings], ensure_ascii=False)
            headers["Markdown-Patch-Warnings"] = quote(shown, safe="!'()*~")
        return Response(content, media_type=MARKDOWN_TEXT, headers=headers)


def append_on_new_line(present: bytes | None, added: bytes) -> bytes:
    """With a line end between, if one is missing."""
    if not present:
        return added
    return present + (b"" if present.endswith(b"\n") else b"\n") + added


def _require_text(path: str, present: bytes | None) -> str:
    if present is None:
        raise NoSuchNote(f"The vault has no file {path!r}.")
    return decode_note(path, present)


def _destination(request: Request, source: str) -> str:
    """A path of the vault; one that ends in a slash is the folder that the file goes into."""
    given = request.headers.get("destination")
    if given is None:
        raise VaultApiError(errors.NO_DESTINATION, "The header Destination is missing.")
    try:
        path = unquote(given.strip(), errors="strict").replace("\\", "/")
    except UnicodeDecodeError:
        raise VaultApiError(errors.BAD_DESTINATION, "The header Destination is not percent-encoded UTF-8.") from None
    while "//" in path:
        path = path.replace("//", "/")
    if path.startswith("/"):
        raise InvalidPath("The destination begins with a slash; it is a path of the vault.")
    return path + source.rpartition("/")[2] if not path or path.endswith("/") else path


MAX_ATTEMPTS = 16
EditContent = Callable[[bytes | None], bytes]


class VaultFiles:
    """Changes of one file wait for each other; a lost race with another program is tried again."""

    def __init__(self, vault: FolderVault, texts: VaultTextIndex) -> None:
        self.vault = vault
        self._texts = texts
        self._locks = [asyncio.Lock() for _ in range(256)]

    async def edit(self, path: str, edit: EditContent, conditions: Preconditions) -> bytes:
        """Read, edit, write, for the state that was read. Raises Refused, NoSuchNote and what the edit raises."""
        async with self._lock(path):
            for _ in range(MAX_ATTEMPTS):
                present = await self._present(path)
                conditions.require(path, present)
                content = await asyncio.to_thread(edit, present)
                try:
                    await self.vault.write(path, content, NO_FILE if present is None else content_hash(present))
                except NoteChanged:
                    continue
                await self._texts.refresh(path)
                return content
        raise _contention_error(path)

    async def delete(self, path: str, conditions: Preconditions, *, permanent: bool) -> None:
        async with self._lock(path):
            for _ in range(MAX_ATTEMPTS):
                present = (await self.vault.read(path)).content
                conditions.require(path, present)
                try:
                    await self.vault.run_in_thread(
                        self.vault.delete_sync, path, content_hash(present), permanent=permanent
                    )
                except NoteChanged:
                    continue
                await self._texts.refresh(path)
                return
        raise _contention_error(path)

    async def move(self, path: str, target: str, conditions: Preconditions, *, overwrite: bool) -> None:
        """Links in other notes stay as they are."""
        async with self._lock(path):
            conditions.require(path, (await self.vault.read(path)).content)
            if path == target:
                return
            try:
                await self.vault.run_in_thread(self.vault.move_sync, path, target, overwrite=overwrite)
            except NoteChanged:
                raise _file_exists_error(target) from None
        await self._texts.refresh(path)
        await self._texts.refresh(target)

    async def copy(self, path: str, target: str, conditions: Preconditions, *, overwrite: bool) -> None:
        note = await self.vault.read(path)
        conditions.require(path, note.content)
        if path == target:
            raise _file_exists_error(target)
        try:
            await self.vault.write(target, note.content, ANY_STATE if overwrite else NO_FILE)
        except NoteChanged:
            raise _file_exists_error(target) from None
        await self._texts.refresh(target)

    def _lock(self, path: str) -> asyncio.Lock:
        return self._locks[hash(path) % len(self._locks)]

    async def _present(self, path: str) -> bytes | None:
        try:
            return (await self.vault.read(path)).content
        except NoSuchNote:
            return None


def _file_exists_error(target: str) -> VaultApiError:
    return VaultApiError(FILE_EXISTS, f"{target!r} exists; Allow-Overwrite: true replaces it.")


def _contention_error(path: str) -> VaultApiError:
    return VaultApiError(FILE_EXISTS, f"{path!r} changes faster than it can be read; try again.")
