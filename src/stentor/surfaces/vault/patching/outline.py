"""A note as a tree of sections with the blocks that have an id. Pure.

Every sign of the body belongs to exactly one section: to its heading's lines, its own text, or the blank lines after.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import msgspec

from stentor.domains.notes import frontmatter
from stentor.surfaces.vault.patching.blocks import Block, blocks
from stentor.surfaces.vault.patching.spans import Span, newline_of, without_line_ends

REPEATED = "\U000fd3a1"
"""Between a name that a section or block has had before and the number of its turn, in digits of the same plane."""
_DIGIT = 0xFD3B0
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LABELLED = {"code", "heading", "table", "quote", "list", "paragraph"}
"""What an id on a line of its own can stand for: the block before it."""


@dataclass(eq=False)
class Section:
    """A heading and what is below it. The root has level 0 and no marker.

    `marker` is the heading's lines, `body` the text up to the first heading below, `gap` the blank lines after it,
    `parts` the blocks of the body that stand in no other, `children` by the name they are addressed by.
    """

    text: str
    level: int
    marker: Span | None
    body: Span
    gap: Span
    parent: Section | None = None
    children: dict[str, Section] = field(default_factory=dict)
    parts: list[Block] = field(default_factory=list)

    @property
    def start(self) -> int:
        return self.body.start if self.marker is None else self.marker.start

    @property
    def last(self) -> Section:
        section = self
        while section.children:
            section = next(reversed(section.children.values()))
        return section

    @property
    def end(self) -> int:
        """After the blank lines that follow."""
        return self.last.gap.end

    @property
    def content(self) -> Span:
        """What is below the heading's line, sections and all, without the blank lines that follow."""
        return Span(self.body.start, self.last.gap.start)

    @property
    def whole(self) -> Span:
        return Span(self.start, self.last.gap.start)


class Labelled(msgspec.Struct, frozen=True):
    """A block with an id: `content` is what the id stands for, `marker` the id with its ^ and the blanks before."""

    name: str
    kind: str
    content: Span
    marker: Span
    columns: int = 0

    @property
    def whole(self) -> Span:
        return Span(min(self.content.start, self.marker.start), max(self.content.end, self.marker.end))


@dataclass(frozen=True)
class Outline:
    """`blocks` by the name they are addressed by, in the order of the text."""

    text: str
    newline: str
    root: Section
    blocks: dict[str, Labelled]

    def section(self, path: tuple[str, ...]) -> Section | None:
        """By the names of the headings from the top; the root for none."""
        section: Section | None = self.root
        for name in path:
            section = None if section is None else section.children.get(name)
        return section


def outline(text: str) -> Outline:
    """Raises BadFrontmatter: where the block ends may not be what its author means."""
    frontmatter.check(text)
    parts = frontmatter.split(text)
    offset = len(text) - len(parts.body)
    found = [_moved(block, offset) for block in blocks(parts.body)]
    return Outline(text, newline_of(text), _sections(text, found, offset), _labelled(text, found))


def turn(name: str, known: dict[str, int]) -> str:
    """The name by which the next one of this name is addressed; counts it."""
    count = known[name] = known.get(name, -1) + 1
    return name if count == 0 else name + REPEATED + "".join(chr(_DIGIT + int(sign, 16)) for sign in f"{count:x}")


def _moved(block: Block, offset: int) -> Block:
    return msgspec.structs.replace(block, start=block.start + offset, end=block.end + offset)


def _sections(text: str, found: list[Block], offset: int) -> Section:
    headings = [block for block in found if block.kind == "heading" and block.depth == 0]
    ends = [*(heading.start for heading in headings), len(text)]
    root = Section("", 0, None, *_divided(text, offset, ends[0]))
    turns: dict[int, dict[str, int]] = {}
    section, made = root, [root]
    for heading, end in zip(headings, ends[1:], strict=True):
        parent = section
        while parent.parent is not None and parent.level >= heading.level:
            parent = parent.parent
        marker = Span(heading.start, heading.end)
        section = Section(heading.text, heading.level, marker, *_divided(text, heading.end, end), parent)
        parent.children[turn(heading.text, turns.setdefault(id(parent), {}))] = section
        made.append(section)
    _give_parts(text, found, made)
    return root


def _divided(text: str, start: int, end: int) -> tuple[Span, Span]:
    """The body, which keeps the end of its last line, and the blank lines after it."""
    visible = without_line_ends(text, Span(start, end)).end
    if visible > start:
        visible += 2 if text[visible : visible + 2] == "\r\n" else 1 if visible < end else 0
    return Span(start, visible), Span(visible, end)


def _give_parts(text: str, found: list[Block], sections: list[Section]) -> None:
    ahead = iter([*sections[1:], None])
    section, following = sections[0], next(ahead)
    for block in found:
        while following is not None and block.start >= following.start:
            section, following = following, next(ahead)
        if block.depth == 0 and block.kind != "heading" and not _is_label(text, block):
            span = without_line_ends(text, Span(block.start, block.end))
            section.parts.append(msgspec.structs.replace(block, end=span.end))


def _is_label(text: str, block: Block) -> bool:
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


def _labelled(text: str, found: list[Block]) -> dict[str, Labelled]:
    """An id at the end of an item of a list is the item's, of the innermost one that ends there."""
    at: dict[int, Labelled] = {}
    before: Block | None = None
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
    return {turn(label.name, turns): label for _, label in sorted(at.items())}


def _label(text: str, block: Block, before: Block | None) -> Labelled | None:
    raw = text[block.start : block.end]
    found = _id_at_end(raw)
    if found is None:
        return None
    at, name = found
    marker = Span(block.start + at, block.start + len(raw.rstrip()))
    if before is not None and _is_label(text, block):
        content = without_line_ends(text, Span(before.start, before.end))
        return Labelled(name, before.kind, content, marker, before.columns)
    start = min(block.start + _indent(raw, block), marker.start)
    return Labelled(name, block.kind, Span(start, marker.start), marker, block.columns)


def _indent(raw: str, block: Block) -> int:
    """What the lists and quotes around a block put before its first sign."""
    if block.depth == 0:
        return 0
    first = block.text.partition("\n")[0]
    if block.kind == "paragraph" and first in raw:
        return raw.index(first)
    return len(raw) - len(raw.lstrip(" \t>"))
