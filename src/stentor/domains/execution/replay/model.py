"""The report of a replay. No I/O."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.execution.model import AttemptOutcome
from stentor.domains.tasks.model import Task

StepVerdict = Literal["same", "differs", "unknown", "taken_over", "new", "no_outcome", "not_reached"]
Verdict = Literal["same", "differs", "unknown"]
OWN_ERRORS = ("LIMIT_REACHED", "PRICE_UNKNOWN")
"""Errors with which the loop itself ends a run after its last step. Every other end could come from outside."""


class ReplayedStep(msgspec.Struct):
    """A step of the journal, or the first one that it does not have. `reasons` say in what it differs.

    `unknown`: the run did not record its request. `taken_over`: it is a step of another task, and not compared.
    `new`: it is not recorded; the replay stops there. `no_outcome`: nobody knows whether the effect happened; it stops
    there too. `not_reached`: the agent would not come to it.
    """

    key: str
    name: str
    kind: str
    verdict: StepVerdict
    reasons: list[str] = []


class ReplayEnd(msgspec.Struct, frozen=True):
    """How the replay ended; without an outcome it stopped at `stopped_at`, which is not recorded."""

    outcome: AttemptOutcome | None = None
    stopped_at: str | None = None

    def compare(self, task: Task) -> str | None:
        """Return in what this end differs from the end of the run; None if it does not, or the run did not end by
        itself.
        """
        error = task.error.get("code") if isinstance(task.error, dict) else None
        if task.status != "completed" and error not in OWN_ERRORS:
            return None
        before = "was completed" if task.status == "completed" else f"ended with {error}"
        if self.outcome is None:
            return f"The run {before}, and now continues with {self.stopped_at}."
        if self.outcome.error is not None:
            now = self.outcome.error
            ends = f"now it ends with {now['code']}: {now['message']}"
            return None if now["code"] == error else f"The run {before}, {ends}"
        if error is not None:
            return f"The run {before}, and is now completed."
        return None if self.outcome.result == task.result else "The run has another result now."


class ReplayReport(msgspec.Struct, frozen=True):
    """What a replay found. `difference` is in what its end differs, None if in nothing.

    `result` is what the run would return now; None if the replay stopped, or ended with `error`.
    """

    agent_id: str
    agent_name: str
    steps: list[ReplayedStep]
    end: ReplayEnd
    difference: str | None

    @property
    def verdict(self) -> Verdict:
        """`differs` if anything does; `unknown` if the run did not record what would have to be compared."""
        verdicts = {step.verdict for step in self.steps}
        if self.difference is not None or verdicts & {"differs", "not_reached"}:
            return "differs"
        return "unknown" if "unknown" in verdicts else "same"

    @property
    def result(self) -> Any:
        return None if self.end.outcome is None else self.end.outcome.result

    @property
    def error(self) -> JsonObject | None:
        return None if self.end.outcome is None else self.end.outcome.error

    @property
    def stopped_at(self) -> str | None:
        return self.end.stopped_at
