"""Three-way merge of two changes of the same note: the body by line, the frontmatter by key. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import Match, SequenceMatcher
from itertools import accumulate
from typing import Any

from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.notes.yaml_writer import to_comparable

MISSING = object()
MAX_COMPARISONS = 3_000_000
"""Limit for the comparison of two bodies, which is quadratic in their lines; some seconds."""

LineEdit = tuple[int, int, list[str]]
"""Start and end of the replaced lines in the base, and the new lines."""


class MergeConflict(Exception):
    """Both sides changed the same lines or key in different ways."""


def merge_notes(base: str, ours: str, theirs: str) -> str:
    """Return the note with the changes of both sides since `base`. Raises MergeConflict.

    Unchanged bytes are those of `theirs`, the note as it is on disk.
    """
    # Also covers two equal changes, which are not a conflict.
    if ours in (theirs, base):
        return theirs
    if theirs == base:
        return ours
    parts = [frontmatter.split(text) for text in (base, ours, theirs)]
    bodies = parts[0].body, _adapt_line_ends(parts[1].body, parts[0].body), parts[2].body
    body = "".join(_merge_lines(*(text.splitlines(keepends=True) for text in bodies)))
    their_parts = parts[2]
    closing = their_parts.closing
    if body and closing and not closing.endswith(("\n", "\r")):
        closing += their_parts.newline
    joined = f"{their_parts.opening}{their_parts.block or ''}{closing}{body}"
    try:
        values = [frontmatter.parse_values(part) for part in parts]
        merged = _merge_mappings(*values)
        return frontmatter.edit(joined, merged, frozenset(values[2]) - frozenset(merged))
    except frontmatter.InvalidFrontmatter:
        raise MergeConflict from None


def _adapt_line_ends(text: str, base: str) -> str:
    """Return the text with CRLF if the base has only that and the text only LF: otherwise every line would differ."""
    has_only_crlf = "\r\n" in base and "\n" not in base.replace("\r\n", "")
    return text.replace("\n", "\r\n") if has_only_crlf and "\r" not in text else text


def _merge_lines(base: list[str], ours: list[str], theirs: list[str]) -> Iterator[str]:
    """Apply the edits of both sides, identical ones once. Adjacent edits without an unchanged line between conflict."""
    edits = sorted([*_find_edits(base, ours), *_find_edits(base, theirs)], key=lambda edit: edit[:2])
    position, previous = 0, None
    for edit in edits:
        start, end, new = edit
        if edit == previous:
            continue
        # Edits that touch conflict too: nobody can tell which of the two lines comes first.
        if previous is not None and start <= previous[1]:
            raise MergeConflict
        yield from base[position:start]
        yield from new
        position, previous = end, edit
    yield from base[position:]


class _LineMatcher(SequenceMatcher[str]):
    """Raises MergeConflict above MAX_COMPARISONS."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        # autojunk ignores frequent lines, such as blank ones, and would make edits larger than they are.
        super().__init__(None, old, new, autojunk=False)
        counts = Counter(new)
        self._costs = list(accumulate((1 + counts[line] for line in old), initial=0))
        self._comparisons = 0

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        # Each call compares every line of its part of the base with all equal lines of the other side.
        self._comparisons += self._costs[-1 if ahi is None else ahi] - self._costs[alo]
        if self._comparisons > MAX_COMPARISONS:
            raise MergeConflict
        return super().find_longest_match(alo, ahi, blo, bhi)


def _find_edits(base: list[str], other: list[str]) -> list[LineEdit]:
    """Return the edits that turn `base` into `other`. Raises MergeConflict above MAX_COMPARISONS."""
    start = next((i for i, (a, b) in enumerate(zip(base, other, strict=False)) if a != b), min(len(base), len(other)))
    max_suffix = min(len(base), len(other)) - start
    suffix = next((i for i in range(max_suffix) if base[-1 - i] != other[-1 - i]), max_suffix)
    old_lines, new_lines = base[start : len(base) - suffix], other[start : len(other) - suffix]
    opcodes = _LineMatcher(old_lines, new_lines).get_opcodes()
    return [(i + start, j + start, new_lines[k:n]) for kind, i, j, k, n in opcodes if kind != "equal"]


def _merge_mappings(base: JsonObject, ours: JsonObject, theirs: JsonObject) -> JsonObject:
    merged: JsonObject = {}
    for key in dict.fromkeys([*theirs, *ours]):
        value = _merge_values(*(side.get(key, MISSING) for side in (base, ours, theirs)))
        if value is not MISSING:
            merged[key] = value
    return merged


def _merge_values(base: Any, ours: Any, theirs: Any) -> Any:
    if _is_equal(ours, theirs) or _is_equal(ours, base):
        return theirs
    if _is_equal(theirs, base):
        return ours
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return _merge_mappings(base if isinstance(base, dict) else {}, ours, theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return _merge_lists(base if isinstance(base, list) else [], ours, theirs)
    raise MergeConflict


def _merge_lists(base: Sequence[Any], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """Merge like sets, as tags are: apply each side's removals and additions."""
    removed = [item for item in base if item not in ours]
    return [item for item in theirs if item not in removed] + [
        item for item in ours if item not in base and item not in theirs
    ]


def _is_equal(first: Any, second: Any) -> bool:
    if first is MISSING or second is MISSING:
        return first is second
    return bool(to_comparable(first) == to_comparable(second))
