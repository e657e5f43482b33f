"""What each tool takes. Fields that a tool does not know are ignored, because clients in the field send them.

The nine tools. Each answers an object for `data` and raises the house's errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, Protocol

import msgspec

from stentor.core.errors import Conflict, InvalidRequest
from stentor.domains.notes import frontmatter, paths
from stentor.domains.notes.model import ANY_STATE, FileChange, NoteChanged, content_hash
from stentor.domains.notes.path_locks import PathLocks
from stentor.domains.notes.plugin_vault import PluginSearchHit
from stentor.surfaces.notestore import text_edits

NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]
FrontmatterKey = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class EmptyBody(msgspec.Struct):
    """No field."""


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


ToolBody = EmptyBody | PathBody | ContentBody | QueryBody | FrontmatterBody | TagsBody | ReplacementBody


def parse_body(kind: type[msgspec.Struct], value: Any) -> Any:
    """The body as a tool takes it. Raises InvalidRequest, which names the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{error}.") from None


MAX_ATTEMPTS = 16
"""Of reading, changing and writing, while others change the same note."""

Data = dict[str, Any]


class NotText(InvalidRequest):
    """The file is no UTF-8 text, so that it cannot be answered or edited as one."""

    code = "NOT_TEXT"


class NoteStore(Protocol):
    """What the tools need of a vault; PluginVault is one."""

    async def read_content(self, path: str) -> bytes: ...
    async def replace(self, path: str, content: bytes, expected: str = ANY_STATE) -> bytes | None: ...
    async def append(self, path: str, text: str) -> None: ...
    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange: ...
    async def set_key(self, path: str, key: str, value: Any, expected: str = ANY_STATE) -> None: ...
    async def search(self, text: str) -> list[PluginSearchHit]: ...
    async def list_files(self) -> list[str]: ...


class NoteTools:
    """Over one store. Tools that change the same note wait for each other."""

    def __init__(self, store: NoteStore, lock_timeout_s: float) -> None:
        self._store = store
        self._locks = PathLocks(lock_timeout_s)
        self.by_name: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[Data]]]] = {
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

    async def get_context(self, body: PathBody) -> Data:
        """`{path, content}`: the whole file, frontmatter included. Raises NoSuchNote, NotText."""
        path = _require_note_path(body.path)
        return {"path": path, "content": _decode_text(path, await self._store.read_content(path))}

    async def append_context(self, body: ContentBody) -> Data:
        """`{path}`: the content stands at the end, on a line of its own; makes the note when it is missing."""
        path = _require_note_path(body.path)
        async with self._locks.hold(path):
            await self._store.append(path, body.content)
        return {"path": path}

    async def update_note(self, body: ContentBody) -> Data:
        """`{path}`: the whole file becomes the content, as `getContext` answers it. Raises NoSuchNote.

        Frontmatter is part of the file: what the content does not repeat is gone.
        """
        path = _require_note_path(body.path)
        async with self._locks.hold(path):
            await self._store.read_content(path)  # an update of nothing is no new note
            await self._store.replace(path, body.content.encode())
        return {"path": path}

    async def search_notes(self, body: QueryBody) -> Data:
        """`{query, results: [{path, excerpt, score}]}`, best first."""
        return {"query": body.query, "results": msgspec.to_builtins(await self._store.search(body.query))}

    async def list_notes(self, body: EmptyBody) -> Data:
        """`{notes: [path]}` in order: the files that end in `.md`."""
        return {"notes": [path for path in await self._store.list_files() if path.lower().endswith(".md")]}

    async def delete_note(self, body: PathBody) -> Data:
        """`{path}`. Raises NoSuchNote."""
        path = _require_note_path(body.path)
        async with self._locks.hold(path):
            await self._store.delete(path)
        return {"path": path}

    async def manage_frontmatter(self, body: FrontmatterBody) -> Data:
        """`{path, key, value}`: the key has the value, and the rest of the note is as it was. Raises NoSuchNote."""
        path = _require_note_path(body.path)
        if not body.key.isprintable():
            raise InvalidRequest("A frontmatter key has no control characters and no line ends.")
        async with self._locks.hold(path):
            await self._store.set_key(path, body.key, body.value)
        return {"path": path, "key": body.key, "value": body.value}

    async def manage_tags(self, body: TagsBody) -> Data:
        """`{path, tags}`: the note's tags afterwards. Raises NoSuchNote, BadFrontmatter."""
        path, given = _require_note_path(body.path), text_edits.parse_requested_tags(body.tags)

        async def attempt() -> Data:
            content = await self._store.read_content(path)
            value = frontmatter.read(_decode_text(path, content)).get("tags")
            after = text_edits.apply_tags(text_edits.parse_note_tags(value), given, body.action)
            if after != (value or []):
                await self._store.set_key(path, "tags", after, content_hash(content))
            return {"path": path, "tags": after}

        return await self._edit(path, attempt)

    async def search_replace(self, body: ReplacementBody) -> Data:
        """`{path, replacements}`: how often the text stood there, taken literally but for line ends; 0 leaves the note
        as it is.
        """
        path = _require_note_path(body.path)

        async def attempt() -> Data:
            content = await self._store.read_content(path)
            after, count = text_edits.replace_text(content, body.search.encode(), body.replace.encode())
            if after != content:
                await self._store.replace(path, after, content_hash(content))
            return {"path": path, "replacements": count}

        return await self._edit(path, attempt)

    async def _edit(self, path: str, attempt: Callable[[], Awaitable[Data]]) -> Data:
        """Reads, changes and writes again when another program changed the note in between. Raises Conflict."""
        async with self._locks.hold(path):
            for _ in range(MAX_ATTEMPTS):
                try:
                    return await attempt()
                except NoteChanged:
                    continue
        raise Conflict(f"{paths.display_path(path)} is being changed by others all the time; try again.")


def _require_note_path(path: str) -> str:
    """The path as the vault has it. Raises InvalidRequest for one that is no note's: a file of another kind is in no
    list and no search of this server.
    """
    found = paths.normalize_path(path)
    if not found.lower().endswith(".md"):
        raise InvalidRequest(
            f"{paths.display_path(found)} does not end in .md; a path is that of a note, .md included."
        )
    return found


def _decode_text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise NotText(f"{paths.display_path(path)} is no UTF-8 text.") from None
