"""Passages of a note: the section below a heading, or the block with an id, as Obsidian links to them. Pure.

An anchor is `#Heading`, `#Heading#Subheading` or `^block-id`; headings are compared without case and punctuation that
links cannot have.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

import msgspec

from stentor_vault.text import markdown

_BLOCK_ID = re.compile(r"(?:^|[ \t])\^([A-Za-z0-9-]+)[ \t]*$")
_LIST_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_SPECIAL = re.compile(r"[#^|\[\]:%\\\s]+")
_INDENT = re.compile(r"[ \t]*")

MAX_ANCHOR_CHARS = 2_000
"""Longer anchors are unknown: what names a passage in a frontmatter has at most as many characters."""
MAX_TOTAL_CHARS = 1_000_000
"""Characters of a note's anchors up to which a heading is known by paths of headings too."""


class _Line(msgspec.Struct, frozen=True):
    """A line with its line break; `level` is that of a heading, 0 for another line."""

    text: str
    level: int
    anchor: str
    block_id: str | None

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


class CutText(msgspec.Struct, frozen=True):
    """A text without some passages.

    `anchors` are all anchors that lead into what was cut, by the anchor that it was cut for; each as `anchor_key` has
    it. `missing` are anchors without passage.
    """

    text: str
    anchors: dict[str, tuple[str, ...]]
    missing: tuple[str, ...]


def normalize_anchor(anchor: str) -> str:
    """Return an anchor as it is compared: `#heading` or `^id`, in lower case; empty for one without a name."""
    last = anchor.rpartition("#")[2].strip() if anchor.startswith("#") else anchor.strip()
    if last.startswith("^"):
        return f"^{last[1:].strip().lower()}" if last[1:].strip() else ""
    words = _SPECIAL.sub(" ", last).strip().lower()
    return f"#{words}" if words else ""


def anchor_key(anchor: str) -> str:
    """Return an anchor as anchors of one note are compared: a path of headings with all of its parts."""
    parts = [normalize_anchor(f"#{part}") for part in anchor.split("#")] if "#" in anchor else [anchor.strip().lower()]
    # A block is found wherever it is.
    return parts[-1] if parts[-1].startswith("^") else "".join(parts)


def split_anchor(target: str, start: int = 0) -> tuple[str, str]:
    """Split `path#heading`, `path#^id` or `path^id` into the path and its anchor, which is empty without one.

    The path has at least `start` characters.
    """
    head, rest = target[:start], target[start:]
    path, hash_mark, heading = rest.partition("#")
    if hash_mark:
        return (head + path).strip(), heading.strip() if heading.strip().startswith("^") else f"#{heading.strip()}"
    path, caret, block = rest.rpartition("^")
    return ((head + path).strip(), f"^{block.strip()}") if caret and head + path else (target.strip(), "")


def cut_passages(body: str, anchors: Iterable[str]) -> CutText:
    """Return the text without these passages."""
    lines = _parse(body)
    first_lines = _index_anchors(lines)
    cut: set[int] = set()
    covered: dict[str, tuple[str, ...]] = {}
    missing = []
    for anchor in anchors:
        span = _find(lines, anchor)
        if span is None:
            missing.append(anchor)
            continue
        cut.update(span)
        covered[anchor] = tuple(name for name, number in first_lines.items() if number in span)
    text = "".join(line.text for number, line in enumerate(lines) if number not in cut)
    return CutText(text, covered, tuple(missing))


def _parse(body: str) -> list[_Line]:
    return [_parse_line(text, is_code) for text, is_code in markdown.iter_lines(body, keepends=True)]


def _parse_line(text: str, is_code: bool) -> _Line:
    bare = text.rstrip("\r\n")
    heading = None if is_code else markdown.match_heading(bare)
    block = None if is_code else _BLOCK_ID.search(bare)
    if heading is None:
        return _Line(text, 0, "", block and block[1].lower())
    name, level = heading
    # The id of a heading's own block is not a part of its name.
    return _Line(text, level, normalize_anchor("#" + _BLOCK_ID.sub("", name)), block and block[1].lower())


def _index_anchors(lines: list[_Line]) -> dict[str, int]:
    """Return the number of the line that each anchor leads to: the first of its name, or of its path of headings."""
    found: dict[str, int] = {}
    parents: list[_Line] = []
    total = 0
    for number, line in enumerate(lines):
        if line.anchor:
            parents = [parent for parent in parents if parent.level < line.level]
            # At most five, because there are six levels; a path may leave out any of them.
            for count in range(len(parents) + 1 if total < MAX_TOTAL_CHARS else 1):
                for path in itertools.combinations(parents, count):
                    parts = [part.anchor for part in (*path, line)]
                    length = sum(map(len, parts))
                    if length <= MAX_ANCHOR_CHARS:
                        found.setdefault("".join(parts), number)
                        total += length
            parents.append(line)
        if line.block_id:
            found.setdefault(f"^{line.block_id}", number)
    return found


def _find(lines: list[_Line], anchor: str) -> range | None:
    if anchor.startswith("^"):
        return _find_block(lines, anchor[1:].strip().lower())
    span = range(len(lines))
    for part in anchor.lstrip("#").split("#"):
        if part.startswith("^"):
            return _find_block(lines, part[1:].strip().lower())
        found = _find_section(lines, span, normalize_anchor(f"#{part}"))
        if found is None:
            return None
        span = found
    return span


def _find_section(lines: list[_Line], span: range, anchor: str) -> range | None:
    """Return the first section of this name in the span, with its subsections."""
    for start in span:
        if lines[start].level and anchor and lines[start].anchor == anchor:
            ends = (n for n in range(start + 1, span.stop) if 0 < lines[n].level <= lines[start].level)
            return range(start, next(ends, span.stop))
    return None


def _find_block(lines: list[_Line], block_id: str) -> range | None:
    for end, line in enumerate(lines):
        if line.block_id == block_id:
            return _block_around(lines, end)
    return None


def _block_around(lines: list[_Line], end: int) -> range:
    """Return the block whose id is at the end of this line: a list item with what it contains, else a paragraph."""
    if lines[end].level:
        return range(end, end + 1)
    last = end
    if lines[end].text.strip().startswith("^"):
        # On a line of its own, the id belongs to the block above, such as a table.
        while last > 0 and lines[last - 1].is_blank:
            last -= 1
        last -= 1
    start = max(last, 0)
    while start > 0 and not _LIST_ITEM.match(lines[start].text) and _continues(lines[start - 1]):
        start -= 1
    if last == end and _LIST_ITEM.match(lines[start].text):
        return range(start, _end_of_item(lines, start, end))
    while start > 0 and _continues(lines[start - 1]):
        start -= 1
    return range(start, end + 1)


def _continues(line: _Line) -> bool:
    return not line.is_blank and not line.level


def _end_of_item(lines: list[_Line], start: int, end: int) -> int:
    indent = _indent(lines[start])
    stop = end + 1
    while stop < len(lines) and not lines[stop].is_blank and _indent(lines[stop]) > indent:
        stop += 1
    return stop


def _indent(line: _Line) -> int:
    match = _INDENT.match(line.text)
    return len(match[0].expandtabs(4)) if match else 0
