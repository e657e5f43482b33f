"""Operations on what tasks wait for: their workers begin waits, people answer questions, anyone else sends signals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field, StringConstraints, model_validator

from stentor.core import jsontext
from stentor.core.db.idempotency import IdempotencyKey
from stentor.domains.steps import model
from stentor.domains.steps.model import StepDraft, WaitKind, describe_question
from stentor.domains.steps.operations import Cursor, Key, KeyInPath, Recorded, StepName, StepOut, recorded_out
from stentor.domains.steps.waits import WaitService
from stentor.domains.tasks.model import TaskStatus
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Caller,
    Epoch,
    IdempotencyHeader,
    Name,
    ResponseModel,
    TaskId,
    Text,
    decode_cursor,
    encode_cursor,
)

Seconds = Annotated[float, Field(ge=0, le=model.MAX_WAIT_SECONDS, allow_inf_nan=False)]
Option = Annotated[str, StringConstraints(min_length=1, max_length=255)]
MAX_OPTIONS, MAX_WAITS, MAX_LISTED = 20, 10_000, 500
_NEEDED = {"sleep": "seconds", "signal": "signal", "question": "question", "child": "child_task_id"}


class WaitIn(StepName):
    """A wait that begins. `seconds` is how long a sleep lasts; any other wait fails after it, or never without it.

    Give several waits the same `together` to be woken once, when all of them have ended.
    """

    model_config = example_config(epoch=1, key="nap", name="nap", kind="sleep", seconds=3600)

    kind: WaitKind
    seconds: Seconds | None = None
    signal: Name | None = None
    question: Annotated[Text, StringConstraints(min_length=1, max_length=4_096)] | None = None
    options: Annotated[list[Option], Field(min_length=1, max_length=MAX_OPTIONS)] | None = None
    child_task_id: TaskId | None = None
    together: Key | None = None

    @model_validator(mode="after")
    def _has_what_it_waits_for(self) -> WaitIn:
        for kind, field in _NEEDED.items():
            is_given = getattr(self, field) is not None
            if kind == self.kind and not is_given:
                raise ValueError(f"a wait of kind {kind} needs {field}")
            if kind != self.kind and is_given and field != "seconds":
                raise ValueError(f"a wait of kind {self.kind} has no {field}")
        if self.options is not None and self.kind != "question":
            raise ValueError("only a question has options")
        return self

    def to_wait(self) -> StepDraft:
        options = None if self.options is None else tuple(self.options)
        reference = self.signal or self.question or self.child_task_id
        return StepDraft(self.key, self.name, self.kind, self.position, self.seconds, reference, options, self.together)


class SuspendIn(RequestModel):
    """The end of an attempt that waits; `keys` are its waits. The first one that ends queues the task again."""

    model_config = example_config(epoch=1, keys=["nap"])

    epoch: Epoch
    keys: Annotated[list[Key], Field(min_length=1, max_length=MAX_WAITS)]


class SuspendOut(ResponseModel):
    """The status is `queued` if one of the waits had ended in the meantime."""

    task_id: str
    status: TaskStatus


class SignalIn(RequestModel):
    model_config = example_config(name="payment-received", value={"amount": 120})

    name: Name
    value: Any = None


class SignalOut(ResponseModel):
    """`received` is false if the task does not wait for the signal yet: it gets it when it does."""

    task_id: str
    received: bool


class AnswerIn(RequestModel):
    model_config = example_config(value="yes")

    value: Any


class ResolveIn(RequestModel):
    """What somebody found out about an effect whose outcome is unknown."""

    model_config = example_config(happened=True, value={"booking": "A-17"}, reason="Seen in the airline's list.")

    happened: bool
    value: Any = None
    reason: Annotated[Text, StringConstraints(max_length=2_000)] = ""

    @model_validator(mode="after")
    def _has_value_if_happened(self) -> ResolveIn:
        if not self.happened and self.value is not None:
            raise ValueError("an effect that did not happen has no value")
        return self


class PendingStep(StepOut):
    """A step that waits for a person; `question` is what the person is asked."""

    task_id: str
    title: str
    agent_name: str | None


class PendingSteps(ResponseModel):
    steps: list[PendingStep]
    next_cursor: str | None


_ERRORS = (404, 409)


class WaitOperations:
    """The operations on waits, and on what people decide about steps."""

    def __init__(self, waits: WaitService) -> None:
        self._waits = waits

    @operation("waits.begin", "write", "POST /tasks/{task_id}/waits", errors=_ERRORS)
    async def wait(self, caller: Caller, task_id: TaskId, body: WaitIn) -> Recorded:
        """Record that a task begins to wait: for a time, a signal, the answer to a question, or a child.

        It may have ended at once, then the `state` says so. Otherwise suspend the task, or look again later.
        """
        entry = await self._waits.begin(caller, task_id, body.epoch, body.to_wait(), body.handled)
        return recorded_out(task_id, entry)

    @operation("waits.suspend", "write", "POST /tasks/{task_id}/suspend", errors=_ERRORS)
    async def suspend(self, caller: Caller, task_id: TaskId, body: SuspendIn) -> SuspendOut:
        """End an attempt until one of its waits has ended; then the task is queued again."""
        task = await self._waits.suspend(caller, task_id, body.epoch, body.keys)
        return SuspendOut(task_id=task_id, status=task.status)

    @operation("waits.signal", "write", "POST /tasks/{task_id}/signals", errors=(*_ERRORS, 422))
    async def signal(
        self, caller: Caller, task_id: TaskId, body: SignalIn, idempotency_key: IdempotencyHeader = None
    ) -> SignalOut:
        """Send a signal to a task. It is kept until the task waits for a signal of this name.

        A failed task keeps it for its retry; one that is completed or cancelled, or whose deadline has passed, is 409.
        With an `Idempotency-Key`, a repeated request sends one.
        """
        key = None
        if idempotency_key is not None:
            digest = jsontext.sorted_digest([task_id, body.model_dump()])
            key = IdempotencyKey(caller.tenant, caller.name, "tasks/signals", idempotency_key, digest)
        received = await self._waits.signal(caller, task_id, body.name, body.value, key)
        return SignalOut(task_id=task_id, received=received)

    @operation("waits.answer", "approve", "POST /tasks/{task_id}/steps/{key}/answer", errors=_ERRORS)
    async def answer(self, caller: Caller, task_id: TaskId, key: KeyInPath, body: AnswerIn) -> Recorded:
        """Answer the question that a task asked; the task continues with the answer.

        The same answer of yours again gets the recorded one; another one is 409.
        """
        return recorded_out(task_id, await self._waits.answer(caller, task_id, key, body.value))

    @operation("effects.resolve", "approve", "POST /tasks/{task_id}/steps/{key}/resolve", errors=_ERRORS)
    async def resolve(self, caller: Caller, task_id: TaskId, key: KeyInPath, body: ResolveIn) -> Recorded:
        """Record whether an effect happened that has no outcome; then retry the task.

        The same of yours again gets what is recorded; something else is 409.
        """
        entry = await self._waits.resolve(caller, task_id, key, body.value, body.reason, happened=body.happened)
        return recorded_out(task_id, entry)

    @operation("decisions.list", "read", "GET /decisions")
    async def list_decisions(
        self, caller: Caller, limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 100, cursor: Cursor = None
    ) -> PendingSteps:
        """List what people have to do, oldest first: questions to answer, effects to find out about."""
        after = "" if cursor is None else str(decode_cursor(cursor, str)[0])
        found = await self._waits.list_for_people(caller, after, limit + 1)
        following = encode_cursor(found[limit - 1][0][3].event_id) if len(found) > limit else None
        return PendingSteps(
            next_cursor=following,
            steps=[
                PendingStep.of(
                    step,
                    value=None,
                    superseded=False,
                    task_id=task_id,
                    title=title,
                    agent_name=None if agent is None else agent.name,
                    question=describe_question(step, agent),
                )
                for (task_id, title, _, step), agent in found[:limit]
            ],
        )
