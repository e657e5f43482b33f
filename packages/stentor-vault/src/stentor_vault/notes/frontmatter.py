"""The YAML block at the start of a note: find, parse and edit it without changing any other byte.

YAML 1.2 without aliases and duplicate keys; times stay strings and `on` is a string. Pure. The YAML itself is
read by `yaml_parser` and written by `yaml_writer`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import msgspec

from stentor_vault.errors import InvalidRequest
from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import yaml_writer

BOM = "\ufeff"
MAX_BLOCK_CHARS = 64 * 1024
_OPENING = re.compile(r"---[ \t]*(\r\n|\n|\r)")
_CLOSING = re.compile(r"^---[ \t]*(\r\n|\n|\r|\Z)", re.MULTILINE)

_UNEDITABLE = "The frontmatter has a syntax that cannot be edited key by key. Edit the note's text instead."
_UNREADABLE = "The new frontmatter is too large or nested too deep."


class InvalidFrontmatter(InvalidRequest):
    """The note's frontmatter cannot be parsed, or not be edited."""

    is_not_mapping = False
    """Whether it is YAML without keys, and thus probably text between two thematic breaks."""


class NoteParts(msgspec.Struct, frozen=True):
    """A note's text in four parts, which joined are the text again.

    `opening` is the byte order mark and the line before the YAML block, `closing` the line after it. `block` is None
    without frontmatter.
    """

    opening: str
    block: str | None
    closing: str
    body: str

    @property
    def text(self) -> str:
        return f"{self.opening}{self.block or ''}{self.closing}{self.body}"

    @property
    def newline(self) -> str:
        """The first line break of the note, "\\n" without one."""
        match = re.search(r"\r\n|\n|\r", self.text)
        return match[0] if match else "\n"


def split(text: str) -> NoteParts:
    """Split a note into its parts. A block without a closing line belongs to the body."""
    # Windows editors begin files with a byte order mark, which is not part of the first line.
    opening = _OPENING.match(text, len(BOM) if text.startswith(BOM) else 0)
    closing = None if opening is None else _CLOSING.search(text, opening.end())
    if opening is None or closing is None:
        return body_only(text)
    start, end = opening.end(), closing.start()
    return NoteParts(text[:start], text[start:end], text[end : closing.end()], text[closing.end() :])


def body_only(text: str) -> NoteParts:
    """Return the parts of a text that is all body, even if it begins like frontmatter."""
    bom = BOM if text.startswith(BOM) else ""
    return NoteParts(bom, None, "", text[len(bom) :])


def escape_body(text: str) -> str:
    """Return a note with this text as its body, after an empty block if it would be read as frontmatter otherwise."""
    if split(text).block is None:
        return text
    parts = body_only(text)
    line = f"---{parts.newline}"
    return f"{parts.opening}{line}{line}{parts.body}"


def read(text: str) -> JsonObject:
    """Return the frontmatter of a note as JSON values; empty without frontmatter. Raises InvalidFrontmatter."""
    return parse_values(split(text))


def parse_values(parts: NoteParts) -> JsonObject:
    """Return the frontmatter of a split note as JSON values. Raises InvalidFrontmatter."""
    if parts.block is None or not parts.block.strip():
        return {}
    if len(parts.block) > MAX_BLOCK_CHARS:
        raise InvalidFrontmatter(f"The frontmatter has more than {MAX_BLOCK_CHARS} characters.")
    yaml_parser = _yaml_parser()
    try:
        values: JsonObject = yaml_parser.load_mapping(parts.block)
    except yaml_parser.InvalidYaml as error:
        invalid = InvalidFrontmatter(f"The frontmatter is invalid: {error}.")
        invalid.is_not_mapping = isinstance(error, yaml_parser.NotAMapping)
        raise invalid from None
    return values


def validate(text: str) -> None:
    """Raise InvalidFrontmatter if the block is not YAML; its values are not checked."""
    yaml_parser = _yaml_parser()
    try:
        yaml_parser.find_key_spans(split(text).block or "")
    except yaml_parser.InvalidYaml as error:
        raise InvalidFrontmatter(f"The frontmatter is invalid: {error}.") from None


def _yaml_parser() -> ModuleType:
    # A server starts with this module and may never read frontmatter.
    from stentor_vault.notes import yaml_parser

    return yaml_parser


def edit(text: str, changes: Mapping[str, Any], removed: frozenset[str] = frozenset()) -> str:
    """Set the keys of `changes` and remove those of `removed`. Keys that have the value already stay as written.

    Raises InvalidFrontmatter if the current block is invalid or cannot be edited.
    """
    parts = split(text)
    current = parse_values(parts)
    changed = {key: value for key, value in changes.items() if key not in current or not _is_equal(current[key], value)}
    deleted = {key for key in removed if key in current}
    if not changed and not deleted:
        return text
    expected = {key: value for key, value in (current | dict(changes)).items() if key not in deleted}
    block = _edit_block(parts.block or "", changed, deleted, parts.newline)
    return _replace_block(parts, block, expected, _UNEDITABLE if current else _UNREADABLE)


def rename_key(text: str, old: str, new: str) -> str:
    """Rename a key; its value and its position stay. Raises InvalidFrontmatter."""
    parts = split(text)
    current, (start, end) = parse_values(parts), _find_span(parts, old)
    block = parts.block or ""
    entry = block[start:end]
    if entry.startswith(f"{old}:"):
        entry = f"{yaml_writer.dump_scalar(new)}:{entry[len(old) + 1 :]}"
    else:  # the key is quoted, or has a space before its colon
        entry = yaml_writer.dump_entry(new, current[old], parts.newline)
    expected = {new if key == old else key: value for key, value in current.items()}
    return _replace_block(parts, block[:start] + entry + block[end:], expected)


def insert_keys(text: str, beside: str, added: Mapping[str, Any], *, after: bool) -> str:
    """Insert new keys directly before or after the existing key `beside`. Raises InvalidFrontmatter."""
    parts = split(text)
    start, end = _find_span(parts, beside)
    position, block = (end if after else start), parts.block or ""
    lines = "".join(yaml_writer.dump_entry(key, value, parts.newline) for key, value in added.items())
    separator = parts.newline if position > 0 and not block[:position].endswith(("\n", "\r")) else ""
    edited = block[:position] + separator + lines + block[position:]
    return _replace_block(parts, edited, parse_values(parts) | dict(added))


def _find_span(parts: NoteParts, key: str) -> tuple[int, int]:
    span: tuple[int, int] | None = _yaml_parser().find_key_spans(parts.block or "").get(key)
    if span is None:
        raise InvalidFrontmatter(_UNEDITABLE)
    return span


def _replace_block(parts: NoteParts, block: str, expected: Mapping[str, Any], error_message: str = _UNEDITABLE) -> str:
    opening, closing = parts.opening, parts.closing
    if parts.block is None:
        line = f"---{parts.newline}"
        opening, closing = f"{opening}{line}", line
    edited = f"{opening}{block}{closing}{parts.body}"
    # Parse the result: anchors, flow mappings or odd indentation can make an edit of lines mean something else.
    try:
        is_expected = _is_equal(read(edited), dict(expected))
    except InvalidFrontmatter:
        is_expected = False
    if not is_expected:
        raise InvalidFrontmatter(error_message)
    return edited


def _edit_block(block: str, changed: Mapping[str, Any], deleted: set[str], newline: str) -> str:
    spans: dict[str, tuple[int, int]] = _yaml_parser().find_key_spans(block)
    pieces: list[str] = []
    position = 0
    for key, (start, end) in spans.items():
        pieces.append(block[position:start])
        position = end
        if key in changed:
            pieces.append(yaml_writer.dump_entry(key, changed[key], newline))
        elif key not in deleted:
            pieces.append(block[start:end])
    rest = block[position:]
    if rest and not rest.endswith(("\n", "\r")):
        rest += newline
    # New keys go to the end, so that the user's own keys keep their order.
    added = [yaml_writer.dump_entry(key, value, newline) for key, value in changed.items() if key not in spans]
    return "".join([*pieces, rest, *added])


def _is_equal(first: Any, second: Any) -> bool:
    """Return whether two values are equal as JSON: 1 is not true, and 1 is 1.0."""
    return bool(yaml_writer.to_comparable(first) == yaml_writer.to_comparable(second))
