"""Notes as documents: a body, frontmatter, and what the search wants to know of them. Pure."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.memory.text import markdown
from stentor.domains.notes import frontmatter
from stentor.domains.notes.frontmatter import BOM, InvalidFrontmatter, NoteParts

_KEY = re.compile(r"(?:[ \t]*(?:#.*)?[\r\n]+)*\w[\w-]*:(?:\s|\Z)")
"""A block that begins like this is a mapping, or no YAML at all."""


class NoteDocument(msgspec.Struct, frozen=True):
    """A note that is text. `problem` says why its frontmatter could not be read; the body is there all the same."""

    path: str
    content: str
    frontmatter: dict[str, Any]
    problem: str | None = None

    @property
    def content_hash(self) -> str:
        """SHA-256 of the content alone, in hex."""
        return hashlib.sha256(self.content.encode()).hexdigest()

    @property
    def title(self) -> str:
        """The frontmatter's, else the first heading's, else the file's name."""
        named = self.frontmatter.get("title")
        if isinstance(named, str) and named.strip():
            return named.strip()
        return markdown.find_title(self.content) or self.path.rpartition("/")[2].removesuffix(".md")

    @property
    def tags(self) -> list[str]:
        """As a list or as one text with commas, with or without a #."""
        given = self.frontmatter.get("tags", [])
        found = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
        return [tag.strip().lstrip("#") for tag in found if isinstance(tag, str) and tag.strip(" #")]

    @property
    def hebbian_weights(self) -> dict[str, float]:
        """Agent id to Hebbian weight; what is no number that a float can hold is left out."""
        given = self.frontmatter.get("hebbian_weights")
        pairs = given.items() if isinstance(given, dict) else ()
        numbers = ((k, v) for k, v in pairs if isinstance(v, int | float) and not isinstance(v, bool))
        return {k: float(v) for k, v in numbers if abs(v) <= sys.float_info.max}


def parse_document(path: str, raw: bytes) -> NoteDocument | None:
    """The document of a file; None for one that is no text."""
    if b"\0" in raw:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    parts = frontmatter.split(text)
    try:
        return NoteDocument(path, parts.body, frontmatter.parse_values(parts))
    except InvalidFrontmatter as error:
        if error.is_not_mapping:
            return NoteDocument(path, frontmatter.body_only(text).body, {})
        return NoteDocument(path, parts.body, {}, error.message)


def edit_document(
    raw: bytes | None, content: str | None, values: Mapping[str, Any] | None, *, replace_frontmatter: bool
) -> bytes:
    """The file (None for a new one) with another body and other frontmatter; every byte that need not change stays.

    None leaves the body or the frontmatter as it is. `whole` takes the values as all of the frontmatter, else they
    are added to it. Without values, those of a block at the head of the content are taken; with them, such a block is
    text like the rest. A byte order mark at its head is the file's. Raises BadFrontmatter when the frontmatter cannot
    be edited, InvalidRequest for what is no text, before or after.
    """
    text = _text(raw or b"")
    mark = _mark(text, content or "")
    body = None if content is None else content.removeprefix(BOM)
    if content is not None and values is None and (carried := _carried(content)):
        if _parts(text).block is None:
            return _bytes(f"{mark}{body}")
        # What begins the body behind a block is text, a byte order mark too.
        values, body = carried, frontmatter.split(content).body
    if values is not None:
        text = _with_values(text, values, whole=replace_frontmatter)
    return _bytes(text if body is None else _with_body(text, body, mark))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The file is no UTF-8 text, so that it cannot be edited as a document.") from None


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise InvalidRequest("document.content: has the character NUL in it, which no text has.")
    return text.encode()


def _parts(text: str) -> NoteParts:
    """Text between two rules is body."""
    parts = frontmatter.split(text)
    if _KEY.match(parts.block or ""):
        return parts  # nearly always, and YAML takes a millisecond to say the same
    try:
        frontmatter.parse_values(parts)
    except InvalidFrontmatter as error:
        if error.is_not_mapping:
            return frontmatter.body_only(text)
    return parts


def _carried(content: str) -> dict[str, Any]:
    """The frontmatter at the head of a content; empty for one that only seems to have some."""
    try:
        return frontmatter.read(content)
    except InvalidFrontmatter:
        return {}


def _with_values(text: str, values: Mapping[str, Any], *, whole: bool) -> str:
    parts = _parts(text)
    if parts.block is None:
        return frontmatter.edit(frontmatter.escape_body(text), values) if values else text
    gone = frozenset(frontmatter.parse_values(parts)) - frozenset(values) if whole else frozenset[str]()
    return frontmatter.edit(text, values, gone)


def _with_body(text: str, body: str, mark: str) -> str:
    """The body is read again as it is: where its head would be taken for frontmatter, an empty block comes first."""
    parts = _parts(text)
    tail = parts.tail + (parts.newline if body and parts.tail and not parts.tail.endswith(("\n", "\r")) else "")
    joined = f"{mark}{parts.head.removeprefix(BOM)}{parts.block or ''}{tail}{body}"
    return joined if parts.block is not None or _parts(joined).block is None else frontmatter.escape_body(joined)


def _mark(*texts: str) -> str:
    """The byte order mark, when one of them begins with it."""
    return BOM if any(text.startswith(BOM) for text in texts) else ""
