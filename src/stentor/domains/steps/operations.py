"""Operations on the journal of a task: its worker records steps and begins effects, and whoever sees it reads it.

Those on waits are in `wait_operations`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints, model_validator

from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import check_segment
from stentor.domains.steps import model
from stentor.domains.steps.model import Encoding, StepDraft, StepKind, StepOutcome, StepState
from stentor.domains.steps.service import JournalEntry, StepService
from stentor.domains.steps.starts import AFTER, START, is_start
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Caller,
    Epoch,
    Name,
    OmittedWhenNone,
    ResponseModel,
    TaskId,
    Text,
    Timestamp,
    decode_cursor,
    encode_cursor,
)


def _check_key(key: str) -> str:
    if is_start(key):
        raise ValueError(f"must not be {START} or begin with {AFTER}: the service's own waits do")
    return check_segment(key)


Key = Annotated[str, StringConstraints(min_length=1, max_length=model.MAX_KEY), AfterValidator(_check_key)]
KeyInPath = Annotated[
    str,
    Path(description="The step's key, encoded as one segment of a path: a slash as %2F, # as %23, % as %25."),
    AfterValidator(decode_path_segment),
]
MAX_HANDLED = 1_000
Position = Annotated[int, Field(ge=0, le=2_000_000_000)]


class StepError(RequestModel):
    """The error that a step raised: the name of its class, and what the task fails with if nothing handles it."""

    message: Text
    type: Name = "Error"
    code: Name | None = None
    outcome_class: Literal["agent_failure", "provider_failure"] | None = None


class StepName(RequestModel):
    """`key` identifies the step within its task, in each attempt.

    `position` only helps to notice a changed program: its place among the steps of its scope that run one after
    another, null for one that runs in parallel with others. `handled` are keys of failed steps after which the program
    came to this one: they do not run again when a person retries the task. Give them with what cannot be undone.
    """

    epoch: Epoch
    key: Key
    name: Name
    position: Position | None = None
    handled: Annotated[list[Key], Field(max_length=MAX_HANDLED)] = []

    def to_draft(self, kind: StepKind) -> StepDraft:
        return StepDraft(self.key, self.name, kind, self.position)


class StepIn(StepName):
    """A step that ended: with `value`, which is base64 if `encoding` says so, or with `error`.

    `tool` is the name of the tool that the step called, if it is the call of one: traces show it as such.
    """

    model_config = example_config(epoch=1, key="fetch", name="fetch", value={"pages": 3})

    kind: Literal["step", "effect"] = "step"
    value: Any = None
    encoding: Encoding = "json"
    error: StepError | None = None
    duration_ms: Annotated[int, Field(ge=0, le=2_000_000_000)] = 0
    tool: Name | None = None

    @model_validator(mode="after")
    def _has_one_outcome(self) -> StepIn:
        if self.error is not None and self.value is not None:
            raise ValueError("a step has a value or an error, not both")
        return self

    def to_outcome(self) -> StepOutcome:
        if self.error is not None:
            return StepOutcome(error=self.error.model_dump(exclude_none=True))
        return StepOutcome.of_value(self.value, self.encoding)


class EffectIn(StepName):
    """An effect that is about to be sent."""

    model_config = example_config(epoch=1, key="book-flight", name="book-flight")


class StepOut(ResponseModel):
    """A step of the journal. A value of more than 4,096 bytes is not in a list: read its step.

    `epoch` is the attempt that recorded it, `duration_ms` the time from its start to its end, null without an end.
    `superseded` is true for a failed step that runs again, because the task was retried since. A wait ends by itself at
    `wake_at`; `waits_for` is the name of its signal, its question, or the id of its child. `question`, in lists, is
    what a person is asked about it.
    """

    key: str
    name: str
    kind: StepKind
    state: StepState
    epoch: int
    position: int | None
    started_at: Timestamp
    ended_at: Timestamp | None
    duration_ms: int | None
    size: int
    encoding: Encoding
    value: Any
    value_sha256: Annotated[str | None, Field(validation_alias="value_hash")]
    error: JsonObject | None
    superseded: bool
    wake_at: Timestamp | None
    waits_for: Annotated[str | None, Field(validation_alias="reference")]
    options: list[Any] | None
    provenance_id: Annotated[str, Field(validation_alias="event_id")]
    question: str | None = OmittedWhenNone


class StepPage(ResponseModel):
    steps: list[StepOut]
    next_cursor: str | None


class Recorded(StepOut):
    """`recorded` is false if the journal had the step already: then that one counts.

    A value that was recorded now is not repeated.
    """

    task_id: str
    recorded: bool
    idempotency_key: str | None = OmittedWhenNone


Cursor = Annotated[str | None, Query(max_length=1024, description="The `next_cursor` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=model.MAX_PAGE)]


Out = TypeVar("Out", bound=StepOut)
_ERRORS = (404, 409)


class StepOperations:
    """The operations on the journal of a task."""

    def __init__(self, steps: StepService) -> None:
        self._steps = steps

    @operation("steps.record", "write", "POST /tasks/{task_id}/steps", errors=_ERRORS, fast=True)
    async def record(self, caller: Caller, task_id: TaskId, body: StepIn) -> Recorded:
        """Record how a step ended; the next attempt gets the outcome from the journal. The first one stands."""
        draft, outcome = msgspec.structs.replace(body.to_draft(body.kind), tool=body.tool), body.to_outcome()
        entry = await self._steps.record(caller, task_id, body.epoch, draft, outcome, body.duration_ms, body.handled)
        return recorded_out(task_id, entry)

    @operation("effects.begin", "write", "POST /tasks/{task_id}/effects", errors=_ERRORS, fast=True)
    async def begin(self, caller: Caller, task_id: TaskId, body: EffectIn) -> Recorded:
        """Record that an effect begins, before it is sent to another service with the `idempotency_key`.

        `recorded` is false if it began before. If it has no outcome, it is not known whether it happened.
        """
        entry = await self._steps.begin(caller, task_id, body.epoch, body.to_draft("effect"), body.handled)
        return recorded_out(task_id, entry, idempotency_key=entry.step.event_id)

    @operation("steps.list", "read", "GET /tasks/{task_id}/steps", errors=(404,))
    async def list_steps(
        self, caller: Caller, task_id: TaskId, limit: Limit = model.MAX_PAGE, cursor: Cursor = None
    ) -> StepPage:
        """List the steps of a task in the order in which they were recorded."""
        after = "" if cursor is None else str(decode_cursor(cursor, str)[0])
        entries = await self._steps.list_page(caller, task_id, after, limit + 1)
        following = encode_cursor(entries[limit - 1].step.event_id) if len(entries) > limit else None
        return StepPage(steps=[_step_out(entry) for entry in entries[:limit]], next_cursor=following)

    @operation("steps.read", "read", "GET /tasks/{task_id}/steps/{key}", errors=(404, 500))
    async def read(self, caller: Caller, task_id: TaskId, key: KeyInPath) -> StepOut:
        """Read a step with its value, however long."""
        return _step_out(await self._steps.get(caller, task_id, key))


def _step_out(entry: JournalEntry) -> StepOut:
    return _output(StepOut, entry)


def recorded_out(task_id: str, entry: JournalEntry, **fields: Any) -> Recorded:
    """Return the response to a write of a step."""
    return _output(Recorded, entry, task_id=task_id, recorded=entry.is_new, **fields)


def _output(model: type[Out], entry: JournalEntry, **fields: Any) -> Out:
    step = entry.step
    return model.trusted(
        step,
        value=entry.value,
        superseded=entry.is_superseded,
        options=None if step.options is None else list(step.options),
        question=entry.question,
        **fields,
    )
