"""A note as a tree of sections with the blocks that have an id. Pure.

Every sign of the body belongs to exactly one section: to its heading's lines, its own text, or the blank lines after.
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
"""Between a name that a section or block has had before and the number of its turn, in digits of the same plane."""
_REPEAT_DIGIT_BASE = 0xFD3B0
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LABELLED = {"code", "heading", "table", "quote", "list", "paragraph"}
"""What an id on a line of its own can stand for: the block before it."""


@dataclass(eq=False)
class NoteSection:
    """A heading and what is below it. The root has level 0 and no marker.

    `marker` is the heading's lines, `body` the text up to the first heading below, `gap` the blank lines after it,
    `parts` the blocks of the body that stand in no other, `children` by the name they are addressed by.
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
        """After the blank lines that follow."""
        return self.last_descendant.trailing_blank.end

    @property
    def content(self) -> TextSpan:
        """What is below the heading's line, sections and all, without the blank lines that follow."""
        return TextSpan(self.body.start, self.last_descendant.trailing_blank.start)

    @property
    def full_span(self) -> TextSpan:
        return TextSpan(self.start, self.last_descendant.trailing_blank.start)


class LabelledBlock(msgspec.Struct, frozen=True):
    """A block with an id: `content` is what the id stands for, `marker` the id with its ^ and the blanks before."""

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
    """`blocks` by the name they are addressed by, in the order of the text."""

    text: str
    newline: str
    root: NoteSection
    blocks: dict[str, LabelledBlock]

    def find_section(self, path: tuple[str, ...]) -> NoteSection | None:
        """By the names of the headings from the top; the root for none."""
        section: NoteSection | None = self.root
        for name in path:
            section = None if section is None else section.children.get(name)
        return section


def parse_outline(text: str) -> NoteOutline:
    """Raises BadFrontmatter: where the block ends may not be what its author means."""
    frontmatter.validate(text)
    parts = frontmatter.split(text)
    offset = len(text) - len(parts.body)
    found = [_moved(block, offset) for block in parse_blocks(parts.body)]
    return NoteOutline(text, detect_newline(text), _sections(text, found, offset), _labelled(text, found))


def make_unique_name(name: str, known: dict[str, int]) -> str:
    """The name by which the next one of this name is addressed; counts it."""
    count = known[name] = known.get(name, -1) + 1
    return (
        name
        if count == 0
        else name + REPEAT_MARKER + "".join(chr(_REPEAT_DIGIT_BASE + int(sign, 16)) for sign in f"{count:x}")
    )


def _moved(block: MarkdownBlock, offset: int) -> MarkdownBlock:
    return msgspec.structs.replace(block, start=block.start + offset, end=block.end + offset)


def _sections(text: str, found: list[MarkdownBlock], offset: int) -> NoteSection:
    headings = [block for block in found if block.kind == "heading" and block.depth == 0]
    ends = [*(heading.start for heading in headings), len(text)]
    root = NoteSection("", 0, None, *_divided(text, offset, ends[0]))
    turns: dict[int, dict[str, int]] = {}
    section, made = root, [root]
    for heading, end in zip(headings, ends[1:], strict=True):
        parent = section
        while parent.parent is not None and parent.level >= heading.level:
            parent = parent.parent
        marker = TextSpan(heading.start, heading.end)
        section = NoteSection(heading.text, heading.level, marker, *_divided(text, heading.end, end), parent)
        parent.children[make_unique_name(heading.text, turns.setdefault(id(parent), {}))] = section
        made.append(section)
    _give_parts(text, found, made)
    return root


def _divided(text: str, start: int, end: int) -> tuple[TextSpan, TextSpan]:
    """The body, which keeps the end of its last line, and the blank lines after it."""
    visible = trim_newlines(text, TextSpan(start, end)).end
    if visible > start:
        visible += 2 if text[visible : visible + 2] == "\r\n" else 1 if visible < end else 0
    return TextSpan(start, visible), TextSpan(visible, end)


def _give_parts(text: str, found: list[MarkdownBlock], sections: list[NoteSection]) -> None:
    ahead = iter([*sections[1:], None])
    section, following = sections[0], next(ahead)
    for block in found:
        while following is not None and block.start >= following.start:
            section, following = following, next(ahead)
        if block.depth == 0 and block.kind != "heading" and not _is_label(text, block):
            span = trim_newlines(text, TextSpan(block.start, block.end))
            section.body_blocks.append(msgspec.structs.replace(block, end=span.end))


def _is_label(text: str, block: MarkdownBlock) -> bool:
    """Whether the block is nothing but an id, which is for the block before it."""
    if block.kind != "paragraph" or block.depth > 0:
        return False
    found = _id_at_end(text[block.start : block.end])
    return found is not None and found[0] == 0


def _id_at_end(raw: str) -> tuple[int, str] | None:
    """Where the blanks before the ^ begin, and the id. Not by an expression: blanks in a row would take their time."""
    raw = raw.rstrip()
    at = raw.rfind("^")
    if at < 0 or _NAME.fullmatch(raw, at + 1) is None:
        return None
    start = at
    while start > 0 and raw[start - 1].isspace() and raw[start - 1] not in "\r\n":
        start -= 1
    return start, raw[at + 1 :]


def _labelled(text: str, found: list[MarkdownBlock]) -> dict[str, LabelledBlock]:
    """An id at the end of an item of a list is the item's, of the innermost one that ends there."""
    at: dict[int, LabelledBlock] = {}
    before: MarkdownBlock | None = None
    inner: set[int] = set()
    for block in found:
        label = _label(text, block, before) if block.kind in ("paragraph", "item", "table") else None
        if label is not None and (block.kind == "item" or label.marker.start not in inner):
            at[label.marker.start] = label
            if block.kind == "item":
                inner.add(label.marker.start)
        if block.depth == 0 and block.kind in _LABELLED and not _is_label(text, block):
            before = block
    turns: dict[str, int] = {}
    return {make_unique_name(label.name, turns): label for _, label in sorted(at.items())}


def _label(text: str, block: MarkdownBlock, before: MarkdownBlock | None) -> LabelledBlock | None:
    raw = text[block.start : block.end]
    found = _id_at_end(raw)
    if found is None:
        return None
    at, name = found
    marker = TextSpan(block.start + at, block.start + len(raw.rstrip()))
    if before is not None and _is_label(text, block):
        content = trim_newlines(text, TextSpan(before.start, before.end))
        return LabelledBlock(name, before.kind, content, marker, before.columns)
    start = min(block.start + _indent(raw, block), marker.start)
    return LabelledBlock(name, block.kind, TextSpan(start, marker.start), marker, block.columns)


def _indent(raw: str, block: MarkdownBlock) -> int:
    """What the lists and quotes around a block put before its first sign."""
    if block.depth == 0:
        return 0
    first = block.text.partition("\n")[0]
    if block.kind == "paragraph" and first in raw:
        return raw.index(first)
    return len(raw) - len(raw.lstrip(" \t>"))
