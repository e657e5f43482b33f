"""PUT, POST, PATCH, DELETE, MOVE and COPY of files and parts of notes.

`WriteHandlers` parses requests; `VaultFiles` changes files and never overwrites a concurrent write.
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
from stentor_vault.notes.model import (
    ANY_STATE,
    NO_FILE,
    NoSuchNote,
    NoteChanged,
    Stat,
    content_hash,
    require_portable_names,
)
from stentor_vault.notes.paths import InvalidPath, compose_path
from stentor_vault.server import errors, targets
from stentor_vault.server.errors import FILE_EXISTS, VaultApiError
from stentor_vault.server.patch_ops import TextPatch, parse_legacy_patch, parse_part_write, parse_patch
from stentor_vault.server.patching.markdown_text import PatchWarning
from stentor_vault.server.request_parsing import (
    MARKDOWN_TEXT,
    NO_CONDITIONS,
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
from stentor_vault.server.search.text_index import VaultTextIndex
from stentor_vault.server.targets import ResolvedPath

MAX_ATTEMPTS = 16
MAX_WARNINGS = 10
"""Clients reject a response with a header of more than 8 KiB, although the note was written."""
EditContent = Callable[[bytes | None], bytes]
DEPRECATION_HEADERS = {"Deprecation": 'true; sunset-version="6.0"'}


class WriteHandlers:
    """Handlers that change files and parts of notes."""

    def __init__(self, files: VaultFiles) -> None:
        self._files = files

    async def put(self, request: Request, parts: list[str]) -> Response:
        return await self._store(request, parts, "replace", lambda _, body: body)

    async def post(self, request: Request, parts: list[str]) -> Response:
        return await self._store(request, parts, "append", append_on_new_line)

    async def _store(
        self, request: Request, parts: list[str], operation: str, combine: Callable[[bytes | None, bytes], bytes]
    ) -> Response:
        """Write the whole file, or the part that the path or headers of format 1 name."""
        resolved, body = await self._resolve(parts), await read_body(request, model.MAX_NOTE_BYTES)
        if resolved is not None and resolved.target is not None:
            patch = parse_part_write(request, body, resolved.target, operation)
            return await self._edit(request, resolved.file.path, patch, resolved)
        path = require_file_path(parts)
        if has_target_header(request):
            if get_patch_version(request) != 1:
                raise VaultApiError(
                    errors.LEGACY_TARGET,
                    "Target headers require Markdown-Patch-Version: 1. Or put the target in the path.",
                )
            return await self._edit(request, path, parse_legacy_patch(request, body, operation))
        if operation == "append" and not (get_content_type(request) or "text/markdown").startswith("text/"):
            raise VaultApiError(errors.NOT_TEXT, "Only text can be appended. Send it with a Content-Type of text/*.")
        conditions = parse_preconditions(request.headers)
        if operation == "replace" and conditions == NO_CONDITIONS:
            content = await self._files.replace(path, body)
        else:
            content = await self._files.edit(path, lambda current: combine(current, body), conditions)
        return Response(status_code=204, headers={"ETag": format_etag(content_hash(content))})

    async def patch(self, request: Request, parts: list[str]) -> Response:
        resolved, body = await self._resolve(parts), await read_body(request, model.MAX_NOTE_BYTES)
        path = require_file_path(parts) if resolved is None else resolved.file.path
        patch = parse_patch(request, body, resolved.target if resolved else None)
        return await self._edit(request, path, patch, resolved)

    async def delete(self, request: Request, parts: list[str]) -> Response:
        resolved = await self._resolve(parts)
        if resolved is not None and resolved.target is not None:
            raise VaultApiError(
                errors.METHOD_NOT_ALLOWED,
                "DELETE is for whole files. Delete a part by PATCH with the operation delete.",
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

    async def _resolve(self, parts: list[str]) -> ResolvedPath[Stat] | None:
        """Resolve a path; one that ends in a slash names a folder, unless it has a target."""
        resolved = await targets.resolve_path(self._files.stat, parts)
        if resolved is None:
            targets.reject_missing_target(parts)
        return None if resolved is not None and resolved.target is None and parts[-1] == "" else resolved

    async def _edit(
        self, request: Request, path: str, patch: TextPatch, resolved: ResolvedPath[Stat] | None = None
    ) -> Response:
        """Apply a patch and return the new note, always as Markdown."""
        warnings: list[PatchWarning] = []

        def edit(current: bytes | None) -> bytes:
            nonlocal warnings
            if current is None:
                raise NoSuchNote(f"The vault has no file {path!r}.")
            result = patch(decode_note(path, current))
            warnings = result.warnings
            return result.text.encode()

        content = await self._files.edit(path, edit, parse_preconditions(request.headers))
        headers = {"ETag": format_etag(content_hash(content))}
        if request.headers.get("markdown-patch-version") == "1":
            headers |= DEPRECATION_HEADERS
        if resolved is not None and resolved.target is not None:
            headers["Content-Location"] = encode_path(path)
        if warnings:
            headers["Markdown-Patch-Warnings"] = _format_warnings(warnings)
        return Response(content, media_type=MARKDOWN_TEXT, headers=headers)


def append_on_new_line(current: bytes | None, added: bytes) -> bytes:
    """Append text, after a line break if the current content does not end with one."""
    if not current:
        return added
    return current + (b"" if current.endswith(b"\n") else b"\n") + added


def _format_warnings(warnings: list[PatchWarning]) -> str:
    items = [{"code": warning.code, "message": warning.message} for warning in warnings]
    if len(items) > MAX_WARNINGS:
        rest = len(items) - MAX_WARNINGS + 1
        items[MAX_WARNINGS - 1 :] = [{"code": "more-warnings", "message": f"And {rest} more warnings."}]
    return quote(json.dumps(items, ensure_ascii=False), safe="!'()*~")


def _destination(request: Request, source: str) -> str:
    """Return the target path in NFC; a Destination that ends in a slash is the folder for a file of the same name."""
    value = request.headers.get("destination")
    if value is None:
        raise VaultApiError(errors.NO_DESTINATION, "The header Destination is missing.")
    try:
        # Decoded before the checks below, so that an encoded slash does not pass them.
        path = unquote(value.strip(), errors="strict").replace("\\", "/")
    except UnicodeDecodeError:
        raise VaultApiError(errors.BAD_DESTINATION, "The header Destination is not percent-encoded UTF-8.") from None
    path = compose_path(path)
    while "//" in path:
        path = path.replace("//", "/")
    if path.startswith("/"):
        raise InvalidPath("The header Destination is absolute. Use a path relative to the vault's root.")
    return path + source.rpartition("/")[2] if not path or path.endswith("/") else path


class VaultFiles:
    """Changes of files, one at a time for each file; a write conflict with another program is retried."""

    def __init__(self, vault: FolderVault, texts: VaultTextIndex) -> None:
        self.vault = vault
        self._texts = texts
        # Chosen by the hash of the path, because one lock per path would be unbounded; paths that share a lock only
        # wait.
        self._locks = [asyncio.Lock() for _ in range(256)]

    async def stat(self, path: str) -> Stat:
        return await self.vault.run_in_thread(self.vault.stat_sync, path)

    async def edit(self, path: str, edit: EditContent, conditions: Preconditions) -> bytes:
        """Read, edit, and write if the file was not modified since. Raises VaultApiError and what `edit` raises."""
        async with self._lock(path):
            for _ in range(MAX_ATTEMPTS):
                current = await self._read_if_exists(path)
                conditions.require(path, current)
                # In a thread: parsing the Markdown of a long note takes a while.
                content = await asyncio.to_thread(edit, current)
                if current is None:
                    await require_portable_names(self.vault, path)
                try:
                    await self.vault.write(path, content, NO_FILE if current is None else content_hash(current))
                # Another program has written in between, because it does not use our lock.
                except NoteChanged:
                    continue
                await self._texts.refresh(path)
                return content
        raise _contention_error(path)

    async def replace(self, path: str, content: bytes) -> bytes:
        """Write a file whatever it has now, without reading it: it may be larger than what is read."""
        async with self._lock(path):
            try:
                await self.stat(path)
            except NoSuchNote:
                await require_portable_names(self.vault, path)
            await self.vault.write(path, content)
            await self._texts.refresh(path)
            return content

    async def delete(self, path: str, conditions: Preconditions, *, permanent: bool) -> None:
        async with self._lock(path):
            for _ in range(MAX_ATTEMPTS):
                expected = await self._require(path, conditions)
                try:
                    await self.vault.run_in_thread(self.vault.delete_sync, path, expected, permanent=permanent)
                except NoteChanged:
                    continue
                await self._texts.refresh(path)
                return
        raise _contention_error(path)

    async def move(self, path: str, target: str, conditions: Preconditions, *, overwrite: bool) -> None:
        """Move a file; links in other notes are not updated. Raises VaultApiError, NoSuchNote."""
        async with self._lock(path):
            await self._require(path, conditions)
            if path == target:
                return
            await require_portable_names(self.vault, target)
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
        await require_portable_names(self.vault, target)
        try:
            await self.vault.write(target, note.content, ANY_STATE if overwrite else NO_FILE)
        except NoteChanged:
            raise _file_exists_error(target) from None
        await self._texts.refresh(target)

    def _lock(self, path: str) -> asyncio.Lock:
        return self._locks[hash(path) % len(self._locks)]

    async def _require(self, path: str, conditions: Preconditions) -> str:
        """Check the conditions of a change of an existing file; return the state that the change expects.

        Without conditions the file is not read: it may be larger than what is read. Raises VaultApiError, NoSuchNote.
        """
        if conditions == NO_CONDITIONS:
            await self.stat(path)
            return ANY_STATE
        current = (await self.vault.read(path)).content
        conditions.require(path, current)
        return content_hash(current)

    async def _read_if_exists(self, path: str) -> bytes | None:
        try:
            return (await self.vault.read(path)).content
        except NoSuchNote:
            return None


def _file_exists_error(target: str) -> VaultApiError:
    return VaultApiError(FILE_EXISTS, f"{target!r} already exists. Send Allow-Overwrite: true to replace it.")


def _contention_error(path: str) -> VaultApiError:
    return VaultApiError(FILE_EXISTS, f"{path!r} was modified concurrently {MAX_ATTEMPTS} times. Retry later.")
