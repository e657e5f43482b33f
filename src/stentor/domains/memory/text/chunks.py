"""Pieces of a document that an embedding model can take whole: by heading, then by paragraph. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec

from stentor.domains.memory.text.outline import Section, sections

Count = Callable[[str], int]
LONGEST = 32
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


def chunks(title: str, body: str, most: int, count: Count) -> list[Chunk]:
    """The chunks of a document, none of more than `most` tokens by `count`; at least one for any document."""
    texts = [(section.heading, text) for section in sections(body) for text in _of_section(title, section, most, count)]
    return [Chunk(i, heading, text) for i, (heading, text) in enumerate(texts or [("", title)])]


def _of_section(title: str, section: Section, most: int, count: Count) -> Iterator[str]:
    head = " > ".join(dict.fromkeys(part for part in (title, section.heading) if part))
    room = max(16, most - count(head) - 4)
    for piece in _packed(section.text, room, count):
        yield f"{head}\n{piece}".strip()


def _packed(text: str, room: int, count: Count) -> Iterator[str]:
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


def _pieces(text: str, room: int, count: Count) -> Iterator[tuple[str, int]]:
    for paragraph in text.split("\n\n"):
        size = _size(paragraph, room, count)
        if size <= room:
            yield paragraph, size
        else:
            yield from _halves(paragraph, size, room, count)


def _halves(text: str, size: int, room: int, count: Count) -> Iterator[tuple[str, int]]:
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


def _size(text: str, room: int, count: Count) -> int:
    """In tokens; of a text that is far too long no more than that it does not fit."""
    return count(text) if len(text) <= LONGEST * room else room + 1
