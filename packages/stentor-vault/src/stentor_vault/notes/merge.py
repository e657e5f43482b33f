"""Three-way merge of two changes of the same note: the body by line, the frontmatter by key. Pure.

Source: facts of the vault sync ("Conflicts").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import frontmatter
from stentor_vault.notes.yaml_codec import to_comparable

MISSING = object()
MAX_COMPARED_PAIRS = 1_000_000
"""Maximum pairs of equal lines between the first and the last difference; comparing more would take minutes."""

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
    body = "".join(_merge_lines(*(part.body.splitlines(keepends=True) for part in parts)))
    their_parts = parts[2]
    joined = f"{their_parts.opening}{their_parts.block or ''}{their_parts.closing}{body}"
    try:
        values = [frontmatter.parse_values(part) for part in parts]
        merged = _merge_mappings(*values)
        return frontmatter.edit(joined, merged, frozenset(values[2]) - frozenset(merged))
    except frontmatter.InvalidFrontmatter:
        raise MergeConflict from None


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


def _find_edits(base: list[str], other: list[str]) -> list[LineEdit]:
    """Return the edits that turn `base` into `other`. Raises MergeConflict above MAX_COMPARED_PAIRS."""
    start = next((i for i, (a, b) in enumerate(zip(base, other, strict=False)) if a != b), min(len(base), len(other)))
    max_suffix = min(len(base), len(other)) - start
    suffix = next((i for i in range(max_suffix) if base[-1 - i] != other[-1 - i]), max_suffix)
    old_lines, new_lines = base[start : len(base) - suffix], other[start : len(other) - suffix]
    counts = Counter(new_lines)
    if sum(counts[line] for line in old_lines) > MAX_COMPARED_PAIRS:
        raise MergeConflict
    # autojunk ignores frequent lines, such as blank ones, and would make edits larger than they are.
    opcodes = SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes()
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
