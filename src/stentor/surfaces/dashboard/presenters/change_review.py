"""The changes of an update or a rollback as diff lines for a reviewer. Pure functions."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core.formats import json_diff
from stentor.core.formats.json_diff import DiffLine
from stentor.core.jsontext import JsonObject
from stentor.domains.governance import impact
from stentor.surfaces.dashboard.presenters.agent_view import mask_secrets

MAX_LINES = 2_000
MAX_CHARACTERS = 400_000
"""Lines and characters per page."""
LINE_CHARACTERS = 2_000
"""Longer lines are wrapped and not cut, because a change can be anywhere in them."""
SCORE_FIELDS = ("alignment_score", "accuracy_score", "efficiency_score", "trust_tier", "trust_score")


class FieldChange(msgspec.Struct, frozen=True):
    """A changed field. `masked` is true when a part that changes is masked, because it may be a secret; `hidden` when
    nothing else changes.
    """

    path: str
    lines: list[DiffLine]
    added: int
    deleted: int
    masked: bool
    hidden: bool


class ChangeReview(msgspec.Struct, frozen=True):
    """The changed fields, with at most MAX_LINES lines in total; `is_complete` is false when lines are left out."""

    changes: list[FieldChange]
    added: int
    deleted: int
    is_complete: bool


def review_diff(diff: list[JsonObject]) -> ChangeReview:
    """Return the lines of a diff as the gateway returns it: `path`, `before` and `after` of each field.

    A field after the last line that fits is still named.
    """
    changes: list[FieldChange] = []
    lines, characters = MAX_LINES, MAX_CHARACTERS
    for field in diff[:MAX_LINES]:
        change = _review_field(field)
        shown: list[DiffLine] = []
        for line in change.lines:
            lines, characters = lines - 1, characters - len(line[1])
            if min(lines, characters) < 0:
                break
            shown.append(line)
        # `added` and `deleted` still count the lines that are left out.
        changes.append(msgspec.structs.replace(change, lines=shown))
    is_complete = min(lines, characters) >= 0 and len(changes) == len(diff)
    return ChangeReview(changes, sum(c.added for c in changes), sum(c.deleted for c in changes), is_complete)


def review_rollback(state: JsonObject, record: JsonObject) -> ChangeReview:
    """Return what a rollback to a checkpoint's state would change in the agent's current record."""
    current = {name: record[name] for name in impact.PATCHABLE_FIELDS}
    diff = impact.diff_documents(current, {name: state["config"][name] for name in impact.PATCHABLE_FIELDS})
    for name in SCORE_FIELDS:
        # A checkpoint without a trust score leaves trust unchanged.
        if name in state and state[name] != record[name]:
            diff.append({"path": name, "before": record[name], "after": state[name]})
    return review_diff(diff)


def _review_field(field: JsonObject) -> FieldChange:
    path = str(field["path"])
    name = path.rpartition(".")[2]
    before, after = mask_secrets(field["before"], name), mask_secrets(field["after"], name)
    if before is None and after is None:
        return FieldChange(json_diff.escape_invisible(path), [json_diff.ONLY_NULL], 0, 0, masked=False, hidden=False)
    lines = json_diff.diff_lines(before, after, deep=True, width=LINE_CHARACTERS)
    added, deleted = (sum(line_sign == sign for line_sign, _ in lines) for sign in ("+", "-"))
    masked = not json_diff.is_same(_masked_parts(field["before"], before), _masked_parts(field["after"], after))
    hidden = json_diff.is_same(before, after)
    return FieldChange(json_diff.escape_invisible(path), lines, added, deleted, masked, hidden)


def _masked_parts(value: Any, masked: Any) -> list[Any]:
    """Return what masking took away, with the names of members: in another order of members they are the same."""
    if isinstance(value, dict) and isinstance(masked, dict):
        return [[name, part] for name in sorted(value) for part in _masked_parts(value[name], masked[name])]
    if isinstance(value, list) and isinstance(masked, list):
        return [part for pair in zip(value, masked, strict=True) for part in _masked_parts(*pair)]
    return [] if value == masked else [value]
