"""The nine tools of the note store and their request bodies.

A tool returns the object for `data` and raises errors of `core.errors`. Unknown fields of a body are ignored, because
existing clients send them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

from stentor.core import jsontext
from stentor.core.errors import Conflict, InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.notes.plugin_vault import PluginVault
from stentor_vault.notes import frontmatter, paths
from stentor_vault.notes.files.path_locks import PathLocks
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import MAX_NOTE_BYTES, NoteChanged, NoteTooLarge, content_hash

NonEmptyText = Annotated[str, msgspec.Meta(min_length=1)]
FrontmatterKey = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
MAX_ATTEMPTS = 16
"""Attempts of an edit while other programs modify the same note."""
_TAG_SEPARATOR = re.compile(r"[,\s]+")
_LINE_FEED = re.compile(rb"(?<!\r)\n")


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


class NoteTools:
    """The tools over one store, by name. Tools that change the same note wait for each other."""

    def __init__(self, store: PluginVault, lock_timeout_s: float) -> None:
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
        path, requested = _require_note_path(body.path), parse_requested_tags(body.tags)

        async def attempt() -> JsonObject:
            content = await self._store.read_content(path)
            value = frontmatter.read(_decode_text(path, content)).get("tags")
            tags = apply_tags(parse_note_tags(value), requested, body.action)
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
            edited, count = await asyncio.to_thread(replace_text, content, body.search.encode(), body.replace.encode())
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


def parse_requested_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags of a request without `#` and duplicates. Raises InvalidRequest for an invalid tag."""
    cleaned = [_strip_hash(tag) for tag in tags]
    for tag, original in zip(cleaned, tags, strict=True):
        if not tag or not tag.isprintable():
            raise InvalidRequest(f"{original!r} is not a tag.")
    return list(dict.fromkeys(cleaned))


def parse_note_tags(value: Any) -> list[Any]:
    """Return the `tags` of a note, which may be a list, a text with commas or spaces, a single value, or None.

    Raises InvalidFrontmatter for a mapping.
    """
    if isinstance(value, dict):
        raise InvalidFrontmatter("The property `tags` of the note is a mapping, not a list.")
    items = _TAG_SEPARATOR.split(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    return _distinct([_normalize_item(item) for item in items if item is not None])


def apply_tags(known: Sequence[Any], tags: Sequence[str], action: str) -> list[Any]:
    """Return the list with the tags appended (action "add") or removed."""
    if action == "add":
        return _distinct([*known, *tags])
    removed = set(tags)
    return [item for item in known if not isinstance(item, str) or item not in removed]


def _strip_hash(tag: str) -> str:
    return tag.strip().lstrip("#").strip()


def _normalize_item(item: Any) -> Any:
    """Convert numbers and booleans to text; leave lists and mappings as they are."""
    if isinstance(item, str):
        return _strip_hash(item)
    return item if isinstance(item, (dict, list)) else jsontext.dump(item)


def _distinct(items: Sequence[Any]) -> list[Any]:
    # By their JSON: items may be lists and mappings, which have no hash.
    return list({jsontext.dump(item): item for item in items if item != ""}.values())


def replace_text(content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """Replace `old` by `new`, and return the content and the number of replacements.

    Literal except for line ends, which a client cannot see: LF in `old` matches LF and CRLF, and LF in `new` becomes
    the line end of the match. A text with CRLF is literal, so that line ends can be converted; if there is no match for
    it, it is searched with LF. Raises NoteTooLarge before the result takes more memory than a note may have.
    """
    if b"\r\n" in old and old not in content:
        old, new = old.replace(b"\r\n", b"\n"), new.replace(b"\r\n", b"\n")
    if b"\n" in old and b"\r\n" not in old and b"\r\n" in content:
        return _replace_lines(content, old, new)
    count = content.count(old)
    _check_size(len(content) + count * (len(new) - len(old)))
    return content.replace(old, new), count


def _replace_lines(content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """Replace a text with LF, which matches LF and CRLF."""
    # Not a regular expression, which would take the product of both lengths.
    lines, before_line_end = content.replace(b"\r\n", b"\n"), old.index(b"\n")
    new_crlf = _LINE_FEED.sub(b"\r\n", new)
    result = bytearray()
    count = searched = copied = 0
    while (found := lines.find(old, searched)) >= 0:
        start = _skip(content, copied, found - searched)
        crlf = content.startswith(b"\r\n", start + before_line_end)
        result += content[copied:start] + (new_crlf if crlf else new)
        _check_size(len(result))
        count, searched, copied = count + 1, found + len(old), _skip(content, start, len(old))
    result += content[copied:]
    _check_size(len(result))
    return bytes(result), count


def _skip(content: bytes, start: int, count: int) -> int:
    """Return the index that is `count` bytes after `start`, where CRLF counts as one byte."""
    while count:
        end = start + count
        end += content.startswith(b"\r\n", end - 1)
        count -= end - start - content.count(b"\r\n", start, end)
        start = end
    return start


def _check_size(size: int) -> None:
    if size > MAX_NOTE_BYTES:
        raise NoteTooLarge(f"The note would have more than {MAX_NOTE_BYTES} bytes.")
