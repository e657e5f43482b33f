"""The changes of an update or a rollback as diff lines for a reviewer. Pure functions."""

from __future__ import annotations

import msgspec

from stentor.core import json_diff
from stentor.core.json_diff import DiffLine
from stentor.core.jsontext import JsonObject
from stentor.domains.governance import impact
from stentor.surfaces.dashboard.presenters.agent_view import mask_secrets

MAX_LINES = 2_000
"""Lines per page."""
MAX_LINE_CHARACTERS = 2_000
SCORE_FIELDS = ("alignment_score", "accuracy_score", "efficiency_score", "trust_tier", "trust_score")


class FieldChange(msgspec.Struct, frozen=True):
    """A changed field. `hidden` is true when the change itself is masked, because it may be a secret."""

    path: str
    lines: list[DiffLine]
    added: int
    deleted: int
    hidden: bool


class ChangeReview(msgspec.Struct, frozen=True):
    """The changed fields, with at most MAX_LINES lines in total; `is_complete` is false when lines are left out."""

    changes: list[FieldChange]
    added: int
    deleted: int
    is_complete: bool


def review_diff(diff: list[JsonObject]) -> ChangeReview:
    """Return the lines of a diff as the gateway returns it: `path`, `before` and `after` of each field."""
    changes: list[FieldChange] = []
    remaining = MAX_LINES
    for field in diff:
        if remaining <= 0:
            break
        change = _review_field(field)
        # `added` and `deleted` still count the lines that are left out.
        changes.append(msgspec.structs.replace(change, lines=change.lines[:remaining]))
        remaining -= len(change.lines)
    is_complete = remaining >= 0 and len(changes) == len(diff)
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
    diff_lines = json_diff.diff_lines(before, after, deep=True)
    added, deleted = (sum(line_sign == sign for line_sign, _ in diff_lines) for sign in ("+", "-"))
    lines: list[DiffLine] = [(sign, _truncate(line)) for sign, line in diff_lines]
    # Equal after masking means that only a secret changed.
    return FieldChange(json_diff.escape_invisible(path), lines, added, deleted, before == after)


def _truncate(line: str) -> str:
    if len(line) <= MAX_LINE_CHARACTERS:
        return line
    return f"{line[:MAX_LINE_CHARACTERS]}… ({len(line) - MAX_LINE_CHARACTERS} more characters)"
