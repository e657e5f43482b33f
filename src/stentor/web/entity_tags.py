"""The headers `If-Match` and `If-None-Match`: `*`, or a list of entity tags. Pure. Source: RFC 9110, 13.1."""

from __future__ import annotations

import re

ANY_TAG = "*"
_TAG = re.compile(r'[ \t]*(?:(W/)?"([^"]*)"|([^\s",*]+))[ \t]*(?:,|\Z)')
_NOTHING = re.compile(r"[ \t]*(?:,|\Z)")


class InvalidEntityTags(ValueError):
    """The text is neither `*` nor a list of entity tags; the message says which."""


def parse_entity_tags(text: str, *, weak: bool) -> frozenset[str]:
    """The tags without their quotes, which they may lack; `*` stands for any. Weak ones only if they are wanted.

    Raises NoTags.
    """
    if text.strip() == ANY_TAG:
        return frozenset(ANY_TAG)
    found, at = set(), 0
    while at < len(text):
        matched = _TAG.match(text, at)
        blank = _NOTHING.match(text, at)
        if matched is None and (blank is None or blank.end() == at):
            raise InvalidEntityTags("is neither * nor a list of entity tags")
        if matched is not None and (weak or not matched[1]):
            found.add(matched[3] if matched[2] is None else matched[2])
        at = matched.end() if matched is not None else blank.end() if blank is not None else len(text)
    if not text.strip(" \t,"):
        raise InvalidEntityTags("names no entity tag")
    return frozenset(found)
