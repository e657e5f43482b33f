"""Replaces text in a note literally, but for line ends: a caller cannot see which kind a note has. Pure."""

from __future__ import annotations

import re

_LINE_FEED = re.compile(rb"(?<!\r)\n")


def replaced(content: bytes, old: bytes, new: bytes) -> tuple[bytes, int]:
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
