"""The tags of a note's frontmatter as a list: read however people write them, added to, taken from. Pure.

Replaces text in a note literally, but for line ends: a caller cannot see which kind a note has. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.notes.frontmatter import InvalidFrontmatter

_TAG_SEPARATOR = re.compile(r"[,\s]+")


def parse_requested_tags(tags: Sequence[str]) -> list[str]:
    """The tags of a request without `#` and without duplicates. Raises InvalidRequest for one that is none."""
    cleaned = [_bare(tag) for tag in tags]
    for tag, given in zip(cleaned, tags, strict=True):
        if not tag or not tag.isprintable():
            raise InvalidRequest(f"{given!r} is no tag.")
    return list(dict.fromkeys(cleaned))


def parse_note_tags(value: Any) -> list[Any]:
    """The note's own `tags`: a list, one text with commas or spaces in it, a single value, or nothing.

    Raises BadFrontmatter for a mapping.
    """
    if isinstance(value, dict):
        raise InvalidFrontmatter("The note's tags are keys with values, and no list.")
    items = _TAG_SEPARATOR.split(value) if isinstance(value, str) else value if isinstance(value, list) else [value]
    return _distinct([_item(item) for item in items if item is not None])


def apply_tags(known: Sequence[Any], tags: Sequence[str], action: str) -> list[Any]:
    """The list with the tags added at its end, or without them."""
    if action == "add":
        return _distinct([*known, *tags])
    return [item for item in known if item not in tags]


def _bare(tag: str) -> str:
    return tag.strip().lstrip("#").strip()


def _item(item: Any) -> Any:
    """Numbers and flags are tags like others; what is no single value stays as it is."""
    if isinstance(item, str):
        return _bare(item)
    return item if isinstance(item, dict | list) else jsontext.dump(item)


def _distinct(items: Sequence[Any]) -> list[Any]:
    return [item for i, item in enumerate(items) if item != "" and item not in items[:i]]


_LINE_FEED = re.compile(rb"(?<!\r)\n")


def replace_text(content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
    """Answer the content with `new` at each place of `old`, and how many places there were.

    LF in `old` matches LF and CRLF, and LF in `new` becomes what was found at that place. CRLF is taken literally, so
    that line ends can be converted; where the text with CRLF is nowhere, it is looked for as if it had LF.
    """
    if b"\r\n" in old and old not in content:
        old, new = old.replace(b"\r\n", b"\n"), new.replace(b"\r\n", b"\n")
    if not _LINE_FEED.search(old):
        return content.replace(old, new), content.count(old)
    pattern = rb"(\r?\n)".join(map(re.escape, _LINE_FEED.split(old)))
    return re.subn(pattern, lambda found: _LINE_FEED.sub(lambda _: found[1], new), content)
