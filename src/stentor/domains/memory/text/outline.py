"""The parts of a Markdown text: its title, its sections by heading. Code is no heading. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


class Section(msgspec.Struct, frozen=True):
    """A heading (empty before the first one), its level (0 to 6), and the text below it up to the next one."""

    heading: str
    level: int
    text: str


def sections(body: str) -> list[Section]:
    """All sections with something in them, in order."""
    found: list[Section] = []
    heading, level, lines = "", 0, list[str]()
    for line, code in _lines(body):
        match = None if code else _HEADING.match(line)
        if match is None:
            lines.append(line)
            continue
        _close(found, heading, level, lines)
        heading, level, lines = match[2].strip(), len(match[1]), []
    _close(found, heading, level, lines)
    return found


def title(body: str) -> str | None:
    """The first heading of the first level."""
    for line, code in _lines(body):
        if not code and (match := _HEADING.match(line)) and len(match[1]) == 1:
            return match[2].strip() or None
    return None


def _close(found: list[Section], heading: str, level: int, lines: list[str]) -> None:
    text = "\n".join(lines).strip()
    if heading or text:
        found.append(Section(heading, level, text))


def _lines(body: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it is code between fences."""
    fence = ""
    for line in body.splitlines():
        match = _FENCE.match(line)
        if fence:
            yield line, True
            if match and match[1][0] == fence[0] and len(match[1]) >= len(fence) and not line.strip(" \t`~"):
                fence = ""
        else:
            fence = match[1] if match else ""
            yield line, bool(match)
