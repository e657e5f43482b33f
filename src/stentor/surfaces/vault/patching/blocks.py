"""The blocks of Markdown text with their places: what is a heading, what is code, where a table ends. Pure.

The grammar is CommonMark with tables. Places are offsets into the text as it is, whatever its line ends are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

_LINE_END = re.compile(r"\r\n|\r|\n")
_KINDS = {
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


class Block(msgspec.Struct, frozen=True):
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


def blocks(text: str) -> list[Block]:
    """In the order of the text, each before what is inside of it."""
    tokens = _PARSER.parse(text)
    starts = [0, *(found.end() for found in _LINE_END.finditer(text))]
    return list(_found(tokens, starts, len(text)))


def _found(tokens: list[Token], starts: list[int], length: int) -> Iterator[Block]:
    depth = 0
    for n, token in enumerate(tokens):
        kind = _KINDS.get(token.type)
        if kind is not None and token.map is not None:
            start, end = (starts[line] if line < len(starts) else length for line in token.map)
            yield Block(kind, start, end, depth, _text(tokens, n, kind), _level(token, kind), _columns(tokens, n, kind))
        if kind in ("list", "item", "quote") or token.type.endswith(("list_close", "item_close", "quote_close")):
            depth += token.nesting


def _text(tokens: list[Token], n: int, kind: str) -> str:
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
