"""Merging two changes of the same note: the body by line, the frontmatter by key. Pure.

Source: facts of the vault sync ("Conflicts").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from stentor_vault.notes import frontmatter
from stentor_vault.notes.yaml_codec import to_comparable

MISSING = object()
MAX_COMPARED_PAIRS = 1_000_000
"""Pairs of equal lines, between the first and the last difference, up to which texts are compared."""
LineEdit = tuple[int, int, list[str]]


class MergeConflict(Exception):
    """Both sides changed the same place in different ways."""


def merge_notes(base: str, ours: str, theirs: str) -> str:
    """The note with the changes of both sides since `base`. Raises CannotMerge.

    Bytes that nobody changed are those of `theirs`, which is the note that is there now.
    """
    if ours in (theirs, base):
        return theirs
    if theirs == base:
        return ours
    parts = [frontmatter.split(text) for text in (base, ours, theirs)]
    body = "".join(_lines(*(part.body.splitlines(keepends=True) for part in parts)))
    there = parts[2]
    joined = f"{there.head}{there.block or ''}{there.tail}{body}"
    try:
        known = [frontmatter.parse_values(part) for part in parts]
        merged = _keys(*known)
        return frontmatter.edit(joined, merged, frozenset(known[2]) - frozenset(merged))
    except frontmatter.InvalidFrontmatter:
        raise MergeConflict from None


def _lines(base: list[str], ours: list[str], theirs: list[str]) -> Iterator[str]:
    """Changes side by side with an unchanged line between them are both made; equal ones once."""
    edits = sorted([*_edits(base, ours), *_edits(base, theirs)], key=lambda edit: edit[:2])
    at, last = 0, None
    for edit in edits:
        start, end, new = edit
        if edit == last:
            continue
        if last is not None and start <= last[1]:
            raise MergeConflict
        yield from base[at:start]
        yield from new
        at, last = end, edit
    yield from base[at:]


def _edits(base: list[str], other: list[str]) -> list[LineEdit]:
    """What `other` changed. Raises CannotMerge for texts that would take minutes to compare."""
    start = next((i for i, (a, b) in enumerate(zip(base, other, strict=False)) if a != b), min(len(base), len(other)))
    room = min(len(base), len(other)) - start
    tail = next((i for i in range(room) if base[-1 - i] != other[-1 - i]), room)
    one, two = base[start : len(base) - tail], other[start : len(other) - tail]
    counts = Counter(two)
    if sum(counts[line] for line in one) > MAX_COMPARED_PAIRS:
        raise MergeConflict
    codes = SequenceMatcher(None, one, two, autojunk=False).get_opcodes()
    return [(i + start, j + start, two[k:n]) for kind, i, j, k, n in codes if kind != "equal"]


def _keys(base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for key in dict.fromkeys([*theirs, *ours]):
        value = _value(*(side.get(key, MISSING) for side in (base, ours, theirs)))
        if value is not MISSING:
            merged[key] = value
    return merged


def _value(base: Any, ours: Any, theirs: Any) -> Any:
    if _equal(ours, theirs) or _equal(ours, base):
        return theirs
    if _equal(theirs, base):
        return ours
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return _keys(base if isinstance(base, dict) else {}, ours, theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return _list(base if isinstance(base, list) else [], ours, theirs)
    raise MergeConflict


def _list(base: Sequence[Any], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """As sets, like tags: what one side took away is gone, what one side added is there."""
    gone = [item for item in base if item not in ours]
    return [item for item in theirs if item not in gone] + [
        item for item in ours if item not in base and item not in theirs
    ]


def _equal(one: Any, other: Any) -> bool:
    if one is MISSING or other is MISSING:
        return one is other
    return bool(to_comparable(one) == to_comparable(other))
