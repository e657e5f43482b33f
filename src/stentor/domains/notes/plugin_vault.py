"""The port `Vault` over the plugin's API, with the plugin's own operations: search, append, set a frontmatter key.

The HTTP client is in `plugin_client`, the differences between the plugin's versions in `plugin_calls`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.notes import plugin_calls
from stentor.domains.notes.plugin_calls import FrontmatterPatcher
from stentor.domains.notes.plugin_client import (
    PluginClient,
    PluginResponse,
    PluginResponseTooLarge,
    vault_path,
    with_query,
)
from stentor_vault.notes import frontmatter, model, paths
from stentor_vault.notes.files.path_locks import PathLocks
from stentor_vault.notes.model import (
    ANY_STATE,
    NO_FILE,
    FileChange,
    NoSuchNote,
    Note,
    NoteChanged,
    NoteTooLarge,
    Stat,
    VaultProtocolError,
)

NOTE_JSON = "application/vnd.olrapi.note+json"
MARKDOWN_HEADERS = {"Content-Type": "text/markdown"}
BINARY_HEADERS = {"Content-Type": "application/octet-stream"}
"""For content that is not text, and for a byte order mark, which the plugin drops from text."""
MAX_ATTEMPTS = 16
NO_QUERY_CODE = 40090
"""The plugin's code for an empty search query."""
CONTEXT_CHARS = "100"
"""Characters around a match; plugins before 4 have no default."""
_INVALID_SEARCH_RESULT = "The vault plugin returned an invalid search result."


class PluginSearchHit(msgspec.Struct, frozen=True):
    """A note that a search found. `excerpt` is the text around a match, empty for a match in the name."""

    path: str
    excerpt: str
    score: float


class _CurrentFile(msgspec.Struct, frozen=True):
    """The current content of a file; `etag` is the strong entity tag, empty if the plugin sends none."""

    content: bytes
    etag: str

    @property
    def conditions(self) -> dict[str, str]:
        return {"If-Match": self.etag} if self.etag else {}


class PluginVault:
    """A vault behind a plugin.

    A plugin that sends a strong `ETag` checks the precondition of a change itself (`If-Match`, and
    `If-None-Match: *` for a new note). An older one cannot: there this object reads, compares and writes the note
    under a lock per path, and a change that another program makes between the read and the write is lost. The same
    holds for deleting and for setting a key.
    """

    def __init__(self, plugin: PluginClient) -> None:
        self._plugin = plugin
        self._patcher = FrontmatterPatcher(plugin)
        self._locks = PathLocks()

    async def read(self, path: str) -> Note:
        segments = paths.split_path(path)
        content = (await self._read_file(segments)).content
        if len(content) > model.MAX_NOTE_BYTES:
            raise NoteTooLarge(f"{path!r} has {len(content)} bytes; the maximum is {model.MAX_NOTE_BYTES}.")
        return Note(await self._stat(segments, len(content)), content)

    async def read_content(self, path: str) -> bytes:
        """Return the bytes of a note with one request. Raises NoSuchNote, NoteTooLarge."""
        return (await self._read_file(paths.split_path(path))).content

    async def write(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        previous = await self.replace(path, content, expected)
        return FileChange(await self._stat(paths.split_path(path), len(content)), previous)

    async def replace(self, path: str, content: bytes, expected: str = ANY_STATE) -> bytes | None:
        """Write like `write`, but return only the previous content, None if there was no file."""
        segments = paths.split_path(path)
        if len(content) > model.MAX_NOTE_BYTES:
            raise NoteTooLarge(f"{path!r} would have {len(content)} bytes; the maximum is {model.MAX_NOTE_BYTES}.")
        # Only against other writers in this process; If-Match covers the rest where the plugin supports it.
        async with self._locks.hold(path):
            current = None
            for _ in range(MAX_ATTEMPTS):
                # Read again after each 412: with ANY_STATE the write goes ahead on the new content.
                current = await self._read_expected(segments, expected)
                if current is None:
                    await self._require_free_path(segments)
                if await self._put(segments, content, current):
                    return None if current is None else current.content
            raise NoteChanged(path, NO_FILE if current is None else model.content_hash(current.content))

    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange:
        segments = paths.split_path(path)
        async with self._locks.hold(path):
            current = None
            for _ in range(MAX_ATTEMPTS):
                current = await self._read_expected(segments, expected)
                if current is None:
                    break
                response = await self._plugin.request("DELETE", vault_path(segments), headers=current.conditions)
                # 404: somebody else deleted it after the read; the next round finds no file.
                if response.status not in (404, 412):
                    plugin_calls.require_no_content(response, path)
                    return FileChange(None, current.content)
        raise _no_such_note(path)

    async def list_folder(self, folder: str = "") -> list[str]:
        return await plugin_calls.list_folder(self._plugin, _split_folder(folder))

    async def list_files(self, folder: str = "") -> list[str]:
        """Return the paths of all files below the folder, sorted; one request per folder."""
        return await plugin_calls.walk_files(self._plugin, _split_folder(folder))

    async def walk(self, folder: str = "") -> list[Stat]:
        """List the files below the folder, without those that are too large for a response.

        One request per folder and file, because the plugin lists only names.
        """
        slots = asyncio.Semaphore(plugin_calls.MAX_CONCURRENT_REQUESTS)

        async def stat(path: str) -> Stat | None:
            async with slots:
                try:
                    return await self._stat(path.split("/"))
                except (NoSuchNote, NoteTooLarge):
                    return None  # deleted since the listing, or a video, which is not read

        stats = await asyncio.gather(*map(stat, await self.list_files(folder)))
        return [file for file in stats if file is not None]

    async def check(self) -> None:
        """Raise VaultUnavailable if the plugin is unreachable or rejects the key."""
        await self._plugin.fetch_version()

    async def search(self, text: str) -> list[PluginSearchHit]:
        """Return the notes that the plugin's simple search finds, best first.

        Raises InvalidRequest for a query that the plugin treats as empty.
        """
        # Only the first match is read. With all of them, a word that 12,000 notes have exceeds the limit of a response.
        # The plugin ignores `matchLimit`.
        query = with_query("/search/simple/", query=text, contextLength=CONTEXT_CHARS, matchLimit="1")
        response = await self._plugin.request("POST", query)
        if not response.ok and response.error_code == NO_QUERY_CODE:
            raise InvalidRequest("The query has no words.")
        rows = response.json() if response.ok else None
        if not isinstance(rows, list):
            raise (response.to_error() if not response.ok else VaultProtocolError(_INVALID_SEARCH_RESULT))
        return [_parse_hit(row) for row in rows]

    async def append(self, path: str, text: str) -> None:
        """Append a text on a new line; create the note if it does not exist.

        Raises NameTaken, FolderExists, NoteTooLarge, InvalidPath for a new name that some operating system cannot
        have, and NoSuchNote if a path component is a file.
        """
        segments = paths.split_path(path)
        async with self._locks.hold(path):
            if await self._read_if_exists(segments) is None:
                await model.require_portable_names(self, path)
                await plugin_calls.require_free_path(self._plugin, segments)
            response = await self._plugin.request(
                "POST", vault_path(segments), headers=MARKDOWN_HEADERS, body=text.encode()
            )
        plugin_calls.require_no_content(response, path)

    async def set_key(self, path: str, key: str, value: Any, expected: str = ANY_STATE) -> None:
        """Set one frontmatter key to any JSON value. Raises NoSuchNote, NoteChanged, InvalidFrontmatter.

        A note that is too large for the plugin's PATCH is written as a whole file.
        """
        try:
            await self._patch_key(path, key, value, expected)
        except NoteTooLarge:
            await self._rewrite_with_key(path, key, value, expected)
        except VaultProtocolError:
            # An old plugin reports an unsupported form for a path that is not a note at all.
            await self.read_content(path)  # raises NoSuchNote if the path is not a note, the better error
            raise

    async def _patch_key(self, path: str, key: str, value: Any, expected: str) -> None:
        segments = paths.split_path(path)
        async with self._locks.hold(path):
            conditions: dict[str, str] = {}
            if expected != ANY_STATE:
                current = await self._read_expected(segments, expected)
                conditions = {} if current is None else current.conditions
            await self._patcher.set_key(path, vault_path(segments), key, value, conditions)

    async def _rewrite_with_key(self, path: str, key: str, value: Any, expected: str) -> None:
        for _ in range(MAX_ATTEMPTS):
            content = await self.read_content(path)
            state = model.content_hash(content)
            if expected not in (ANY_STATE, state):
                break
            try:
                await self.replace(path, _set_key(content, key, value), state)
                return
            except NoteChanged:
                continue
        raise NoteChanged(path, state)

    async def close(self) -> None:
        await self._plugin.close()

    async def _read_if_exists(self, segments: Sequence[str]) -> _CurrentFile | None:
        response = await self._get(segments)
        if (
            response.status == 404
            or plugin_calls.points_into_note(response, segments)
            or await self._is_folder(segments, response)
        ):
            return None
        plugin_calls.require_note_response(response, segments[-1])
        etag = response.headers.get("etag", "")
        # A weak tag never matches, and web frameworks add one even if the server does not support If-Match.
        return _CurrentFile(response.body, etag if etag.startswith('"') else "")

    async def _is_folder(self, segments: Sequence[str], response: PluginResponse) -> bool:
        # A JSON file may look like a folder listing: then the parent's listing decides.
        return plugin_calls.is_folder_listing(response) and segments[-1] not in await self.list_folder(
            "/".join(segments[:-1])
        )

    async def _require_free_path(self, segments: Sequence[str]) -> None:
        """Raise NameTaken, or NoSuchNote for the path of a folder, as `FolderVault` does."""
        try:
            await plugin_calls.require_free_path(self._plugin, segments)
        except plugin_calls.FolderExists as error:
            raise NoSuchNote(error.message) from None

    async def _read_file(self, segments: Sequence[str]) -> _CurrentFile:
        current = await self._read_if_exists(segments)
        if current is None:
            raise _no_such_note("/".join(segments))
        return current

    async def _read_expected(self, segments: Sequence[str], expected: str) -> _CurrentFile | None:
        """Return the file, None if there is none. Raises NoteChanged if it is not in the expected state."""
        current = await self._read_if_exists(segments)
        content = None if current is None else current.content
        if not model.matches_state(expected, content):
            raise NoteChanged("/".join(segments), NO_FILE if content is None else model.content_hash(content))
        return current

    async def _put(self, segments: Sequence[str], content: bytes, current: _CurrentFile | None) -> bool:
        """Write the file if it is still the `current` one; return False after a concurrent modification."""
        conditions = {"If-None-Match": "*"} if current is None else current.conditions
        content_type = MARKDOWN_HEADERS if _is_plain_text(content) else BINARY_HEADERS
        response = await self._plugin.request(
            "PUT", vault_path(segments), headers={**content_type, **conditions}, body=content
        )
        if response.status == 412:
            return False
        plugin_calls.require_no_content(response, "/".join(segments))
        return True

    async def _stat(self, segments: Sequence[str], size: int | None = None) -> Stat:
        """Request the metadata, which the response for the content does not have. Raises NoSuchNote, NoteTooLarge."""
        response = await self._get(segments, {"Accept": NOTE_JSON})
        if response.status == 404:
            raise _no_such_note("/".join(segments))
        return _parse_stat(response, "/".join(segments), size)

    async def _get(self, segments: Sequence[str], headers: Mapping[str, str] | None = None) -> PluginResponse:
        try:
            response = await self._plugin.request("GET", vault_path(segments), headers=headers)
        except PluginResponseTooLarge as error:
            raise NoteTooLarge(error.message) from None
        # Sent by `stentor vault` for a file that it would not read into memory.
        if response.status == 413:
            raise NoteTooLarge(f"{paths.display_path('/'.join(segments))} is larger than what the vault plugin sends.")
        return response


def _split_folder(folder: str) -> tuple[str, ...]:
    folder = paths.normalize_folder(folder)
    return tuple(folder.split("/")) if folder else ()


def _no_such_note(path: str) -> NoSuchNote:
    return NoSuchNote(f"The vault has no note {paths.display_path(path)}.")


def _set_key(content: bytes, key: str, value: Any) -> bytes:
    try:
        return frontmatter.edit(content.decode(), {key: value}).encode()
    except UnicodeDecodeError:
        raise frontmatter.InvalidFrontmatter("The note is not UTF-8 text, so it has no frontmatter.") from None


def _is_plain_text(content: bytes) -> bool:
    try:
        return not content.decode().startswith("\ufeff")
    except UnicodeDecodeError:
        return False


def _parse_stat(response: PluginResponse, path: str, size: int | None) -> Stat:
    if not response.ok:
        raise response.to_error()
    if "json" not in response.headers.get("content-type", "json"):
        plugin_calls.require_note_response(response, path)
        return Stat(
            path, len(response.body), 0, 0
        )  # for a file that is not text, the plugin may return its content: no times
    try:
        stat = response.json()["stat"]
        times = [int(stat[name] * 1000) for name in ("mtime", "ctime")]
        return Stat(path, int(stat["size"]) if size is None else size, *times)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise VaultProtocolError("The vault plugin returned invalid metadata of a note.") from None


def _parse_hit(row: Any) -> PluginSearchHit:
    """Parse one row of a search; the excerpt is from the first match in the text."""
    try:
        matches = [match for match in row.get("matches") or () if match["match"].get("source") != "filename"]
        path, score = row["filename"], float(row["score"])
        excerpt = matches[0]["context"] if matches else ""
        if not (isinstance(path, str) and isinstance(excerpt, str) and math.isfinite(score)):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise VaultProtocolError(_INVALID_SEARCH_RESULT) from None
    return PluginSearchHit(path, excerpt, score)
