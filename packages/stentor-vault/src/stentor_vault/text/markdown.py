"""Splits Markdown into sections by heading, and into chunks that fit an embedding model. Pure.

Lines in fenced code blocks are never headings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator

import msgspec

CountTokens = Callable[[str], int]
MAX_CHARS_PER_TOKEN = 32
"""A text longer than this per available token is cut without counting its tokens.

A tokenizer needs hundreds of bytes per token, so counting a note of some megabytes would take gigabytes of memory.
"""
MIN_ROOM_TOKENS = 16
"""Tokens for the text of a chunk, even if title and heading leave fewer."""
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)$")
# Backticks with others after them in the line are code within it.
_FENCE = re.compile(r" {0,3}(`{3,}+(?!.*`)|~{3,})")


class MarkdownSection(msgspec.Struct, frozen=True):
    """A heading (empty before the first one), its level (0 to 6), and the text below it up to the next heading."""

    heading: str
    level: int
    text: str


class Chunk(msgspec.Struct, frozen=True):
    """A part of a document that gets one embedding. `text` includes the document's title and the heading."""

    ordinal: int
    heading: str
    text: str

    @property
    def hash(self) -> str:
        """SHA-256 of the text, in hex: the key of its embedding."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def split_sections(body: str) -> list[MarkdownSection]:
    """Return the sections in order, without empty ones."""
    sections: list[MarkdownSection] = []
    heading, level, lines = "", 0, list[str]()
    for line, is_code in iter_lines(body):
        match = None if is_code else match_heading(line)
        if match is None:
            lines.append(line)
            continue
        _append_section(sections, heading, level, lines)
        (heading, level), lines = match, []
    _append_section(sections, heading, level, lines)
    return sections


def find_title(body: str) -> str | None:
    """Return the text of the first level-1 heading; None if there is none or it is empty."""
    for line, is_code in iter_lines(body):
        if not is_code and (match := match_heading(line)) and match[1] == 1:
            return match[0] or None
    return None


def iter_lines(
    body: str, *, keepends: bool = False, fence_pattern: re.Pattern[str] = _FENCE
) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it belongs to a fenced code block. Group 1 of the pattern is the fence itself."""
    fence = ""
    for line in body.splitlines(keepends):
        match = fence_pattern.match(line)
        if fence:
            yield line, True
            # A closing fence has the opening one's character, is at least as long, and has nothing after it.
            if match and match[1][0] == fence[0] and len(match[1]) >= len(fence):
                fence = fence if line[match.end() :].strip(" \t\r\n`~") else ""
        else:
            fence = match[1] if match else ""
            yield line, bool(match)


def match_heading(line: str) -> tuple[str, int] | None:
    """Return the text and the level of a heading; None for another line."""
    match = _HEADING.match(line)
    if match is None:
        return None
    # Not in the regular expression, which would take cubic time for a long run of spaces.
    return match[2].rstrip(" \t").rstrip("#").strip(), len(match[1])


def split_chunks(title: str, body: str, max_tokens: int, count_tokens: CountTokens) -> list[Chunk]:
    """Return the chunks of a document, each of at most `max_tokens`; at least one, even for an empty document."""
    texts = [
        (section.heading, text)
        for section in split_sections(body)
        for text in _section_texts(title, section, max_tokens, count_tokens)
    ]
    return [Chunk(i, heading, text) for i, (heading, text) in enumerate(texts or [("", title)])]


def _append_section(sections: list[MarkdownSection], heading: str, level: int, lines: list[str]) -> None:
    text = "\n".join(lines).strip()
    if heading or text:
        sections.append(MarkdownSection(heading, level, text))


def _section_texts(title: str, section: MarkdownSection, max_tokens: int, count: CountTokens) -> Iterator[str]:
    prefix = " > ".join(dict.fromkeys(part for part in (title, section.heading) if part))
    # A margin of 4 for the line break and the model's special tokens.
    room = max(MIN_ROOM_TOKENS, max_tokens - count(prefix) - 4)
    for text in _pack_paragraphs(section.text, room, count):
        yield f"{prefix}\n{text}".strip()


def _pack_paragraphs(text: str, room: int, count: CountTokens) -> Iterator[str]:
    """Join paragraphs as long as they fit; cut one that does not fit by itself between words."""
    if _token_count(text, room, count) <= room:
        yield text
        return
    packed: list[str] = []
    used = 0
    for part, size in _fitting_parts(text, room, count):
        if packed and used + size > room:
            yield "\n".join(packed)
            packed, used = [], 0
        packed.append(part)
        used += size + 1  # the line break between two parts
    if packed:
        yield "\n".join(packed)


def _fitting_parts(text: str, room: int, count: CountTokens) -> Iterator[tuple[str, int]]:
    for paragraph in text.split("\n\n"):
        size = _token_count(paragraph, room, count)
        if size <= room:
            yield paragraph, size
        else:
            yield from _halve(paragraph, size, room, count)


def _halve(text: str, size: int, room: int, count: CountTokens) -> Iterator[tuple[str, int]]:
    """Halve a text until each part fits, at a line break, sentence end or space near the middle if there is one."""
    if size <= room or len(text) < 2:
        yield text, size
        return
    middle = len(text) // 2
    cut = next(
        (at for at in (text.rfind(mark, 1, middle + 1) for mark in ("\n", ". ", " ")) if at > len(text) // 4), -1
    )
    cut = middle if cut < 0 else cut + 1
    for half in (text[:cut], text[cut:]):
        yield from _halve(half, _token_count(half, room, count), room, count)


def _token_count(text: str, room: int, count: CountTokens) -> int:
    """Return the number of tokens, or `room + 1` without counting if the text is far too long."""
    return count(text) if len(text) <= MAX_CHARS_PER_TOKEN * room else room + 1
