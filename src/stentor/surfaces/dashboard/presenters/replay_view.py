"""The report of a replay: its words, also for the command line, and the rows of its page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stentor.core.jsontext import JsonObject

SUMMARIES = {
    "same": "The run is the same as far as it was recorded.",
    "differs": "The run differs.",
    "unknown": "Not comparable: the run did not record what it asked.",
}
LABELS = {"taken_over": "taken over", "no_outcome": "no outcome", "not_reached": "no longer reached"}
"""Labels of verdicts whose code is not readable text."""
EXPLANATIONS = {
    "same": "same request; the recorded outcome was used",
    "differs": "different request; the recorded outcome was used anyway",
    "unknown": "the run did not record what it asked",
    "taken_over": "a step of another task, not compared",
    "new": "not recorded; the replay stops here",
    "no_outcome": "nobody knows whether this effect happened; the replay stops here",
    "not_reached": "recorded, but the agent would end before it",
}
COLOR_STATUSES = {"same": "completed", "differs": "failed", "not_reached": "failed"}
"""The task status whose colour a verdict has; all others have that of `pending_approval`."""


class ReplayRow(msgspec.Struct, frozen=True):
    """A step. `label` and `explanation` are words for the verdict, `color` the status whose colour it has.

    `as_above` says that it differs in exactly what the step before it does.
    """

    key: str
    name: str
    kind: str
    label: str
    explanation: str
    color: str
    reasons: list[str]
    as_above: bool


def build_rows(steps: Iterable[JsonObject]) -> Iterator[ReplayRow]:
    """Yield the steps of a report."""
    listed = list(steps)
    repeated = find_repeated(step["reasons"] for step in listed)
    for step, as_above in zip(listed, repeated, strict=True):
        verdict = step["verdict"]
        yield ReplayRow(
            step["key"],
            step["name"],
            step["kind"],
            label_of(verdict),
            EXPLANATIONS.get(verdict, ""),
            color_of(verdict),
            step["reasons"],
            as_above,
        )


def find_repeated(reasons: Iterable[list[str]]) -> Iterator[bool]:
    """Yield for each step whether its reasons equal those of the last step before it that has any.

    Each request of a run has the same instructions and tools, so each differs in the same.
    """
    before: list[str] = []
    for each in reasons:
        yield bool(each) and each == before
        before = each or before


def label_of(verdict: str) -> str:
    return LABELS.get(verdict, verdict)


def color_of(verdict: str) -> str:
    return COLOR_STATUSES.get(verdict, "pending_approval")
