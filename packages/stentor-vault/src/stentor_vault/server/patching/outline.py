"""A note as a tree of sections, with the blocks that have an id. Pure; the Markdown is parsed in `markdown_text`.

Every character of the body belongs to exactly one section: to its heading's lines, its own text, or the blank lines
after them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from stentor_vault.notes import frontmatter
from stentor_vault.server.patching.markdown_text import (
    MarkdownBlock,
    TextSpan,
    detect_newline,
    parse_blocks,
    trim_newlines,
)

REPEAT_MARKER = "\U000fd3a1"
"""Separates a repeated name from its repeat number; the digits are private-use characters too, from 0xFD3B0."""
_REPEAT_DIGIT_BASE = 0xFD3B0
_BLOCK_ID = re.compile(r"[A-Za-z0-9_-]+")
_ID_KINDS = {"code", "heading", "table", "quote", "list", "paragraph"}
"""Kinds of blocks that an id on the next line of its own can identify."""


@dataclass(eq=False)
class NoteSection:
    """A heading and everything below it. The root has level 0 and no marker.

    `marker` is the heading's lines, `body` the text up to the next heading, `trailing_blank` the blank lines after it.
    `children` are by unique name, `body_blocks` the body's blocks at the top level.
    """

    text: str
    level: int
    marker: TextSpan | None
    body: TextSpan
    trailing_blank: TextSpan
    parent: NoteSection | None = None
    children: dict[str, NoteSection] = field(default_factory=dict)
    body_blocks: list[MarkdownBlock] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.body.start if self.marker is None else self.marker.start

    @property
    def last_descendant(self) -> NoteSection:
        section = self
        while section.children:
            section = next(reversed(section.children.values()))
        return section

    @property
    def end(self) -> int:
        """The end of the section, including the blank lines after it."""
        return self.last_descendant.trailing_blank.end

    @property
    def content(self) -> TextSpan:
        """Everything below the heading's lines, subsections included, without the blank lines after it."""
        return TextSpan(self.body.start, self.last_descendant.trailing_blank.start)

    @property
    def full_span(self) -> TextSpan:
        return TextSpan(self.start, self.last_descendant.trailing_blank.start)


class BlockWithId(msgspec.Struct, frozen=True):
    """A block with an id: `content` is the block, `marker` the id with its ^ and the whitespace before it."""

    name: str
    kind: str
    content: TextSpan
    marker: TextSpan
    columns: int = 0

    @property
    def full_span(self) -> TextSpan:
        return TextSpan(min(self.content.start, self.marker.start), max(self.content.end, self.marker.end))


@dataclass(frozen=True)
class NoteOutline:
    """The sections and blocks of a note. `blocks` are by unique name, in the order of the text."""

    text: str
    newline: str
    root: NoteSection
    blocks: dict[str, BlockWithId]

    def find_section(self, path: tuple[str, ...]) -> NoteSection | None:
        """Return the section at a path of unique names from the top; the root for an empty path."""
        section: NoteSection | None = self.root
        for name in path:
            section = None if section is None else section.children.get(name)
        return section


def parse_outline(text: str) -> NoteOutline:
    """Parse a note. Raises InvalidFrontmatter: without valid YAML, where the body starts is not certain."""
    frontmatter.validate(text)
    parts = frontmatter.split(text)
    offset = len(text) - len(parts.body)
    blocks = [
        msgspec.structs.replace(block, start=block.start + offset, end=block.end + offset)
        for block in parse_blocks(parts.body)
    ]
    return NoteOutline(text, detect_newline(text), _build_sections(text, blocks, offset), _find_ids(text, blocks))


def make_unique_name(name: str, repeats: dict[str, int]) -> str:
    """Return the name for the next occurrence of `name`, with its repeat number from the second on; count it."""
    count = repeats[name] = repeats.get(name, -1) + 1
    if count == 0:
        return name
    return name + REPEAT_MARKER + "".join(chr(_REPEAT_DIGIT_BASE + int(digit, 16)) for digit in f"{count:x}")


def _build_sections(text: str, blocks: list[MarkdownBlock], offset: int) -> NoteSection:
    headings = [block for block in blocks if block.kind == "heading" and block.depth == 0]
    ends = [*(heading.start for heading in headings), len(text)]
    root = NoteSection("", 0, None, *_split_body(text, offset, ends[0]))
    repeats: dict[int, dict[str, int]] = {}
    section, sections = root, [root]
    for heading, end in zip(headings, ends[1:], strict=True):
        parent = section
        while parent.parent is not None and parent.level >= heading.level:
            parent = parent.parent
        marker = TextSpan(heading.start, heading.end)
        section = NoteSection(heading.text, heading.level, marker, *_split_body(text, heading.end, end), parent)
        parent.children[make_unique_name(heading.text, repeats.setdefault(id(parent), {}))] = section
        sections.append(section)
    _assign_body_blocks(text, blocks, sections)
    return root


def _split_body(text: str, start: int, end: int) -> tuple[TextSpan, TextSpan]:
    """Return the body, including its last line break, and the blank lines after it."""
    visible = trim_newlines(text, TextSpan(start, end)).end
    if visible > start:
        visible += 2 if text[visible : visible + 2] == "\r\n" else 1 if visible < end else 0
    return TextSpan(start, visible), TextSpan(visible, end)


def _assign_body_blocks(text: str, blocks: list[MarkdownBlock], sections: list[NoteSection]) -> None:
    remaining = iter([*sections[1:], None])
    section, next_section = sections[0], next(remaining)
    for block in blocks:
        while next_section is not None and block.start >= next_section.start:
            section, next_section = next_section, next(remaining)
        if block.depth == 0 and block.kind != "heading" and not _is_id_line(text, block):
            span = trim_newlines(text, TextSpan(block.start, block.end))
            section.body_blocks.append(msgspec.structs.replace(block, end=span.end))


def _is_id_line(text: str, block: MarkdownBlock) -> bool:
    """Return whether the block is only an id, which identifies the block before it."""
    if block.kind != "paragraph" or block.depth > 0:
        return False
    id_at_end = _find_id_at_end(text[block.start : block.end])
    return id_at_end is not None and id_at_end[0] == 0


def _find_id_at_end(raw: str) -> tuple[int, str] | None:
    """Return where the whitespace before the ^ begins, and the id."""
    # Not one regular expression: a long run of whitespace would take quadratic time.
    raw = raw.rstrip()
    caret = raw.rfind("^")
    if caret < 0 or _BLOCK_ID.fullmatch(raw, caret + 1) is None:
        return None
    start = caret
    while start > 0 and raw[start - 1].isspace() and raw[start - 1] not in "\r\n":
        start -= 1
    return start, raw[caret + 1 :]


def _find_ids(text: str, blocks: list[MarkdownBlock]) -> dict[str, BlockWithId]:
    """Find the blocks with an id. An id at the end of a list item belongs to the innermost item that ends there."""
    by_marker_start: dict[int, BlockWithId] = {}
    previous: MarkdownBlock | None = None
    item_markers: set[int] = set()
    for block in blocks:
        with_id = _read_id(text, block, previous) if block.kind in ("paragraph", "item", "table") else None
        if with_id is not None and (block.kind == "item" or with_id.marker.start not in item_markers):
            # An outer item comes before the inner one, which replaces it; the paragraph in an item does not.
            by_marker_start[with_id.marker.start] = with_id
            if block.kind == "item":
                item_markers.add(with_id.marker.start)
        if block.depth == 0 and block.kind in _ID_KINDS and not _is_id_line(text, block):
            previous = block
    repeats: dict[str, int] = {}
    return {make_unique_name(block.name, repeats): block for _, block in sorted(by_marker_start.items())}


def _read_id(text: str, block: MarkdownBlock, previous: MarkdownBlock | None) -> BlockWithId | None:
    raw = text[block.start : block.end]
    id_at_end = _find_id_at_end(raw)
    if id_at_end is None:
        return None
    offset, name = id_at_end
    marker = TextSpan(block.start + offset, block.start + len(raw.rstrip()))
    if previous is not None and _is_id_line(text, block):
        content = trim_newlines(text, TextSpan(previous.start, previous.end))
        return BlockWithId(name, previous.kind, content, marker, previous.columns)
    start = min(block.start + _prefix_length(raw, block), marker.start)
    return BlockWithId(name, block.kind, TextSpan(start, marker.start), marker, block.columns)


def _prefix_length(raw: str, block: MarkdownBlock) -> int:
    """Return the length of the list and quote markers before the block's first character."""
    if block.depth == 0:
        return 0
    first_line = block.text.partition("\n")[0]
    if block.kind == "paragraph" and first_line in raw:
        return raw.index(first_line)
    return len(raw) - len(raw.lstrip(" \t>"))
