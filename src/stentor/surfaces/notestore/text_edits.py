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
    the line end of the match. CRLF is literal, so that line ends can be converted; if there is no match for a text with
    CRLF, it is searched with LF. Raises NoteTooLarge before the result takes more memory than a note may have.
    """
    if b"\r\n" in old and old not in content:
        old, new = old.replace(b"\r\n", b"\n"), new.replace(b"\r\n", b"\n")
    if not _LINE_FEED.search(old):
        count = content.count(old)
        _check_size(len(content) + count * (len(new) - len(old)))
        return content.replace(old, new), count
    pattern = re.compile(rb"(\r?\n)".join(map(re.escape, _LINE_FEED.split(old))))
    by_line_end = {b"\n": new, b"\r\n": _LINE_FEED.sub(b"\r\n", new)}
    _check_size(len(content) + sum(len(by_line_end[match[1]]) - len(match[0]) for match in pattern.finditer(content)))
    return pattern.subn(lambda match: by_line_end[match[1]], content)


def _check_size(size: int) -> None:
    if size > MAX_NOTE_BYTES:
        raise NoteTooLarge(f"The note would have {size} bytes; the maximum is {MAX_NOTE_BYTES}.")
