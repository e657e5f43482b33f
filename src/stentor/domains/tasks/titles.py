"""The title of a task: what people read in lists instead of its id. Pure.

The submitter may give one; otherwise it is a text of the input.
"""

from __future__ import annotations

import re
from typing import Any

from stentor.core.text_checks import is_readable
from stentor.domains.atp.text_format import content_for_agent

MAX_TITLE_CHARACTERS = 200
"""Limit for a title that the submitter gives."""
DERIVED_CHARACTERS = 80
"""Limit for a title that is taken from the input."""
KEYS = (
    "title subject headline name question query prompt instruction instructions goal objective task request message "
    "messages description summary text content body input url path file"
).split()
"""Fields of an input that say best what a task is about, the best first."""
_MAX_DEPTH, _MAX_ITEMS, _MAX_SCANNED = 4, 20, 2_000
_MARKS = re.compile(r"^[\s#>*_`~=|:.\-\u2022]+")
_IDENTIFIER = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-|[0-9a-fA-F]{16,}$")


def derive_title(task_type: str, task_input: Any) -> str:
    """Return a line of at most DERIVED_CHARACTERS from the input, or the type of the task if the input has no text."""
    return _find_title(content_for_agent(task_input), _MAX_DEPTH) or task_type


def _find_title(value: Any, depth: int) -> str | None:
    if isinstance(value, str):
        return _first_line(value)
    if not depth:
        return None
    if isinstance(value, dict):
        # The named fields first; then any other text, because a field that we do not know beats no title.
        nested: list[Any] = [value[key] for key in KEYS if key in value]
        nested += [item for item in list(value.values())[:_MAX_ITEMS] if isinstance(item, str)]
    elif isinstance(value, list):
        # The last message of a conversation is the one to be answered.
        is_chat = bool(value) and all(isinstance(item, dict) and "role" in item for item in value[:_MAX_ITEMS])
        nested = [item.get("content") for item in reversed(value[-_MAX_ITEMS:])] if is_chat else value[:_MAX_ITEMS]
    else:
        return None
    return next((title for item in nested if (title := _find_title(item, depth - 1))), None)


def _first_line(text: str) -> str | None:
    """Return the first line that people can read, None if there is none."""
    for line in text[:_MAX_SCANNED].splitlines():
        start = line[: 2 * DERIVED_CHARACTERS]
        if not start.isprintable():
            start = "".join(c if is_readable(c) else " " for c in start)
        words = _MARKS.sub("", start).split()
        if words and not _is_opaque(words):
            return _shorten(" ".join(words))
    return None


def _is_opaque(words: list[str]) -> bool:
    """Return whether a line is an id, a hash or encoded bytes, or has no letters at all."""
    # A long word is taken for encoded bytes, but with an early slash for an address or a path.
    is_token = len(words) == 1 and (_IDENTIFIER.match(words[0]) or (len(words[0]) > 60 and "/" not in words[0][:20]))
    return bool(is_token) or not any(c.isalpha() for word in words for c in word)


def _shorten(line: str) -> str:
    if len(line) <= DERIVED_CHARACTERS:
        return line
    cut = line[: DERIVED_CHARACTERS - 1]
    return (cut.rpartition(" ")[0] if " " in cut[DERIVED_CHARACTERS // 2 :] else cut).rstrip(" ,;:.-") + "…"
