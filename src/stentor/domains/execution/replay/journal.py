"""The journal of a replay: returns the recorded outcomes and compares, without executing a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from stentor.auth.principal import Principal
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.journal import RecordedSteps
from stentor.domains.execution.replay.model import ReplayedStep
from stentor.domains.execution.runtimes import llm_request
from stentor.domains.steps.model import StepKind
from stentor.domains.steps.service import JournalEntry, StepService
from stentor.domains.steps.starts import is_start


class ReplayStopped(Exception):
    """The program came to a step that has no recorded outcome."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class ReplayJournal(RecordedSteps):
    """A StepJournal that only reads. `steps` is the report, in the order of the program."""

    def __init__(self, steps: StepService, principal: Principal, task_id: str) -> None:
        super().__init__(steps, principal, task_id)
        self._requests: dict[int, JsonObject] = {}
        """The requests of the recorded model calls, by epoch."""
        self.steps: dict[str, ReplayedStep] = {}

    @property
    def is_empty(self) -> bool:
        return not self._recorded

    async def load(self) -> None:
        """Read the journal and the requests of its steps. Raises NotFound for a task that the caller may not see."""
        if self._recorded:
            return
        await super().load()
        self._recorded = {key: entry for key, entry in self._recorded.items() if not is_start(key)}
        requests = await self._steps.list_requests(self._principal, self._task_id)
        for entry in self._recorded.values():
            if entry.step.event_id in requests:
                self._requests.setdefault(entry.step.epoch, requests[entry.step.event_id])

    async def step(
        self, key: str, name: str, work: Callable[[], Awaitable[Any]], request: Callable[[], JsonObject] | None = None
    ) -> Any:
        """Return the recorded outcome. Raises ReplayStopped without one."""
        entry, step = self._find(key, name, "step")
        if request is not None and step.verdict == "same":
            recorded = self._requests.get(entry.step.epoch)
            if recorded is None:
                step.verdict = "unknown"
                step.reasons.append("the run did not record what it asked")
            else:
                self.note(key, *llm_request.compare(recorded, request()))
        return await self._read_outcome(entry)

    async def effect(self, key: str, name: str, work: Callable[[str], Awaitable[Any]]) -> Any:
        """Return the recorded outcome of an effect, which is never sent."""
        return await self._read_outcome(self._find(key, name, "effect")[0])

    def note(self, key: str, *reasons: str) -> None:
        """Record how a step differs from the run. Steps of another task are not compared."""
        step = self.steps[key]
        if reasons and step.verdict != "taken_over":
            step.verdict = "differs"
            step.reasons += reasons

    def outcome_of(self, key: str) -> Any:
        """Return the recorded value of a step; None if there is none, or if it is too long to be in the journal."""
        entry = self._recorded.get(key)
        return None if entry is None else entry.value

    def list_unreached(self) -> list[ReplayedStep]:
        """List the recorded steps that the program did not reach."""
        entries = [entry.step for key, entry in self._recorded.items() if key not in self.steps]
        return [ReplayedStep(step.key, step.name, step.kind, "not_reached") for step in entries]

    def _find(self, key: str, name: str, kind: StepKind) -> tuple[JournalEntry, ReplayedStep]:
        entry = self._recorded.get(key)
        step = self.steps[key] = ReplayedStep(key, name, kind, "same", [])
        if entry is None or entry.is_superseded:
            step.verdict = "new"
            if entry is not None:
                step.reasons.append("it failed, and runs again since the task was retried")
            raise ReplayStopped(key)
        if entry.step.state == "started":
            step.verdict = "no_outcome"
            raise ReplayStopped(key)
        if self.is_taken_over(key):
            step.verdict = "taken_over"
        recorded = f"{entry.step.kind} {entry.step.name}"
        if recorded != f"{kind} {name}":
            self.note(key, f"{recorded} before, {kind} {name} now")
        return entry, step
