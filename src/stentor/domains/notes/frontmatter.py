"""The YAML block at the head of a note: found, read, and edited so that every other byte stays as it is.

YAML 1.2 without aliases and without duplicate keys. Times stay texts, `on` is a word. Pure.
Source: facts of the vault sync ("Frontmatter").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor.core.errors import InvalidRequest
from stentor.domains.notes import emit, yamltext

BOM = "\ufeff"
MAX_BLOCK = 64 * 1024
_OPENING = re.compile(r"---[ \t]*(\r\n|\n|\r)")
_CLOSING = re.compile(r"^---[ \t]*(\r\n|\n|\r|\Z)", re.MULTILINE)

_UNEDITABLE = "The frontmatter is written in a way that cannot be edited key by key; edit the note."
_UNREADABLE = "The frontmatter is too large or nested too deep to be read again."


class BadFrontmatter(InvalidRequest):
    """The note's frontmatter cannot be read, so that it cannot be edited either."""

    keyless = False
    """Whether it is YAML without any keys, which may well be text between two rules."""


class Parts(msgspec.Struct, frozen=True):
    """A note's text in four parts; joined they are the text again. `block` is None without frontmatter."""

    head: str
    block: str | None
    tail: str
    body: str

    @property
    def text(self) -> str:
        return f"{self.head}{self.block or ''}{self.tail}{self.body}"

    @property
    def newline(self) -> str:
        found = re.search(r"\r\n|\n|\r", self.text)
        return found[0] if found else "\n"


def split(text: str) -> Parts:
    """The parts of a note. A block that is never closed is body."""
    opening = _OPENING.match(text, len(BOM) if text.startswith(BOM) else 0)
    closing = None if opening is None else _CLOSING.search(text, opening.end())
    if opening is None or closing is None:
        return headless(text)
    start, end = opening.end(), closing.start()
    return Parts(text[:start], text[start:end], text[end : closing.end()], text[closing.end() :])


def headless(text: str) -> Parts:
    """The parts of a text that is all body, whatever it begins with."""
    bom = BOM if text.startswith(BOM) else ""
    return Parts(bom, None, "", text[len(bom) :])


def framed(text: str) -> str:
    """A note with this text as its body, behind an empty block; one that nobody could take for another stays."""
    if split(text).block is None:
        return text
    parts = headless(text)
    rule = f"---{parts.newline}"
    return f"{parts.head}{rule}{rule}{parts.body}"


def read(text: str) -> dict[str, Any]:
    """The frontmatter of a note as JSON values; empty without one. Raises BadFrontmatter."""
    return values(split(text))


def values(parts: Parts) -> dict[str, Any]:
    """The same of parts."""
    if parts.block is None or not parts.block.strip():
        return {}
    if len(parts.block) > MAX_BLOCK:
        raise BadFrontmatter(f"The frontmatter has more than {MAX_BLOCK} characters.")
    try:
        return yamltext.load(parts.block)
    except yamltext.Malformed as error:
        bad = BadFrontmatter(f"The frontmatter cannot be read: {error}.")
        bad.keyless = isinstance(error, yamltext.NoMapping)
        raise bad from None


def check(text: str) -> None:
    """Whether the block is YAML at all, of whatever kind. Raises BadFrontmatter."""
    try:
        yamltext.spans(split(text).block or "")
    except yamltext.Malformed as error:
        raise BadFrontmatter(f"The frontmatter cannot be read: {error}.") from None


def edit(text: str, changes: Mapping[str, Any], removed: frozenset[str] = frozenset()) -> str:
    """The note with these keys set and those removed. Keys that have the value already are left alone.

    Raises BadFrontmatter when the present block cannot be read.
    """
    parts = split(text)
    known = values(parts)
    todo = {key: value for key, value in changes.items() if key not in known or not _same(known[key], value)}
    gone = {key for key in removed if key in known}
    if not todo and not gone:
        return text
    edited = _rejoined(parts, _edited(parts.block or "", todo, gone, parts.newline))
    wanted = {key: value for key, value in (known | dict(changes)).items() if key not in gone}
    if not _reads_as(edited, wanted):
        raise BadFrontmatter(_UNEDITABLE if known else _UNREADABLE)
    return edited


def rename(text: str, old: str, new: str) -> str:
    """The note with another name for a key; its value and its place stay. Raises BadFrontmatter."""
    parts = split(text)
    known, (start, end) = values(parts), _span(parts, old)
    block = parts.block or ""
    entry, name = block[start:end], emit.scalar(new) + ":"
    renamed = (
        name + entry[len(old) + 1 :] if entry.startswith(f"{old}:") else emit.entry(new, known[old], parts.newline)
    )
    return _checked(parts, block[:start] + renamed + block[end:], {new if k == old else k: v for k, v in known.items()})


def insert(text: str, beside: str, added: Mapping[str, Any], *, after: bool) -> str:
    """The note with new keys directly before or after one that is there. Raises BadFrontmatter."""
    parts = split(text)
    start, end = _span(parts, beside)
    at, block = (end if after else start), parts.block or ""
    lines = "".join(emit.entry(key, value, parts.newline) for key, value in added.items())
    joint = parts.newline if at > 0 and not block[:at].endswith(("\n", "\r")) else ""
    return _checked(parts, block[:at] + joint + lines + block[at:], values(parts) | dict(added))


def _span(parts: Parts, key: str) -> tuple[int, int]:
    span = yamltext.spans(parts.block or "").get(key)
    if span is None:
        raise BadFrontmatter(_UNEDITABLE)
    return span


def _checked(parts: Parts, block: str, wanted: Mapping[str, Any]) -> str:
    edited = f"{parts.head}{block}{parts.tail}{parts.body}"
    if not _reads_as(edited, dict(wanted)):
        raise BadFrontmatter(_UNEDITABLE)
    return edited


def _rejoined(parts: Parts, block: str) -> str:
    if parts.block is not None:
        return f"{parts.head}{block}{parts.tail}{parts.body}"
    line = f"---{parts.newline}"
    return f"{parts.head}{line}{block}{line}{parts.body}"


def _edited(block: str, todo: Mapping[str, Any], gone: set[str], newline: str) -> str:
    spans = yamltext.spans(block)
    pieces: list[str] = []
    at = 0
    for key, (start, end) in spans.items():
        pieces.append(block[at:start])
        at = end
        if key in todo:
            pieces.append(emit.entry(key, todo[key], newline))
        elif key not in gone:
            pieces.append(block[start:end])
    rest = block[at:]
    if rest and not rest.endswith(("\n", "\r")):
        rest += newline
    added = [emit.entry(key, value, newline) for key, value in todo.items() if key not in spans]
    return "".join([*pieces, rest, *added])


def _reads_as(text: str, wanted: Any) -> bool:
    try:
        return _same(read(text), wanted)
    except BadFrontmatter:
        return False


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is not true, and 1 is 1.0."""
    return bool(emit.canonical(one) == emit.canonical(other))
