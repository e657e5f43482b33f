"""The YAML block at the head of a note: found, read, and edited so that every other byte stays as it is.

YAML 1.2 without aliases and without duplicate keys. Times stay texts, `on` is a word. Pure.
Source: facts of the vault sync ("Frontmatter").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stentor_vault.errors import InvalidRequest
from stentor_vault.notes import yaml_codec

BOM = "\ufeff"
MAX_BLOCK_CHARS = 64 * 1024
_OPENING = re.compile(r"---[ \t]*(\r\n|\n|\r)")
_CLOSING = re.compile(r"^---[ \t]*(\r\n|\n|\r|\Z)", re.MULTILINE)

_UNEDITABLE = "The frontmatter is written in a way that cannot be edited key by key; edit the note."
_UNREADABLE = "The frontmatter is too large or nested too deep to be read again."


class InvalidFrontmatter(InvalidRequest):
    """The note's frontmatter cannot be read, so that it cannot be edited either."""

    is_not_mapping = False
    """Whether it is YAML without any keys, which may well be text between two rules."""


class NoteParts(msgspec.Struct, frozen=True):
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


def split(text: str) -> NoteParts:
    """The parts of a note. A block that is never closed is body."""
    opening = _OPENING.match(text, len(BOM) if text.startswith(BOM) else 0)
    closing = None if opening is None else _CLOSING.search(text, opening.end())
    if opening is None or closing is None:
        return body_only(text)
    start, end = opening.end(), closing.start()
    return NoteParts(text[:start], text[start:end], text[end : closing.end()], text[closing.end() :])


def body_only(text: str) -> NoteParts:
    """The parts of a text that is all body, whatever it begins with."""
    bom = BOM if text.startswith(BOM) else ""
    return NoteParts(bom, None, "", text[len(bom) :])


def escape_body(text: str) -> str:
    """A note with this text as its body, behind an empty block; one that nobody could take for another stays."""
    if split(text).block is None:
        return text
    parts = body_only(text)
    rule = f"---{parts.newline}"
    return f"{parts.head}{rule}{rule}{parts.body}"


def read(text: str) -> dict[str, Any]:
    """The frontmatter of a note as JSON values; empty without one. Raises BadFrontmatter."""
    return parse_values(split(text))


def parse_values(parts: NoteParts) -> dict[str, Any]:
    """The same of parts."""
    if parts.block is None or not parts.block.strip():
        return {}
    if len(parts.block) > MAX_BLOCK_CHARS:
        raise InvalidFrontmatter(f"The frontmatter has more than {MAX_BLOCK_CHARS} characters.")
    try:
        return yaml_codec.load_mapping(parts.block)
    except yaml_codec.InvalidYaml as error:
        bad = InvalidFrontmatter(f"The frontmatter cannot be read: {error}.")
        bad.is_not_mapping = isinstance(error, yaml_codec.NotAMapping)
        raise bad from None


def validate(text: str) -> None:
    """Whether the block is YAML at all, of whatever kind. Raises BadFrontmatter."""
    try:
        yaml_codec.find_key_spans(split(text).block or "")
    except yaml_codec.InvalidYaml as error:
        raise InvalidFrontmatter(f"The frontmatter cannot be read: {error}.") from None


def edit(text: str, changes: Mapping[str, Any], removed: frozenset[str] = frozenset()) -> str:
    """The note with these keys set and those removed. Keys that have the value already are left alone.

    Raises BadFrontmatter when the present block cannot be read.
    """
    parts = split(text)
    known = parse_values(parts)
    todo = {key: value for key, value in changes.items() if key not in known or not _same(known[key], value)}
    gone = {key for key in removed if key in known}
    if not todo and not gone:
        return text
    edited = _rejoined(parts, _edited(parts.block or "", todo, gone, parts.newline))
    wanted = {key: value for key, value in (known | dict(changes)).items() if key not in gone}
    if not _reads_as(edited, wanted):
        raise InvalidFrontmatter(_UNEDITABLE if known else _UNREADABLE)
    return edited


def rename_key(text: str, old: str, new: str) -> str:
    """The note with another name for a key; its value and its place stay. Raises BadFrontmatter."""
    parts = split(text)
    known, (start, end) = parse_values(parts), _span(parts, old)
    block = parts.block or ""
    entry, name = block[start:end], yaml_codec.dump_scalar(new) + ":"
    renamed = (
        name + entry[len(old) + 1 :]
        if entry.startswith(f"{old}:")
        else yaml_codec.dump_entry(new, known[old], parts.newline)
    )
    return _checked(parts, block[:start] + renamed + block[end:], {new if k == old else k: v for k, v in known.items()})


def insert_keys(text: str, beside: str, added: Mapping[str, Any], *, after: bool) -> str:
    """The note with new keys directly before or after one that is there. Raises BadFrontmatter."""
    parts = split(text)
    start, end = _span(parts, beside)
    at, block = (end if after else start), parts.block or ""
    lines = "".join(yaml_codec.dump_entry(key, value, parts.newline) for key, value in added.items())
    joint = parts.newline if at > 0 and not block[:at].endswith(("\n", "\r")) else ""
    return _checked(parts, block[:at] + joint + lines + block[at:], parse_values(parts) | dict(added))


def _span(parts: NoteParts, key: str) -> tuple[int, int]:
    span = yaml_codec.find_key_spans(parts.block or "").get(key)
    if span is None:
        raise InvalidFrontmatter(_UNEDITABLE)
    return span


def _checked(parts: NoteParts, block: str, wanted: Mapping[str, Any]) -> str:
    edited = f"{parts.head}{block}{parts.tail}{parts.body}"
    if not _reads_as(edited, dict(wanted)):
        raise InvalidFrontmatter(_UNEDITABLE)
    return edited


def _rejoined(parts: NoteParts, block: str) -> str:
    if parts.block is not None:
        return f"{parts.head}{block}{parts.tail}{parts.body}"
    line = f"---{parts.newline}"
    return f"{parts.head}{line}{block}{line}{parts.body}"


def _edited(block: str, todo: Mapping[str, Any], gone: set[str], newline: str) -> str:
    spans = yaml_codec.find_key_spans(block)
    pieces: list[str] = []
    at = 0
    for key, (start, end) in spans.items():
        pieces.append(block[at:start])
        at = end
        if key in todo:
            pieces.append(yaml_codec.dump_entry(key, todo[key], newline))
        elif key not in gone:
            pieces.append(block[start:end])
    rest = block[at:]
    if rest and not rest.endswith(("\n", "\r")):
        rest += newline
    added = [yaml_codec.dump_entry(key, value, newline) for key, value in todo.items() if key not in spans]
    return "".join([*pieces, rest, *added])


def _reads_as(text: str, wanted: Any) -> bool:
    try:
        return _same(read(text), wanted)
    except InvalidFrontmatter:
        return False


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is not true, and 1 is 1.0."""
    return bool(yaml_codec.to_comparable(one) == yaml_codec.to_comparable(other))
