"""Edits of a note's text: its frontmatter tags, and literal search and replace. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.notes.model import MAX_NOTE_BYTES, NoteTooLarge

_TAG_SEPARATOR = re.compile(r"[,\s]+")
_LINE_FEED = re.compile(rb"(?<!\r)\n")


def parse_requested_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags of a request without `#` and duplicates. Raises InvalidRequest for an invalid tag."""
    cleaned = [_strip_hash(tag) for tag in tags]
    for tag, original in zip(cleaned, tags, strict=True):
        if not tag or not tag.isprintable():
            raise InvalidRequest(f"{original!r} is not a tag.")
    return list(dict.fromkeys(cleaned))


def parse_note_tags(value: Any) -> list[Any]:
    """Return the `tags` of a note, which may be a list, a text with commas or spaces, a single value, or None.

    Raises InvalidFrontmatter for a mapping.
    """
    if isinstance(value, dict):
        raise InvalidFrontmatter("The property `tags` of the note is a mapping, not a list.")
    items = _TAG_SEPARATOR.split(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    return _distinct([_normalize_item(item) for item in items if item is not None])


def apply_tags(known: Sequence[Any], tags: Sequence[str], action: str) -> list[Any]:
    """Return the list with the tags appended (action "add") or removed."""
    if action == "add":
        return _distinct([*known, *tags])
    removed = set(tags)
    return [item for item in known if not isinstance(item, str) or item not in removed]


def _strip_hash(tag: str) -> str:
    return tag.strip().lstrip("#").strip()


def _normalize_item(item: Any) -> Any:
    """Convert numbers and booleans to text; leave lists and mappings as they are."""
    if isinstance(item, str):
        return _strip_hash(item)
    return item if isinstance(item, (dict, list)) else jsontext.dump(item)


def _distinct(items: Sequence[Any]) -> list[Any]:
    # By their JSON: items may be lists and mappings, which have no hash.
    return list({jsontext.dump(item): item for item in items if item != ""}.values())


def replace_text(content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """Replace `old` by `new`, and return the content and the number of replacements.

    Literal except for line ends, which a client cannot see: LF in `old` matches LF and CRLF, and LF in `new` becomes
    the line end of the match. A text with CRLF is literal, so that line ends can be converted; if there is no match for
    it, it is searched with LF. Raises NoteTooLarge before the result takes more memory than a note may have.
    """
    if b"\r\n" in old and old not in content:
        old, new = old.replace(b"\r\n", b"\n"), new.replace(b"\r\n", b"\n")
    if b"\n" in old and b"\r\n" not in old and b"\r\n" in content:
        return _replace_lines(content, old, new)
    count = content.count(old)
    _check_size(len(content) + count * (len(new) - len(old)))
    return content.replace(old, new), count


def _replace_lines(content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """Replace a text with LF, which matches LF and CRLF."""
    # Not a regular expression, which would take the product of both lengths.
    lines, before_line_end = content.replace(b"\r\n", b"\n"), old.index(b"\n")
    new_crlf = _LINE_FEED.sub(b"\r\n", new)
    result = bytearray()
    count = searched = copied = 0
    while (found := lines.find(old, searched)) >= 0:
        start = _skip(content, copied, found - searched)
        crlf = content.startswith(b"\r\n", start + before_line_end)
        result += content[copied:start] + (new_crlf if crlf else new)
        _check_size(len(result))
        count, searched, copied = count + 1, found + len(old), _skip(content, start, len(old))
    result += content[copied:]
    _check_size(len(result))
    return bytes(result), count


def _skip(content: bytes, start: int, count: int) -> int:
    """Return the index that is `count` bytes after `start`, where CRLF counts as one byte."""
    while count:
        end = start + count
        end += content.startswith(b"\r\n", end - 1)
        count -= end - start - content.count(b"\r\n", start, end)
        start = end
    return start


def _check_size(size: int) -> None:
    if size > MAX_NOTE_BYTES:
        raise NoteTooLarge(f"The note would have more than {MAX_NOTE_BYTES} bytes.")
