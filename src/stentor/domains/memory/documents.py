"""Notes as documents: a body, frontmatter, and what the search wants to know of them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.memory.text import outline
from stentor.domains.notes import frontmatter
from stentor.domains.notes.frontmatter import BadFrontmatter


class Document(msgspec.Struct, frozen=True):
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
        return outline.title(self.content) or self.path.rpartition("/")[2].removesuffix(".md")

    @property
    def tags(self) -> list[str]:
        """As a list or as one text with commas, with or without a #."""
        given = self.frontmatter.get("tags", [])
        found = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else []
        return [tag.strip().lstrip("#") for tag in found if isinstance(tag, str) and tag.strip(" #")]

    @property
    def weights(self) -> dict[str, float]:
        """Agent id to Hebbian weight; what is no number is left out."""
        given = self.frontmatter.get("hebbian_weights")
        pairs = given.items() if isinstance(given, dict) else ()
        return {k: float(v) for k, v in pairs if isinstance(v, int | float) and not isinstance(v, bool)}


def parse(path: str, raw: bytes) -> Document | None:
    """The document of a file; None for one that is no text."""
    if b"\0" in raw:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    parts = frontmatter.split(text)
    try:
        return Document(path, parts.body, frontmatter.values(parts))
    except BadFrontmatter as error:
        return Document(path, parts.body, {}, error.message)


def changed(raw: bytes | None, content: str | None, values: Mapping[str, Any] | None, *, whole: bool) -> bytes:
    """The file with another body and other frontmatter; every byte that need not change stays.

    None leaves the body or the frontmatter as it is. `whole` takes the values as all of the frontmatter, else
    they are added to it. Raises BadFrontmatter when it cannot be edited, InvalidRequest for a file that is no text.
    """
    if raw is None:
        return frontmatter.with_values(content or "", values or {}).encode()
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The file is no UTF-8 text, so that it cannot be edited as a document.") from None
    if values is not None:
        known = frontmatter.read(text)
        gone = frozenset(known) - frozenset(values) if whole else frozenset[str]()
        text = frontmatter.edit(text, values, gone)
    if content is not None:
        parts = frontmatter.split(text)
        text = f"{parts.head}{parts.block or ''}{parts.tail}{content}"
    return text.encode()
