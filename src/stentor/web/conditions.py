"""The headers `If-Match` and `If-None-Match`: `*`, or a list of entity tags. Pure. Source: RFC 9110, 13.1."""

from __future__ import annotations

import re

ANY = "*"
_TAG = re.compile(r'[ \t]*(?:(W/)?"([^"]*)"|([^\s",*]+))[ \t]*(?:,|\Z)')
_NOTHING = re.compile(r"[ \t]*(?:,|\Z)")


class NoTags(ValueError):
    """The text is neither `*` nor a list of entity tags; the message says which."""


def tags(text: str, *, weak: bool) -> frozenset[str]:
    """The tags without their quotes, which they may lack; `*` stands for any. Weak ones only if they are wanted.

    Raises NoTags.
    """
    if text.strip() == ANY:
        return frozenset(ANY)
    found, at = set(), 0
    while at < len(text):
        matched = _TAG.match(text, at)
        blank = _NOTHING.match(text, at)
        if matched is None and (blank is None or blank.end() == at):
            raise NoTags("is neither * nor a list of entity tags")
        if matched is not None and (weak or not matched[1]):
            found.add(matched[3] if matched[2] is None else matched[2])
        at = matched.end() if matched is not None else blank.end() if blank is not None else len(text)
    if not text.strip(" \t,"):
        raise NoTags("names no entity tag")
    return frozenset(found)
