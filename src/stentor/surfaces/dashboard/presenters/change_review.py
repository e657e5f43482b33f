"""What an update changes, as lines for a reviewer: pure."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import json_diff
from stentor.core.json_diff import DiffLine
from stentor.domains.governance import impact
from stentor.surfaces.dashboard.presenters.agent_view import mask_secrets

MAX_LINES = 2_000
"""Lines of one page."""
MAX_LINE_CHARACTERS = 2_000
"""Characters of one line."""
SCORE_FIELDS = ("alignment_score", "accuracy_score", "efficiency_score", "trust_tier", "trust_score")


class FieldChange(msgspec.Struct, frozen=True):
    """One field. `hidden` says that what changes is not shown, because it may be a secret."""

    path: str
    lines: list[DiffLine]
    added: int
    deleted: int
    hidden: bool


class ChangeReview(msgspec.Struct, frozen=True):
    changes: list[FieldChange]
    added: int
    deleted: int
    whole: bool
    """False when there are more lines than are shown."""


def review_diff(diff: list[dict[str, Any]]) -> ChangeReview:
    """`diff` as the gateway gives it: path, before and after of each field."""
    changes: list[FieldChange] = []
    left = MAX_LINES
    for one in diff:
        if left <= 0:
            break
        change = _change(one)
        changes.append(msgspec.structs.replace(change, lines=change.lines[:left]))
        left -= len(change.lines)
    whole = left >= 0 and len(changes) == len(diff)
    return ChangeReview(changes, sum(c.added for c in changes), sum(c.deleted for c in changes), whole)


def _change(one: dict[str, Any]) -> FieldChange:
    path = str(one["path"])
    name = path.rpartition(".")[2]
    before, after = mask_secrets(one["before"], name), mask_secrets(one["after"], name)
    found = json_diff.diff_lines(before, after, deep=True)
    lines: list[DiffLine] = [(sign, _cut(line)) for sign, line in found]
    added, deleted = (sum(sign == wanted for sign, _ in found) for wanted in ("+", "-"))
    return FieldChange(json_diff.escape_invisible(path), lines, added, deleted, before == after)


def _cut(line: str) -> str:
    return (
        line
        if len(line) <= MAX_LINE_CHARACTERS
        else f"{line[:MAX_LINE_CHARACTERS]}… ({len(line) - MAX_LINE_CHARACTERS} more characters)"
    )


def review_rollback(state: dict[str, Any], record: dict[str, Any]) -> ChangeReview:
    """What a rollback to this state of a checkpoint would change of the agent as it is."""
    now = {name: record[name] for name in impact.PATCHABLE_FIELDS}
    found = impact.diff_documents(now, {name: state["config"][name] for name in impact.PATCHABLE_FIELDS})
    for name in SCORE_FIELDS:
        # A checkpoint without a trust score leaves trust as it is.
        if name in state and state[name] != record[name]:
            found.append({"path": name, "before": record[name], "after": state[name]})
    return review_diff(found)
