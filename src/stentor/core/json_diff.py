"""What differs between two JSON values, line by line, for people who have to decide about it: pure."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from typing import Any, Literal

DiffMarker = Literal["-", "+", " ", "@"]
DiffLine = tuple[DiffMarker, str]
"""Gone, come, the same, or lines left out that are the same."""
CONTEXT = 3
MAX_LINES = 2_000
"""Lines that are compared with each other; of more the old ones are gone and the new ones come."""


def diff_lines(before: Any, after: Any, *, deep: bool = False) -> list[DiffLine]:
    """The lines that differ with those around them; an absent value (None) has no lines.

    With `deep` an object has a line for each of its members, which shows more exactly what differs.
    """
    nested = deep and any(isinstance(one, dict) or _holds(one) for one in (before, after))
    old, new = (
        tree_lines(one) if nested and isinstance(one, dict | list) else value_lines(one) for one in (before, after)
    )
    if len(old) + len(new) > MAX_LINES:
        return [*(("-", line) for line in old), *(("+", line) for line in new)]
    found: list[DiffLine] = []
    at = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        found += _left_out(group[0][1] - at)
        for kind, first, last, first_new, last_new in group:
            if kind == "equal":
                found += [(" ", line) for line in old[first:last]]
            else:
                found += [("-", line) for line in old[first:last]]
                found += [("+", line) for line in new[first_new:last_new]]
        at = group[-1][2]
    return found + _left_out(len(old) - at) if found else found


def value_lines(value: Any) -> list[str]:
    """A list by its items, a text by its lines, anything else as JSON."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [escape_invisible(_json(item)) for item in value]
    if isinstance(value, str) and "\n" in value:
        return [escape_invisible(line) for line in value.split("\n")]
    return [escape_invisible(_json(value))]


def tree_lines(value: Any, depth: int = 0) -> list[str]:
    """Members of objects and items of lists on lines of their own, without commas that would differ too."""
    space = "  " * depth
    if not (isinstance(value, dict | list) and value):
        return [space + escape_invisible(_json(value))]
    if isinstance(value, list):
        items = [tree_lines(one, depth + 1) for one in value]
        return [line for item in items for line in (f"{space}- {item[0].lstrip()}", *item[1:])]
    return [line for name, one in value.items() for line in _member(space + escape_invisible(str(name)), one, depth)]


def _member(name: str, value: Any, depth: int) -> list[str]:
    inner = tree_lines(value, depth + 1)
    return [f"{name}:", *inner] if isinstance(value, dict | list) and value else [f"{name}: {inner[0].lstrip()}"]


def escape_invisible(text: str) -> str:
    """Characters that are not seen, or that turn the order of others, are shown by their code."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _holds(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict | list) for one in value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _left_out(n: int) -> list[DiffLine]:
    return [("@", f"{n} {'line' if n == 1 else 'lines'} the same")] if n > 0 else []
