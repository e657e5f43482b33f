"""Parse the headers `If-Match` and `If-None-Match`: `*`, or a list of entity tags. Pure. Source: RFC 9110, 13.1."""

from __future__ import annotations

import re

ANY_TAG = "*"
"""In the result of `parse_entity_tags`: any tag matches."""
_TAG = re.compile(r'[ \t]*(?:(W/)?"([^"]*)"|([^\s",*]+))[ \t]*(?:,|\Z)')
_EMPTY_ELEMENT = re.compile(r"[ \t]*(?:,|\Z)")


class InvalidEntityTags(ValueError):
    """The text is neither `*` nor a list of entity tags. The message continues the name of the header."""


def parse_entity_tags(text: str, *, weak: bool) -> frozenset[str]:
    """Return the tags without their quotes, which may be missing; {ANY_TAG} for `*`. Drops weak tags unless `weak`.

    Raises InvalidEntityTags.
    """
    if text.strip() == ANY_TAG:
        return frozenset({ANY_TAG})
    tags, position = set(), 0
    while position < len(text):
        tag = _TAG.match(text, position)
        empty = _EMPTY_ELEMENT.match(text, position)
        if tag is None and (empty is None or empty.end() == position):
            raise InvalidEntityTags("is neither * nor a list of entity tags")
        if tag is not None and (weak or not tag[1]):
            value = tag[3] if tag[2] is None else tag[2]
            # A quoted `*` is an ordinary tag, not the wildcard: it keeps its quotes and so equals no version.
            tags.add(f'"{value}"' if value == ANY_TAG else value)
        # RFC 9110 allows empty list elements, such as `"a", , "b"`.
        position = tag.end() if tag is not None else empty.end() if empty is not None else len(text)
    if not text.strip(" \t,"):
        raise InvalidEntityTags("names no entity tag")
    return frozenset(tags)
