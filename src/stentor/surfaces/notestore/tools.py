"""The nine tools. Each answers an object for `data` and raises the house's errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from stentor.core.errors import Conflict, InvalidRequest
from stentor.domains.notes import frontmatter, paths
from stentor.domains.notes.locks import PathLocks
from stentor.domains.notes.model import ANYTHING, Change, NoteChanged, content_hash
from stentor.domains.notes.pluginvault import Found
from stentor.surfaces.notestore import bodies, replacing, tags

ATTEMPTS = 16
"""Of reading, changing and writing, while others change the same note."""

Data = dict[str, Any]


class NotText(InvalidRequest):
    """The file is no UTF-8 text, so that it cannot be answered or edited as one."""

    code = "NOT_TEXT"


class Store(Protocol):
    """What the tools need of a vault; PluginVault is one."""

    async def content(self, path: str) -> bytes: ...
    async def replace(self, path: str, content: bytes, expected: str = ANYTHING) -> bytes | None: ...
    async def append(self, path: str, text: str) -> None: ...
    async def delete(self, path: str, expected: str = ANYTHING) -> Change: ...
    async def set_key(self, path: str, key: str, value: Any, expected: str = ANYTHING) -> None: ...
    async def search(self, text: str) -> list[Found]: ...
    async def paths(self) -> list[str]: ...


class Tools:
    """Over one store. Tools that change the same note wait for each other."""

    def __init__(self, store: Store, patience: float) -> None:
        self._store = store
        self._locks = PathLocks(patience)
        self.by_name: dict[str, tuple[type[msgspec.Struct], Callable[[Any], Awaitable[Data]]]] = {
            "getContext": (bodies.Path, self.get_context),
            "appendContext": (bodies.Content, self.append_context),
            "updateNote": (bodies.Content, self.update_note),
            "searchNotes": (bodies.Query, self.search_notes),
            "listNotes": (bodies.Nothing, self.list_notes),
            "deleteNote": (bodies.Path, self.delete_note),
            "manageFrontmatter": (bodies.Entry, self.manage_frontmatter),
            "manageTags": (bodies.Tags, self.manage_tags),
            "searchReplace": (bodies.Replacement, self.search_replace),
        }

    async def get_context(self, body: bodies.Path) -> Data:
        """`{path, content}`: the whole file, frontmatter included. Raises NoSuchNote, NotText."""
        path = _note(body.path)
        return {"path": path, "content": _text(path, await self._store.content(path))}

    async def append_context(self, body: bodies.Content) -> Data:
        """`{path}`: the content stands at the end, on a line of its own; makes the note when it is missing."""
        path = _note(body.path)
        async with self._locks.hold(path):
            await self._store.append(path, body.content)
        return {"path": path}

    async def update_note(self, body: bodies.Content) -> Data:
        """`{path}`: the whole file becomes the content, as `getContext` answers it. Raises NoSuchNote.

        Frontmatter is part of the file: what the content does not repeat is gone.
        """
        path = _note(body.path)
        async with self._locks.hold(path):
            await self._store.content(path)  # an update of nothing is no new note
            await self._store.replace(path, body.content.encode())
        return {"path": path}

    async def search_notes(self, body: bodies.Query) -> Data:
        """`{query, results: [{path, excerpt, score}]}`, best first."""
        return {"query": body.query, "results": msgspec.to_builtins(await self._store.search(body.query))}

    async def list_notes(self, body: bodies.Nothing) -> Data:
        """`{notes: [path]}` in order: the files that end in `.md`."""
        return {"notes": [path for path in await self._store.paths() if path.lower().endswith(".md")]}

    async def delete_note(self, body: bodies.Path) -> Data:
        """`{path}`. Raises NoSuchNote."""
        path = _note(body.path)
        async with self._locks.hold(path):
            await self._store.delete(path)
        return {"path": path}

    async def manage_frontmatter(self, body: bodies.Entry) -> Data:
        """`{path, key, value}`: the key has the value, and the rest of the note is as it was. Raises NoSuchNote."""
        path = _note(body.path)
        if not body.key.isprintable():
            raise InvalidRequest("A frontmatter key has no control characters and no line ends.")
        async with self._locks.hold(path):
            await self._store.set_key(path, body.key, body.value)
        return {"path": path, "key": body.key, "value": body.value}

    async def manage_tags(self, body: bodies.Tags) -> Data:
        """`{path, tags}`: the note's tags afterwards. Raises NoSuchNote, BadFrontmatter."""
        path, given = _note(body.path), tags.wanted(body.tags)

        async def attempt() -> Data:
            content = await self._store.content(path)
            value = frontmatter.read(_text(path, content)).get("tags")
            after = tags.changed(tags.present(value), given, body.action)
            if after != (value or []):
                await self._store.set_key(path, "tags", after, content_hash(content))
            return {"path": path, "tags": after}

        return await self._edit(path, attempt)

    async def search_replace(self, body: bodies.Replacement) -> Data:
        """`{path, replacements}`: how often the text stood there, taken literally but for line ends; 0 leaves the note
        as it is.
        """
        path = _note(body.path)

        async def attempt() -> Data:
            content = await self._store.content(path)
            after, count = replacing.replaced(content, body.search.encode(), body.replace.encode())
            if after != content:
                await self._store.replace(path, after, content_hash(content))
            return {"path": path, "replacements": count}

        return await self._edit(path, attempt)

    async def _edit(self, path: str, attempt: Callable[[], Awaitable[Data]]) -> Data:
        """Reads, changes and writes again when another program changed the note in between. Raises Conflict."""
        async with self._locks.hold(path):
            for _ in range(ATTEMPTS):
                try:
                    return await attempt()
                except NoteChanged:
                    continue
        raise Conflict(f"{paths.shown(path)} is being changed by others all the time; try again.")


def _note(path: str) -> str:
    """The path as the vault has it. Raises InvalidRequest for one that is no note's: a file of another kind is in no
    list and no search of this server.
    """
    found = paths.clean(path)
    if not found.lower().endswith(".md"):
        raise InvalidRequest(f"{paths.shown(found)} does not end in .md; a path is that of a note, .md included.")
    return found


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise NotText(f"{paths.shown(path)} is no UTF-8 text.") from None
