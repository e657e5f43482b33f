"""The difference between two JSON values as lines of text, for people who review a change. No I/O."""

from __future__ import annotations

import json
import re
from difflib import SequenceMatcher
from typing import Any, Literal

DiffMarker = Literal["-", "+", " ", "@"]
DiffLine = tuple[DiffMarker, str]
"""A marker and a line: removed, added, unchanged, or a note about omitted unchanged lines."""
ONLY_NULL: DiffLine = ("@", "A member with the value null is added or removed.")
"""The line of a difference between null and an absent value, which has no other lines."""
CONTEXT = 3
MAX_LINES = 2_000
"""Maximum number of lines that are compared; beyond it, all old lines count as removed and all new ones as added."""
_INVISIBLE = re.compile(
    r"[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""What shows nothing although `str.isprintable` allows it. Any text can be hidden in variation selectors."""
_PLAIN_NAME = re.compile(r"\w[\w.-]*")


def is_same(before: Any, after: Any) -> bool:
    """Return whether two JSON values are written the same, in any order of members: unlike `==` not 1, 1.0 and true."""
    return json.dumps(before, sort_keys=True) == json.dumps(after, sort_keys=True)


def diff_lines(before: Any, after: Any, *, deep: bool = False, width: int = 0) -> list[DiffLine]:
    """Return the lines that differ, with unchanged lines around them. None is an absent value without lines.

    With `deep`, each member of an object has its own line. With `width`, lines with more characters are wrapped.
    """
    nested = deep and any(isinstance(value, dict) or _has_containers(value) for value in (before, after))
    old, new = (
        _wrap(tree_lines(value) if nested and isinstance(value, (dict, list)) else value_lines(value), width)
        for value in (before, after)
    )
    if len(old) + len(new) > MAX_LINES:
        return [*(("-", line) for line in old), *(("+", line) for line in new)]
    lines: list[DiffLine] = []
    position = 0
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT):
        lines += _omitted(group[0][1] - position)
        for kind, first, last, first_new, last_new in group:
            if kind == "equal":
                lines.extend((" ", line) for line in old[first:last])
            else:
                lines.extend(("-", line) for line in old[first:last])
                lines.extend(("+", line) for line in new[first_new:last_new])
        position = group[-1][2]
    if lines:
        return lines + _omitted(len(old) - position)
    if is_same(before, after):
        return []
    # Different values with the same lines: a text with line breaks and a list, for example.
    sides: tuple[tuple[DiffMarker, Any], ...] = (("-", before), ("+", after))
    return [
        (marker, line)
        for marker, value in sides
        if value is not None
        for line in _wrap([escape_invisible(_json(value))], width)
    ]


def _wrap(lines: list[str], width: int) -> list[str]:
    """Split long lines. The start of each following part shows that it is not a line of its own."""
    if not width or all(len(line) <= width for line in lines):
        return lines
    return [
        "… " * (start > 0) + line[start : start + width]
        for line in lines
        for start in range(0, max(len(line), 1), width)
    ]


def value_lines(value: Any) -> list[str]:
    """Return a line for each item of a list or each line of a text; one line of JSON for anything else."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [escape_invisible(_json(item)) for item in value]
    if isinstance(value, str) and "\n" in value:
        return [escape_invisible(line) for line in value.split("\n")]
    return [escape_invisible(_json(value))]


def tree_lines(value: Any, depth: int = 0) -> list[str]:
    """Return an indented line for each member and item, without commas, which would be differences of their own."""
    indent = "  " * depth
    if not (isinstance(value, (dict, list)) and value):
        return [indent + escape_invisible(_json(value))]
    if isinstance(value, list):
        items = [tree_lines(item, depth + 1) for item in value]
        return [line for item in items for line in (f"{indent}- {item[0].lstrip()}", *item[1:])]
    members = ((indent + escape_invisible(_quote_name(str(name))), member) for name, member in value.items())
    return [line for name, member in members for line in _member(name, member, depth)]


def _member(name: str, value: Any, depth: int) -> list[str]:
    inner = tree_lines(value, depth + 1)
    return [f"{name}:", *inner] if isinstance(value, (dict, list)) and value else [f"{name}: {inner[0].lstrip()}"]


def _quote_name(name: str) -> str:
    # Otherwise a name could look like an item, or like a name and its value.
    return name if _PLAIN_NAME.fullmatch(name) else _json(name)


def escape_invisible(text: str) -> str:
    """Replace invisible characters and those that change the text direction by their escape codes.

    Otherwise a reviewer could approve something other than what the screen shows.
    """
    return "".join(char if _is_visible(char) else char.encode("unicode_escape").decode() for char in text)


def _is_visible(char: str) -> bool:
    return char.isprintable() and not _INVISIBLE.match(char)


def _has_containers(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _omitted(n: int) -> list[DiffLine]:
    return [("@", f"{n} unchanged {'line' if n == 1 else 'lines'}")] if n > 0 else []
