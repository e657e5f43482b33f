"""What differs between two JSON values, line by line, for people who have to decide about it: pure."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from typing import Any, Literal

Sign = Literal["-", "+", " ", "@"]
Line = tuple[Sign, str]
"""Gone, come, the same, or lines left out that are the same."""
CONTEXT = 3
MOST = 2_000
"""Lines that are compared with each other; of more the old ones are gone and the new ones come."""


def lines(before: Any, after: Any) -> list[Line]:
    """The lines that differ with those around them; an absent value (None) has no lines."""
    old, new = parts(before), parts(after)
    if len(old) + len(new) > MOST:
        return [*(("-", line) for line in old), *(("+", line) for line in new)]
    found: list[Line] = []
    at = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        found += _left_out(group[0][1] - at)
        for kind, first, last, first_new, last_new in group:
            if kind == "equal":
                found += [(" ", line) for line in old[first:last]]
            else:
                found += [*(("-", line) for line in old[first:last]), *(("+", line) for line in new[first_new:last_new])]
        at = group[-1][2]
    return found + _left_out(len(old) - at) if found else found


def parts(value: Any) -> list[str]:
    """A list by its items, a text by its lines, anything else as JSON."""
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [visible(_json(item)) for item in value]
    if isinstance(value, str) and "\n" in value:
        return [visible(line) for line in value.split("\n")]
    if isinstance(value, dict):
        return [visible(line) for line in json.dumps(value, ensure_ascii=False, indent=2).split("\n")]
    return [visible(_json(value))]


def visible(text: str) -> str:
    """Characters that are not seen, or that turn the order of others, are shown by their code."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _left_out(n: int) -> list[Line]:
    return [("@", f"{n} {'line' if n == 1 else 'lines'} the same")] if n > 0 else []
