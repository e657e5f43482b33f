"""The nine tools of the note store and their request bodies.

A tool returns the object for `data` and raises errors of `core.errors`. Unknown fields of a body are ignored, because
existing clients send them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, Protocol

import msgspec

from stentor.core.errors import Conflict, InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.notes.plugin_vault import PluginSearchHit
from stentor.surfaces.notestore import text_edits
from stentor_vault.notes import frontmatter, paths
from stentor_vault.notes.model import ANY_STATE, FileChange, NoteChanged, content_hash
from stentor_vault.notes.path_locks import PathLocks

NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]
FrontmatterKey = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
MAX_ATTEMPTS = 16
"""Attempts of an edit while other programs modify the same note."""


class EmptyBody(msgspec.Struct):
    """A body without fields."""


class PathBody(msgspec.Struct):
    path: str


class ContentBody(msgspec.Struct):
    path: str
    content: str


class QueryBody(msgspec.Struct):
    query: NonEmptyText


class FrontmatterBody(msgspec.Struct):
    """A frontmatter key and any JSON value, null included."""

    path: str
    key: FrontmatterKey
    value: Any


class TagsBody(msgspec.Struct):
    path: str
    tags: list[str]
    action: Literal["add", "remove"]


class ReplacementBody(msgspec.Struct):
    path: str
    search: NonEmptyText
    replace: str


def parse_body(body_type: type[msgspec.Struct], value: Any) -> Any:
    """Convert a JSON body to the type that a tool takes. Raises InvalidRequest, which names the field."""
    try:
        return msgspec.convert(value, body_type)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{error}.") from None


class NotText(InvalidRequest):
    """The file is not UTF-8 text, so it can be neither returned nor edited."""

    code = "NOT_TEXT"


class NoteStore(Protocol):
    """The operations of a vault that the tools use; `PluginVault` implements it."""

    async def read_content(self, path: str) -> bytes: ...
    async def replace(self, path: str, content: bytes, expected: str = ANY_STATE) -> bytes | None: ...
    async def append(self, path: str, text: str) -> None: ...
    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange: ...
    async def set_key(self, path: str, key: str, value: Any, expected: str = ANY_STATE) -> None: ...
    async def search(self, text: str) -> list[PluginSearchHit]: ...
    async def list_files(self) -> list[str]: ...


class NoteTools:
    """The tools over one store, by name. Tools that change the same note wait for each other."""

    def __init__(self, store: NoteStore, lock_timeout_s: float) -> None:
        self._store = store
        self._locks = PathLocks(lock_timeout_s)
        self.by_name: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[JsonObject]]]] = {
            "getContext": (PathBody, self.get_context),
            "appendContext": (ContentBody, self.append_context),
            "updateNote": (ContentBody, self.update_note),
            "searchNotes": (QueryBody, self.search_notes),
            "listNotes": (EmptyBody, self.list_notes),
            "deleteNote": (PathBody, self.delete_note),
            "manageFrontmatter": (FrontmatterBody, self.manage_frontmatter),
            "manageTags": (TagsBody, self.manage_tags),
            "searchReplace": (ReplacementBody, self.search_replace),
        }

    async def get_context(self, body: PathBody) -> JsonObject:
        """Return `{path, content}`: the complete file with its frontmatter. Raises NoSuchNote, NotText."""
        path = _require_note_path(body.path)
        return {"path": path, "content": _decode_text(path, await self._store.read_content(path))}

    async def append_context(self, body: ContentBody) -> JsonObject:
        """Append the content on a new line, and create a missing note. Returns `{path}`."""
        path = _require_note_path(body.path)
        async with self._locks.hold(path):
            await self._store.append(path, body.content)
        return {"path": path}

    async def update_note(self, body: ContentBody) -> JsonObject:
        """Replace the complete file by the content, and return `{path}`. Raises NoSuchNote.

        Frontmatter is part of the file: it is lost unless the content repeats it.
        """
        path = _require_note_path(body.path)
        async with self._locks.hold(path):
            # Only to raise NoSuchNote: an update must not create a note.
            await self._store.read_content(path)
            await self._store.replace(path, body.content.encode())
        return {"path": path}

    async def search_notes(self, body: QueryBody) -> JsonObject:
        """Return `{query, results: [{path, excerpt, score}]}`, best first."""
        return {"query": body.query, "results": msgspec.to_builtins(await self._store.search(body.query))}

    async def list_notes(self, body: EmptyBody) -> JsonObject:
        """Return `{notes: [path]}`: the sorted files that end in `.md`."""
        return {"notes": [path for path in await self._store.list_files() if path.lower().endswith(".md")]}

    async def delete_note(self, body: PathBody) -> JsonObject:
        """Delete the note, and return `{path}`. Raises NoSuchNote."""
        path = _require_note_path(body.path)
        async with self._locks.hold(path):
            await self._store.delete(path)
        return {"path": path}

    async def manage_frontmatter(self, body: FrontmatterBody) -> JsonObject:
        """Set one frontmatter key, and return `{path, key, value}`. Raises NoSuchNote."""
        path = _require_note_path(body.path)
        if not body.key.isprintable():
            raise InvalidRequest("A frontmatter key must not contain control characters or line ends.")
        async with self._locks.hold(path):
            await self._store.set_key(path, body.key, body.value)
        return {"path": path, "key": body.key, "value": body.value}

    async def manage_tags(self, body: TagsBody) -> JsonObject:
        """Add or remove tags, and return `{path, tags}` with the new tags. Raises NoSuchNote, InvalidFrontmatter."""
        path, requested = _require_note_path(body.path), text_edits.parse_requested_tags(body.tags)

        async def attempt() -> JsonObject:
            content = await self._store.read_content(path)
            value = frontmatter.read(_decode_text(path, content)).get("tags")
            tags = text_edits.apply_tags(text_edits.parse_note_tags(value), requested, body.action)
            # Nothing is written if nothing changes, so the note's time stays.
            if tags != (value or []):
                await self._store.set_key(path, "tags", tags, content_hash(content))
            return {"path": path, "tags": tags}

        return await self._edit(path, attempt)

    async def search_replace(self, body: ReplacementBody) -> JsonObject:
        """Replace a literal text (line ends match in any form), and return `{path, replacements}`."""
        path = _require_note_path(body.path)

        async def attempt() -> JsonObject:
            content = await self._store.read_content(path)
            # In a thread: a note with millions of matches takes seconds.
            edited, count = await asyncio.to_thread(
                text_edits.replace_text, content, body.search.encode(), body.replace.encode()
            )
            # As above: an edit without a match is not a write.
            if edited != content:
                await self._store.replace(path, edited, content_hash(content))
            return {"path": path, "replacements": count}

        return await self._edit(path, attempt)

    async def _edit(self, path: str, attempt: Callable[[], Awaitable[JsonObject]]) -> JsonObject:
        """Run `attempt` again when another program modified the note in between. Raises Conflict."""
        # The lock only covers tools of this process; other programs are noticed by the content hash.
        async with self._locks.hold(path):
            for _ in range(MAX_ATTEMPTS):
                try:
                    return await attempt()
                except NoteChanged:
                    continue
        raise Conflict(f"{paths.display_path(path)} is being modified by other programs; try again.")


def _require_note_path(path: str) -> str:
    """Return the normalized path. Raises InvalidRequest unless it ends in `.md`: this server only lists notes."""
    normalized = paths.normalize_path(path)
    if not normalized.lower().endswith(".md"):
        raise InvalidRequest(f"{paths.display_path(normalized)} is not the path of a note: it must end in .md.")
    return normalized


def _decode_text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise NotText(f"{paths.display_path(path)} is not UTF-8 text.") from None
