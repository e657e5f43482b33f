"""Tags of notes with Obsidian's rules: in the text and in the frontmatter, nested with `/`. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice

from stentor_vault.text import markdown

MAX_TAG_CHARS = 200
MAX_TAGS = 1_000
"""Tags of one note, the first ones."""
MAX_LEVELS = 20
"""Levels of a tag that have tags of their own: `a/b/c` has three."""

# A fence may stand in a quote or an item of a list.
_FENCE = re.compile(r"[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}+(?!.*`)|~{3,})")
_NO_PROSE = re.compile(
    r"(?<!`)`++[^`\n]+`++"  # code
    r"|\[\[[^\[\]\n]{1,2000}\]\]"  # a link, whose heading begins with `#`
    r"|\]\([^()\n]{1,2000}\)"
    r"|\w{2,10}://\S{1,2000}"
)
# Everything but what ends a tag, so that scripts with combining marks and emoji are whole.
_TAG = re.compile(
    r"(?<![\w/#&])#([^\s\u2000-\u206f\u2e00-\u2e7f\u3000-\u303f\uff01-\uff0f\uff1a-\uff20"
    r"'!\"#$%&()*+,.:;<=>?@^`{|}~\[\]\\]+)"
)
_NUMBER = re.compile(r"[\d_/-]*\Z")


def find_tags(text: str) -> list[str]:
    """Return the tags in the text of a note, in order and without `#`; without numbers, code and links."""
    if "#" not in text:
        return []
    lines = markdown.iter_lines(text, keepends=True, fence_pattern=_FENCE)
    prose = "".join(line for line, is_code in lines if not is_code)
    found = _TAG.findall(_NO_PROSE.sub(" ", prose))
    return [tag for tag in found if not _NUMBER.match(tag)]


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags composed to NFC, without `#` before them, duplicates and those that are too long."""
    # The length first: composing takes quadratic time in the length of a run of accents.
    short = (tag for tag in tags if len(tag) <= MAX_TAG_CHARS)
    cleaned = (unicodedata.normalize("NFC", tag.strip().lstrip("#").strip("/")) for tag in short)
    return list(islice(dict.fromkeys(filter(None, cleaned)), MAX_TAGS))


def with_parents(tags: Iterable[str]) -> list[str]:
    """Return the tags, each after those that it is below: `a/b` is a tag of `a`."""
    return list(dict.fromkeys(name for tag in tags for name in _list_levels(tag)))


def _list_levels(tag: str) -> Iterator[str]:
    parts = tag.split("/", MAX_LEVELS)
    return ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
