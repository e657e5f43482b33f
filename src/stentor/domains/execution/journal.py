"""The journal of an attempt that runs in this service: what an earlier attempt did is taken from there, not done again.

The same for workers is in their SDK; both write to `domains/steps`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from stentor.auth.principal import Principal
from stentor.core.jsontext import JsonObject
from stentor.domains.execution.model import ProviderFailed
from stentor.domains.execution.spans import step_trace
from stentor.domains.steps.model import MAX_PAGE, StepDraft, StepKind, StepOutcome
from stentor.domains.steps.service import JournalEntry, StepService
from stentor.domains.tasks.model import TaskClaim


class EffectUnknown(ProviderFailed):
    """A call was sent that must not be repeated, and nobody knows whether it had its effect. A person must find out."""

    def __init__(self, name: str, key: str, reason: str = "") -> None:
        message = (
            f"It is not known whether the effect {name!r} (idempotency key {key}) happened. It is not sent again. Find "
            "out, record it with `stentor task resolve`, then retry the task."
        )
        super().__init__("EFFECT_UNKNOWN", f"{reason} {message}" if reason else message)


class EffectFailed(Exception):
    """The effect certainly did not happen. `error` is recorded as its outcome."""

    def __init__(self, error: JsonObject) -> None:
        super().__init__(error)
        self.error = error


class StepJournal(Protocol):
    """What a program that runs in this service needs of a journal: see AttemptJournal."""

    async def load(self) -> None: ...
    def is_taken_over(self, key: str) -> bool: ...
    def has(self, key: str) -> bool: ...
    async def step(
        self, key: str, name: str, work: Callable[[], Awaitable[Any]], request: Callable[[], JsonObject] | None = None
    ) -> Any: ...
    async def effect(self, key: str, name: str, work: Callable[[str], Awaitable[Any]]) -> Any: ...


class RecordedSteps:
    """What the journal of a task has, by the keys of the steps."""

    def __init__(self, steps: StepService, principal: Principal, task_id: str) -> None:
        self._steps, self._principal, self._task_id = steps, principal, task_id
        self._recorded: dict[str, JournalEntry] = {}

    async def load(self) -> None:
        """Read the journal. Raises NotFound for a task that the principal may not see."""
        after = ""
        while True:
            page = await self._steps.list_page(self._principal, self._task_id, after, MAX_PAGE)
            self._recorded |= {entry.step.key: entry for entry in page}
            if len(page) < MAX_PAGE:
                return
            after = page[-1].step.event_id

    def is_taken_over(self, key: str) -> bool:
        """Return whether a step was recorded for another task, from which this one continues."""
        return key in self._recorded and self._recorded[key].step.epoch == 0

    def has(self, key: str) -> bool:
        """Return whether a step was recorded."""
        return key in self._recorded

    async def _read_outcome(self, entry: JournalEntry) -> Any:
        """Return the outcome of a step as the program gets it: its value, or `{"error": ...}`. Raises EffectUnknown.

        Whether a call is a step or an effect may have changed since, so this holds for both.
        """
        if entry.step.state == "started":
            raise EffectUnknown(entry.step.name, entry.step.event_id)
        if entry.step.error is not None:
            return {"error": entry.step.error}
        if entry.step.value_hash is None:
            return entry.value
        return (await self._steps.get(self._principal, self._task_id, entry.step.key)).value


class AttemptJournal(RecordedSteps):
    """Steps and effects of one attempt. Their keys must be the same in every attempt."""

    def __init__(self, steps: StepService, claim: TaskClaim) -> None:
        # Recorded as the service itself: the submitter's key may lack the permission to write to journals.
        principal = Principal("stentor", "admin", frozenset(("admin",)), claim.tenant)
        super().__init__(steps, principal, claim.task_id)
        self._claim = claim
        self._has_request = False

    async def load(self) -> None:
        """Read what earlier attempts recorded, or the task from which this one continues."""
        # Otherwise nothing can be recorded yet, and a first attempt costs no read.
        if self._claim.epoch > 1 or self._claim.metadata.rerun_from is not None:
            await super().load()

    async def step(
        self, key: str, name: str, work: Callable[[], Awaitable[Any]], request: Callable[[], JsonObject] | None = None
    ) -> Any:
        """Return the recorded value of a step; without one do it and record what it returns, a JSON value.

        An error of `work` is not recorded: the next attempt tries again. `request` describes for replays what the
        outcome comes from. It is recorded once: within an attempt, only recorded outcomes are added to it.
        """
        entry = self._recorded.get(key)
        if entry is not None:
            return await self._read_outcome(entry)
        started = time.perf_counter()
        with step_trace(key):
            value = await work()
        described = None if request is None or self._has_request else request()
        await self._record(key, name, "step", started, StepOutcome.of_value(value), described)
        self._has_request = self._has_request or described is not None
        return value

    async def effect(self, key: str, name: str, work: Callable[[str], Awaitable[Any]]) -> Any:
        """Return the recorded value of an effect; without one run `work` once, with an idempotency key.

        Raises EffectUnknown if it began in an earlier attempt and has no outcome. When `work` raises, its effect is
        unknown as well, unless it raises EffectFailed: that is recorded, and returned as `{"error": ...}`.
        """
        entry = self._recorded.get(key)
        if entry is None or entry.is_superseded:
            draft = StepDraft(key, name, "effect")
            began = await self._steps.begin(self._principal, self._claim.task_id, self._claim.epoch, draft)
            if began.is_new:
                started = time.perf_counter()
                try:
                    with step_trace(key):
                        value = await work(began.step.event_id)
                except EffectFailed as failure:
                    await self._record(key, name, "effect", started, StepOutcome(error=failure.error))
                    return {"error": failure.error}
                await self._record(key, name, "effect", started, StepOutcome.of_value(value))
                return value
            entry = began
        return await self._read_outcome(entry)

    async def _record(
        self,
        key: str,
        name: str,
        kind: StepKind,
        started: float,
        outcome: StepOutcome,
        request: JsonObject | None = None,
    ) -> None:
        duration_ms = int((time.perf_counter() - started) * 1000)
        claim = self._claim
        draft = StepDraft(key, name, kind, request=request)
        await self._steps.record(self._principal, claim.task_id, claim.epoch, draft, outcome, duration_ms)
