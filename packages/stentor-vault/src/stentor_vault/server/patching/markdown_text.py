"""Text spans and edits, Markdown blocks with their positions, and shifts of heading levels. Pure.

The grammar is CommonMark with tables. Positions are offsets into the text as it is, whatever its line breaks are.
`outline` builds the tree of a note's sections from the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_HEADING_LEVEL = 6
ATX_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_NEWLINE = re.compile(r"\r\n|\r|\n")
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\r|\n))+")


class TextSpan(NamedTuple):
    """The characters from `start` up to, not including, `end`."""

    start: int
    end: int

    def extract(self, text: str) -> str:
        return text[self.start : self.end]


class TextEdit(NamedTuple):
    """The replacement of a span by `text`; an empty span inserts."""

    span: TextSpan
    text: str


def empty_span(position: int) -> TextSpan:
    return TextSpan(position, position)


def apply_edits(text: str, *edits: TextEdit) -> str:
    """Return the text with the edits, which must not overlap."""
    pieces, position = [], 0
    for span, new in sorted(edits, key=lambda edit: edit.span):
        assert span.start >= position, "edits overlap"
        pieces += [text[position : span.start], new]
        position = span.end
    return "".join([*pieces, text[position:]])


def detect_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def convert_newlines(text: str, newline: str) -> str:
    return _NEWLINE.sub(newline, text)


def normalize_fragment(text: str, newline: str) -> str:
    """Strip blank lines around the text and end it with one line break; "" if nothing is left."""
    blank_lines = _BLANK_LINES.match(text)
    stripped = text[blank_lines.end() if blank_lines else 0 :].rstrip()
    return convert_newlines(stripped, newline) + newline if stripped else ""


def skip_blank_lines(text: str, span: TextSpan) -> int:
    """Return the start of the first line in the span that is not blank."""
    blank_lines = _BLANK_LINES.match(text, span.start, span.end)
    return blank_lines.end() if blank_lines else span.start


def count_newlines_before(text: str, position: int) -> int:
    """Return the number of line breaks directly before the position; at most 2."""
    count = 0
    while count < 2 and position > 0 and text[position - 1] in "\r\n":
        position -= 2 if text[max(0, position - 2) : position] == "\r\n" else 1
        count += 1
    return count


def trim_newlines(text: str, span: TextSpan) -> TextSpan:
    """Return the span without the line breaks at its end."""
    return TextSpan(span.start, span.start + len(span.extract(text).rstrip("\r\n")))


def starts_atx_heading(text: str, position: int) -> bool:
    """Return whether a heading with `#` begins there; `#tag` is not one."""
    return ATX_HEADING.match(text, position) is not None


def starts_block(text: str, position: int) -> bool:
    """Return whether the line that begins there is neither blank nor the end of the text."""
    return text[position : position + 4].lstrip(" ")[:1] not in ("", "\r", "\n")


def make_paragraph_edit(text: str, span: TextSpan, new: str, newline: str, *, before: bool, after: bool) -> TextEdit:
    """Return an edit that puts a fragment on lines of its own, with a blank line before and after where needed.

    No blank line is needed before a heading with `#`; a setext heading would take the fragment's last line as its own.
    """
    if not new:
        return TextEdit(span, "")
    missing_before = 0 if span.start == 0 else max(0, (2 if before else 1) - count_newlines_before(text, span.start))
    missing_after = starts_block(text, span.end) and (after or not starts_atx_heading(text, span.end))
    missing_after = missing_after and count_newlines_before(new, len(new)) < 2
    return TextEdit(span, newline * missing_before + new + (newline if missing_after else ""))


_BLOCK_KINDS = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "fence": "code",
    "code_block": "code",
    "table_open": "table",
    "bullet_list_open": "list",
    "ordered_list_open": "list",
    "list_item_open": "item",
    "blockquote_open": "quote",
    "hr": "rule",
    "html_block": "html",
}


class MarkdownBlock(msgspec.Struct, frozen=True):
    """A block from `start` to `end`, including its last line break. `depth` is 0 outside of lists and quotes.

    `text` is set for headings and paragraphs, `level` (1 to 6) for headings, `columns` for tables.
    """

    kind: str
    start: int
    end: int
    depth: int
    text: str = ""
    level: int = 0
    columns: int = 0


@cache
def _parser() -> MarkdownIt:
    # Imported here, because a server starts with this module and may never patch a section.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable("table")
    # Only the block structure is needed. Without "reference", link definitions are paragraphs and get positions too.
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.block.ruler.disable("reference")
    # Its first use collects the rules, which two threads cannot do at once: one would parse with none.
    parser.parse("x")
    return parser


def parse_blocks(text: str) -> list[MarkdownBlock]:
    """Return the blocks in the order of the text, each before the blocks inside it."""
    tokens = _parser().parse(text)
    line_starts = [0, *(match.end() for match in _NEWLINE.finditer(text))]
    return list(_iter_blocks(tokens, line_starts, len(text)))


def _iter_blocks(tokens: list[Token], line_starts: list[int], length: int) -> Iterator[MarkdownBlock]:
    depth = 0
    for n, token in enumerate(tokens):
        kind = _BLOCK_KINDS.get(token.type)
        if kind is not None and token.map is not None:
            start, end = (line_starts[line] if line < len(line_starts) else length for line in token.map)
            text = tokens[n + 1].content.strip() if kind in ("heading", "paragraph") else ""
            level = int(token.tag[1:]) if kind == "heading" else 0
            columns = _count_columns(tokens, n) if kind == "table" else 0
            yield MarkdownBlock(kind, start, end, depth, text, level, columns)
        if kind in ("list", "item", "quote") or token.type.endswith(("list_close", "item_close", "quote_close")):
            depth += token.nesting


def _count_columns(tokens: list[Token], table: int) -> int:
    count = 0
    for token in tokens[table:]:
        if token.type == "thead_close":
            break
        count += token.type == "th_open"
    return count


class PatchWarning(msgspec.Struct, frozen=True):
    """A warning for the caller about an edit that was applied."""

    code: str
    message: str


class ShiftedText(msgspec.Struct, frozen=True):
    """A text with shifted heading levels, and warnings about headings that got too deep."""

    text: str
    warnings: list[PatchWarning]


def shift_headings(text: str, by: int, *, rewrite_setext: bool = False) -> ShiftedText:
    """Change the level of every heading by `by`, except in code, lists and quotes.

    A text that a caller sends counts its levels relative to the target: one `#` is a child of the target. Setext
    headings have no # to count; they stay as they are, or become headings with # with `rewrite_setext`.
    """
    if by == 0:
        return ShiftedText(text, [])
    edits, warnings = [], []
    for block in parse_blocks(text):
        # Headings in lists and quotes are not sections of the note, so their level says nothing.
        if block.kind != "heading" or block.depth > 0:
            continue
        level = max(1, block.level + by)
        match = ATX_HEADING.match(text, block.start)
        if match is not None:
            edits.append(TextEdit(TextSpan(*match.span(1)), "#" * level))
        elif rewrite_setext:
            span = trim_newlines(text, TextSpan(block.start, block.end))
            edits.append(TextEdit(span, f"{'#' * level} {' '.join(block.text.split())}"))
        else:
            continue
        if level > MAX_HEADING_LEVEL:
            warnings.append(depth_warning(block.text, level))
    return ShiftedText(apply_edits(text, *edits), warnings)


def depth_warning(text: str, level: int) -> PatchWarning:
    message = (
        f"The heading {text[:40]!r} has level {level}, so it is plain text. Markdown has {MAX_HEADING_LEVEL} levels."
    )
    return PatchWarning("heading-depth-overflow", message)
