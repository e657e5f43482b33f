"""The parts of a Markdown text: its title, its sections by heading. Code is no heading. Pure.

Pieces of a document that an embedding model can take whole: by heading, then by paragraph. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

import msgspec

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class MarkdownSection(msgspec.Struct, frozen=True):
    """A heading (empty before the first one), its level (0 to 6), and the text below it up to the next one."""

    heading: str
    level: int
    text: str


def split_sections(body: str) -> list[MarkdownSection]:
    """All sections with something in them, in order."""
    found: list[MarkdownSection] = []
    heading, level, lines = "", 0, list[str]()
    for line, code in _lines(body):
        match = None if code else _HEADING.match(line)
        if match is None:
            lines.append(line)
            continue
        _close(found, heading, level, lines)
        heading, level, lines = match[2].strip(), len(match[1]), []
    _close(found, heading, level, lines)
    return found


def find_title(body: str) -> str | None:
    """The first heading of the first level."""
    for line, code in _lines(body):
        if not code and (match := _HEADING.match(line)) and len(match[1]) == 1:
            return match[2].strip() or None
    return None


def _close(found: list[MarkdownSection], heading: str, level: int, lines: list[str]) -> None:
    text = "\n".join(lines).strip()
    if heading or text:
        found.append(MarkdownSection(heading, level, text))


def _lines(body: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is code between fences."""
    fence = ""
    for line in body.splitlines():
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not line.strip(" \t`~"):
                fence = ""
        else:
            fence = match[1] if match else ""
            yield line, bool(match)


CountTokens = Callable[[str], int]
MAX_CHARS_PER_TOKEN = 32
"""Characters for each token that there is room for: what is longer is cut without being counted.

A tokenizer needs hundreds of bytes for each token, so that a note of megabytes would take it gigabytes.
"""


class Chunk(msgspec.Struct, frozen=True):
    """`text` is what is embedded: the document's title, the heading, the piece. `hash` names it for the cache."""

    ordinal: int
    heading: str
    text: str

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def split_chunks(title: str, body: str, max_tokens: int, count_tokens: CountTokens) -> list[Chunk]:
    """The chunks of a document, none of more than `most` tokens by `count`; at least one for any document."""
    texts = [
        (section.heading, text)
        for section in split_sections(body)
        for text in _of_section(title, section, max_tokens, count_tokens)
    ]
    return [Chunk(i, heading, text) for i, (heading, text) in enumerate(texts or [("", title)])]


def _of_section(title: str, section: MarkdownSection, most: int, count: CountTokens) -> Iterator[str]:
    head = " > ".join(dict.fromkeys(part for part in (title, section.heading) if part))
    room = max(16, most - count(head) - 4)
    for piece in _packed(section.text, room, count):
        yield f"{head}\n{piece}".strip()


def _packed(text: str, room: int, count: CountTokens) -> Iterator[str]:
    """Paragraphs together as long as they fit; one that does not fit alone is cut between words."""
    if _size(text, room, count) <= room:
        yield text
        return
    held: list[str] = []
    used = 0
    for piece, size in _pieces(text, room, count):
        if held and used + size > room:
            yield "\n".join(held)
            held, used = [], 0
        held.append(piece)
        used += size + 1
    if held:
        yield "\n".join(held)


def _pieces(text: str, room: int, count: CountTokens) -> Iterator[tuple[str, int]]:
    for paragraph in text.split("\n\n"):
        size = _size(paragraph, room, count)
        if size <= room:
            yield paragraph, size
        else:
            yield from _halves(paragraph, size, room, count)


def _halves(text: str, size: int, room: int, count: CountTokens) -> Iterator[tuple[str, int]]:
    if size <= room or len(text) < 2:
        yield text, size
        return
    middle = len(text) // 2
    cut = next(
        (at for at in (text.rfind(mark, 1, middle + 1) for mark in ("\n", ". ", " ")) if at > len(text) // 4), -1
    )
    cut = middle if cut < 0 else cut + 1
    for half in (text[:cut], text[cut:]):
        yield from _halves(half, _size(half, room, count), room, count)


def _size(text: str, room: int, count: CountTokens) -> int:
    """In tokens; of a text that is far too long no more than that it does not fit."""
    return count(text) if len(text) <= MAX_CHARS_PER_TOKEN * room else room + 1
