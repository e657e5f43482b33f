"""The port `Vault` over the plugin's API, and what the plugin does besides: search, append, one frontmatter key."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.notes import plugin_calls
from stentor.domains.notes.plugin_calls import FrontmatterPatcher
from stentor.domains.notes.plugin_client import PluginClient, PluginResponse, vault_path, with_query
from stentor_vault.notes import frontmatter, model, paths
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
from stentor_vault.notes.path_locks import PathLocks

NOTE_JSON = "application/vnd.olrapi.note+json"
MARKDOWN_HEADERS = {"Content-Type": "text/markdown"}
BINARY_HEADERS = {"Content-Type": "application/octet-stream"}
"""For what is no text, and for a byte order mark, which the plugin drops from texts."""
MAX_ATTEMPTS = 16
NO_QUERY_CODE = 40090
"""The plugin's code for a search without a text."""
CONTEXT_CHARS = "100"
"""Characters around a match. Plugins before 4 have no default of their own."""


class PluginSearchHit(msgspec.Struct, frozen=True):
    """A note that a search found: a piece of it around a match, empty for a match in its name."""

    path: str
    excerpt: str
    score: float


class _CurrentFile(msgspec.Struct, frozen=True):
    """What stands at a path now; `tag` is the strong entity tag, empty when the plugin sends none."""

    content: bytes
    tag: str

    @property
    def conditions(self) -> dict[str, str]:
        return {"If-Match": self.tag} if self.tag else {}


class PluginVault:
    """A vault that a plugin serves.

    Changes compare before they replace. A plugin that sends a strong `ETag` compares itself (`If-Match`,
    and `If-None-Match: *` for a new note). An older one cannot: there the note is read, compared and then
    written, under a lock per path in this object, so that a change which somebody else makes between the
    reading and the writing is lost. Deleting, and setting a key, likewise.
    """

    def __init__(self, plugin: PluginClient) -> None:
        self._plugin = plugin
        self._patching = FrontmatterPatcher(plugin)
        self._locks = PathLocks()

    async def read(self, path: str) -> Note:
        segments = paths.split_path(path)
        present = await self._required(segments)
        return Note(await self._stat(segments, len(present.content)), present.content)

    async def read_content(self, path: str) -> bytes:
        """The bytes of a note, by one request. Raises NoSuchNote."""
        return (await self._required(paths.split_path(path))).content

    async def write(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        before = await self.replace(path, content, expected)
        return FileChange(await self._stat(paths.split_path(path), len(content)), before)

    async def replace(self, path: str, content: bytes, expected: str = ANY_STATE) -> bytes | None:
        """Like `write`; answers the bytes before, None for none."""
        segments = paths.split_path(path)
        if len(content) > model.MAX_NOTE_BYTES:
            raise NoteTooLarge(f"{path!r} would have {len(content)} bytes; {model.MAX_NOTE_BYTES} are the most.")
        async with self._locks.hold(path):
            for _ in range(MAX_ATTEMPTS):
                present = await self._expected(segments, expected)
                if present is None:
                    await self._refuse_taken(segments)
                if await self._put(segments, content, present):
                    return None if present is None else present.content
            raise NoteChanged(path, NO_FILE if present is None else model.content_hash(present.content))

    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange:
        segments = paths.split_path(path)
        async with self._locks.hold(path):
            for _ in range(MAX_ATTEMPTS):
                present = await self._expected(segments, expected)
                if present is None:
                    break
                answer = await self._plugin.request("DELETE", vault_path(segments), headers=present.conditions)
                if answer.status not in (404, 412):
                    plugin_calls.require_no_content(answer, path)
                    return FileChange(None, present.content)
        raise _missing(path)

    async def list_folder(self, folder: str = "") -> list[str]:
        return await plugin_calls.list_folder(self._plugin, _parts(folder))

    async def list_files(self, folder: str = "") -> list[str]:
        """Of every file below the folder, in order; one request for each folder."""
        return await plugin_calls.walk_files(self._plugin, _parts(folder))

    async def walk(self, folder: str = "") -> list[Stat]:
        """One request for each folder and each file: the plugin lists names alone."""
        gate = asyncio.Semaphore(plugin_calls.MAX_CONCURRENT_REQUESTS)

        async def stat(path: str) -> Stat | None:
            async with gate:
                try:
                    return await self._stat(path.split("/"))
                except NoSuchNote:
                    return None  # gone since

        found = await asyncio.gather(*map(stat, await self.list_files(folder)))
        return [each for each in found if each is not None]

    async def check(self) -> None:
        """Whether a plugin answers there and knows the key."""
        await self._plugin.fetch_version()

    async def search(self, text: str) -> list[PluginSearchHit]:
        """Notes with the text, best first, as the plugin's simple search finds them. Raises InvalidRequest for a text
        that the plugin takes for none.
        """
        answer = await self._plugin.request(
            "POST", with_query("/search/simple/", query=text, contextLength=CONTEXT_CHARS)
        )
        if not answer.ok and answer.error_code == NO_QUERY_CODE:
            raise InvalidRequest("The query has no words in it.")
        rows = answer.json() if answer.ok else None
        if not isinstance(rows, list):
            raise answer.to_error() if not answer.ok else VaultProtocolError("The vault plugin's search is no list.")
        return [_parse_hit(row) for row in rows]

    async def append(self, path: str, text: str) -> None:
        """Adds to the end, on a line of its own; makes the note when it is missing. Raises NameTaken, FolderTaken,
        NoSuchNote for a path that leads through a file, NoteTooLarge.
        """
        segments = paths.split_path(path)
        async with self._locks.hold(path):
            if await self._present(segments) is None:
                await plugin_calls.require_free_path(self._plugin, segments)
            answer = await self._plugin.request(
                "POST", vault_path(segments), headers=MARKDOWN_HEADERS, body=text.encode()
            )
        plugin_calls.require_no_content(answer, path)

    async def set_key(self, path: str, key: str, value: Any, expected: str = ANY_STATE) -> None:
        """Sets one key of the frontmatter to any JSON value; of a note that is too long for the plugin's PATCH by an
        edit of the whole file. Raises NoSuchNote, NoteChanged, BadFrontmatter.
        """
        try:
            await self._patch(path, key, value, expected)
        except NoteTooLarge:
            await self._edit(path, key, value, expected)
        except VaultProtocolError:
            await self.read_content(path)  # what the plugin refuses may be no note at all
            raise

    async def _patch(self, path: str, key: str, value: Any, expected: str) -> None:
        segments = paths.split_path(path)
        async with self._locks.hold(path):
            conditions: dict[str, str] = {}
            if expected != ANY_STATE:
                present = await self._expected(segments, expected)
                conditions = {} if present is None else present.conditions
            await self._patching.set_key(path, vault_path(segments), key, value, conditions)

    async def _edit(self, path: str, key: str, value: Any, expected: str) -> None:
        for _ in range(MAX_ATTEMPTS):
            before = await self.read_content(path)
            state = model.content_hash(before)
            if expected not in (ANY_STATE, state):
                break
            try:
                await self.replace(path, _with_key(before, key, value), state)
                return
            except NoteChanged:
                continue
        raise NoteChanged(path, state)

    async def close(self) -> None:
        await self._plugin.close()

    async def _present(self, segments: Sequence[str]) -> _CurrentFile | None:
        answer = await self._plugin.request("GET", vault_path(segments))
        if (
            answer.status == 404
            or plugin_calls.points_into_note(answer, segments)
            or await self._is_folder(segments, answer)
        ):
            return None
        plugin_calls.require_note_response(answer, segments[-1])
        tag = answer.headers.get("etag", "")
        # A weak tag never matches, and web frameworks add one to answers whose server knows no If-Match.
        return _CurrentFile(answer.body, tag if tag.startswith('"') else "")

    async def _is_folder(self, segments: Sequence[str], answer: PluginResponse) -> bool:
        """A JSON file may look like the list of a folder: then the folder above tells."""
        return plugin_calls.is_folder_listing(answer) and segments[-1] not in await self.list_folder(
            "/".join(segments[:-1])
        )

    async def _refuse_taken(self, segments: Sequence[str]) -> None:
        """Raises NameTaken, and NoSuchNote for the path of a folder, as a vault in a folder does."""
        try:
            await plugin_calls.require_free_path(self._plugin, segments)
        except plugin_calls.FolderExists as error:
            raise NoSuchNote(error.message) from None

    async def _required(self, segments: Sequence[str]) -> _CurrentFile:
        present = await self._present(segments)
        if present is None:
            raise _missing("/".join(segments))
        return present

    async def _expected(self, segments: Sequence[str], expected: str) -> _CurrentFile | None:
        """What stands there when that is the expected state. Raises NoteChanged."""
        present = await self._present(segments)
        content = None if present is None else present.content
        if not model.matches_state(expected, content):
            raise NoteChanged("/".join(segments), NO_FILE if content is None else model.content_hash(content))
        return present

    async def _put(self, segments: Sequence[str], content: bytes, present: _CurrentFile | None) -> bool:
        """False when somebody was faster."""
        conditions = {"If-None-Match": "*"} if present is None else present.conditions
        kind = MARKDOWN_HEADERS if _is_plain(content) else BINARY_HEADERS
        answer = await self._plugin.request("PUT", vault_path(segments), headers={**kind, **conditions}, body=content)
        if answer.status == 412:
            return False
        plugin_calls.require_no_content(answer, "/".join(segments))
        return True

    async def _stat(self, segments: Sequence[str], size: int | None = None) -> Stat:
        """By a request of its own: a plain answer has no times, and then they are 0. Raises NoSuchNote."""
        answer = await self._plugin.request("GET", vault_path(segments), headers={"Accept": NOTE_JSON})
        if answer.status == 404:
            raise _missing("/".join(segments))
        return _stat(answer, "/".join(segments), size)


def _parts(folder: str) -> tuple[str, ...]:
    folder = paths.normalize_folder(folder)
    return tuple(folder.split("/")) if folder else ()


def _missing(path: str) -> NoSuchNote:
    return NoSuchNote(f"The vault has no note {paths.display_path(path)}.")


def _with_key(content: bytes, key: str, value: Any) -> bytes:
    try:
        return frontmatter.edit(content.decode(), {key: value}).encode()
    except UnicodeDecodeError:
        raise frontmatter.InvalidFrontmatter("The note is no UTF-8 text, so that it has no frontmatter.") from None


def _is_plain(content: bytes) -> bool:
    try:
        return not content.decode().startswith("\ufeff")
    except UnicodeDecodeError:
        return False


def _stat(answer: PluginResponse, path: str, size: int | None) -> Stat:
    if not answer.ok:
        raise answer.to_error()
    if "json" not in answer.headers.get("content-type", "json"):
        plugin_calls.require_note_response(answer, path)
        return Stat(path, len(answer.body), 0, 0)  # a file that is no text may be answered as it is
    try:
        stat = answer.json()["stat"]
        times = [int(stat[name] * 1000) for name in ("mtime", "ctime")]
        return Stat(path, int(stat["size"]) if size is None else size, *times)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise VaultProtocolError("The vault plugin's description of a note lacks its times.") from None


def _parse_hit(row: Any) -> PluginSearchHit:
    """One row of a search; the first match in the text gives the excerpt."""
    try:
        matches = [match for match in row.get("matches") or () if match["match"].get("source") != "filename"]
        path, score = row["filename"], float(row["score"])
        excerpt = matches[0]["context"] if matches else ""
        if not (isinstance(path, str) and isinstance(excerpt, str) and math.isfinite(score)):
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise VaultProtocolError("The vault plugin's search answered a row that is none.") from None
    return PluginSearchHit(path, excerpt, score)
