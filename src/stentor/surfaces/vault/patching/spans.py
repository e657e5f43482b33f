"""Places in a text, and edits of them: all other signs stay as they are. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_LINE_END = re.compile(r"\r\n|\r|\n")
HEADING = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\r|\n))+")


class Span(NamedTuple):
    """From `start` up to, not including, `end`."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


class Edit(NamedTuple):
    """What stands at the span becomes `text`; an empty span inserts."""

    span: Span
    text: str


def point(at: int) -> Span:
    return Span(at, at)


def spliced(text: str, *edits: Edit) -> str:
    """The text with the edits, which must not overlap."""
    pieces, at = [], 0
    for span, new in sorted(edits, key=lambda edit: edit.span):
        assert span.start >= at, "edits overlap"
        pieces += [text[at : span.start], new]
        at = span.end
    return "".join([*pieces, text[at:]])


def newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def with_newlines(text: str, newline: str) -> str:
    return _LINE_END.sub(newline, text)


def fragment(text: str, newline: str) -> str:
    """Without blank lines around, with one line end; the empty text when nothing is left."""
    found = _BLANK_LINES.match(text)
    stripped = text[found.end() if found else 0 :].rstrip()
    return with_newlines(stripped, newline) + newline if stripped else ""


def past_blank_lines(text: str, span: Span) -> int:
    """Where the first line with something in it begins."""
    found = _BLANK_LINES.match(text, span.start, span.end)
    return found.end() if found else span.start


def line_ends_before(text: str, at: int) -> int:
    """How many line ends stand directly before; 2 at most."""
    count = 0
    while count < 2 and at > 0 and text[at - 1] in "\r\n":
        at -= 2 if text[max(0, at - 2) : at] == "\r\n" else 1
        count += 1
    return count


def without_line_ends(text: str, span: Span) -> Span:
    """The span without blank lines and line ends at its end."""
    return Span(span.start, span.start + len(span.of(text).rstrip("\r\n")))


def begins_heading(text: str, at: int) -> bool:
    """Whether a heading of `#` begins there; `#tag` is none."""
    return HEADING.match(text, at) is not None


def set_apart(text: str, span: Span, new: str, newline: str, *, before: bool, after: bool) -> Edit:
    """An edit that puts a fragment in lines of its own, with a blank line before and after it where one is due.

    A heading of `#` below needs none; one that is underlined would take the fragment's last line for its own.
    """
    if not new:
        return Edit(span, "")
    missing = 0 if span.start == 0 else max(0, (2 if before else 1) - line_ends_before(text, span.start))
    below = text[span.end : span.end + 4].lstrip(" ")
    due = below[:1] not in ("", "\r", "\n") and (after or not begins_heading(text, span.end))
    return Edit(span, newline * missing + new + (newline if due else ""))
