"""Places in a text, and edits of them: all other signs stay as they are. Pure.

The blocks of Markdown text with their places: what is a heading, what is code, where a table ends. Pure.

The grammar is CommonMark with tables. Places are offsets into the text as it is, whatever its line ends are.

Levels of headings inside of a text that is put below another heading. Pure.

A text that a caller sends counts its `#` from the place where it goes: one `#` is a child of the target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

_LINE_END = re.compile(r"\r\n|\r|\n")
ATX_HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\r|\n))+")


class TextSpan(NamedTuple):
    """From `start` up to, not including, `end`."""

    start: int
    end: int

    def extract(self, text: str) -> str:
        return text[self.start : self.end]


class TextEdit(NamedTuple):
    """What stands at the span becomes `text`; an empty span inserts."""

    span: TextSpan
    text: str


def empty_span(at: int) -> TextSpan:
    return TextSpan(at, at)


def apply_edits(text: str, *edits: TextEdit) -> str:
    """The text with the edits, which must not overlap."""
    pieces, at = [], 0
    for span, new in sorted(edits, key=lambda edit: edit.span):
        assert span.start >= at, "edits overlap"
        pieces += [text[at : span.start], new]
        at = span.end
    return "".join([*pieces, text[at:]])


def detect_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def convert_newlines(text: str, newline: str) -> str:
    return _LINE_END.sub(newline, text)


def normalize_fragment(text: str, newline: str) -> str:
    """Without blank lines around, with one line end; the empty text when nothing is left."""
    found = _BLANK_LINES.match(text)
    stripped = text[found.end() if found else 0 :].rstrip()
    return convert_newlines(stripped, newline) + newline if stripped else ""


def skip_blank_lines(text: str, span: TextSpan) -> int:
    """Where the first line with something in it begins."""
    found = _BLANK_LINES.match(text, span.start, span.end)
    return found.end() if found else span.start


def count_newlines_before(text: str, at: int) -> int:
    """How many line ends stand directly before; 2 at most."""
    count = 0
    while count < 2 and at > 0 and text[at - 1] in "\r\n":
        at -= 2 if text[max(0, at - 2) : at] == "\r\n" else 1
        count += 1
    return count


def trim_newlines(text: str, span: TextSpan) -> TextSpan:
    """The span without blank lines and line ends at its end."""
    return TextSpan(span.start, span.start + len(span.extract(text).rstrip("\r\n")))


def starts_atx_heading(text: str, at: int) -> bool:
    """Whether a heading of `#` begins there; `#tag` is none."""
    return ATX_HEADING.match(text, at) is not None


def make_paragraph_edit(text: str, span: TextSpan, new: str, newline: str, *, before: bool, after: bool) -> TextEdit:
    """An edit that puts a fragment in lines of its own, with a blank line before and after it where one is due.

    A heading of `#` below needs none; one that is underlined would take the fragment's last line for its own.
    """
    if not new:
        return TextEdit(span, "")
    missing = 0 if span.start == 0 else max(0, (2 if before else 1) - count_newlines_before(text, span.start))
    below = text[span.end : span.end + 4].lstrip(" ")
    due = below[:1] not in ("", "\r", "\n") and (after or not starts_atx_heading(text, span.end))
    return TextEdit(span, newline * missing + new + (newline if due else ""))


_NEWLINE = re.compile(r"\r\n|\r|\n")
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
    """From `start` to `end`, its last line end included. `depth` is 0 for what stands in no list and no quote.

    `text` is the words of a heading or paragraph, `level` of a heading 1 to 6, `columns` of a table.
    """

    kind: str
    start: int
    end: int
    depth: int
    text: str = ""
    level: int = 0
    columns: int = 0


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.block.ruler.disable("reference")
    return parser


_PARSER = _parser()


def parse_blocks(text: str) -> list[MarkdownBlock]:
    """In the order of the text, each before what is inside of it."""
    tokens = _PARSER.parse(text)
    starts = [0, *(found.end() for found in _NEWLINE.finditer(text))]
    return list(_iter_blocks(tokens, starts, len(text)))


def _iter_blocks(tokens: list[Token], starts: list[int], length: int) -> Iterator[MarkdownBlock]:
    depth = 0
    for n, token in enumerate(tokens):
        kind = _BLOCK_KINDS.get(token.type)
        if kind is not None and token.map is not None:
            start, end = (starts[line] if line < len(starts) else length for line in token.map)
            yield MarkdownBlock(
                kind, start, end, depth, _block_text(tokens, n, kind), _level(token, kind), _columns(tokens, n, kind)
            )
        if kind in ("list", "item", "quote") or token.type.endswith(("list_close", "item_close", "quote_close")):
            depth += token.nesting


def _block_text(tokens: list[Token], n: int, kind: str) -> str:
    return tokens[n + 1].content.strip() if kind in ("heading", "paragraph") else ""


def _level(token: Token, kind: str) -> int:
    return int(token.tag[1:]) if kind == "heading" else 0


def _columns(tokens: list[Token], n: int, kind: str) -> int:
    if kind != "table":
        return 0
    count = 0
    for token in tokens[n:]:
        if token.type == "thead_close":
            break
        count += token.type == "th_open"
    return count


MAX_HEADING_LEVEL = 6


class PatchWarning(msgspec.Struct, frozen=True):
    """Something that the caller should know of an edit that was made."""

    code: str
    message: str


class ShiftedText(msgspec.Struct, frozen=True):
    text: str
    warnings: list[PatchWarning]


def shift_headings(text: str, by: int) -> ShiftedText:
    """The text with every heading's level changed; what is in code, lists and quotes is none."""
    if by == 0:
        return ShiftedText(text, [])
    edits, warnings = [], []
    for block in parse_blocks(text):
        found = ATX_HEADING.match(text, block.start) if block.kind == "heading" and block.depth == 0 else None
        if found is None:
            continue  # no heading, or one that is underlined and has no sign to count
        level = max(1, len(found[1]) + by)
        edits.append(TextEdit(TextSpan(*found.span(1)), "#" * level))
        if level > MAX_HEADING_LEVEL:
            warnings.append(depth_warning(block.text, level))
    return ShiftedText(apply_edits(text, *edits), warnings)


def depth_warning(text: str, level: int) -> PatchWarning:
    message = f"The heading {text!r} would have level {level}; Markdown has {MAX_HEADING_LEVEL}, so that it is text."
    return PatchWarning("heading-depth-overflow", message)
