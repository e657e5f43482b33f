"""Operations on tasks and their grades. Source: core contract, "Kernel (tasks)".

Inputs and outputs stand first, then the functions, then the table. Grants have their own module, `grant_operations`.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query
from pydantic import Field, StringConstraints, field_validator

from stentor.core.clock import micros_from_datetime
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.routing.ranking import Preference
from stentor.domains.tasks import events, model
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.model import OutcomeClass, TaskDraft, TaskFilter, TaskMetadata, TaskStatus
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService
from stentor.domains.tasks.titles import MAX_TITLE_CHARACTERS
from stentor.web.operations import Operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    After,
    Caller,
    GradeComment,
    GradeValue,
    IdempotencyHeader,
    Name,
    Offset,
    OmittedWhenNone,
    ResponseModel,
    StructFields,
    TaskId,
    Text,
    Time,
    Timestamp,
    UuidText,
    decode_cursor,
    encode_cursor,
)

MAX_AFTER = 100
MAX_DELAY_SECONDS = 10 * 365 * 86_400


class TemplateMetadata(RequestModel):
    user_id: UuidText | None = None
    priority: Literal["high", "normal", "low"] | None = None
    tags: Annotated[list[Name], Field(max_length=64)] = []
    prefer: Preference | None = None


class MetadataIn(TemplateMetadata):
    retry_count: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    parent_task_id: Name | None = None
    grant_id: UuidText | None = None


class LimitIn(RequestModel):
    """At most `max` tasks with the key execute at a time; with `per_seconds`, at most `max` start in any such time."""

    key: Name
    max: Annotated[int, Field(ge=1, le=model.MAX_LIMIT)]
    per_seconds: Annotated[int, Field(ge=1, le=model.MAX_LIMIT_SECONDS)] | None = None


class TaskTemplate(RequestModel):
    """What is said of a task that may be submitted more than once."""

    model_config = example_config(
        type="summarize",
        input={
            "text": "Agents do tasks. Stentor routes each task to the best agent. It records why.",
            "sentences": 1,
        },
        required_capabilities=["summarize"],
        metadata={"priority": "high"},
    )

    type: Name
    input: Any
    required_capabilities: Annotated[list[Name], Field(max_length=64)] = []
    timeout_seconds: Annotated[int, Field(ge=1, le=model.MAX_TIMEOUT_SECONDS)] = model.DEFAULT_TIMEOUT_SECONDS
    queue_timeout_seconds: Annotated[int, Field(ge=1, le=model.MAX_QUEUE_TIMEOUT_SECONDS)] | None = None
    agent_preference: UuidText | None = None
    title: Annotated[Name, StringConstraints(max_length=MAX_TITLE_CHARACTERS)] | None = None
    limit: Annotated[LimitIn | None, Field(description="Above it, the task stays queued until there is room.")] = None
    session: Annotated[
        Name | None,
        Field(description="The id of a session: an `llm` agent continues its conversation, a task at a time."),
    ] = None
    metadata: Annotated[TemplateMetadata, Field(default_factory=TemplateMetadata)]

    def to_draft(self) -> TaskDraft:
        meta = self.metadata
        return TaskDraft(
            self.type,
            self.input,
            required_capabilities=tuple(dict.fromkeys(self.required_capabilities)),
            timeout_seconds=self.timeout_seconds,
            agent_preference=self.agent_preference,
            metadata=TaskMetadata(
                meta.user_id,
                meta.priority,
                tags=tuple(meta.tags),
                prefer=meta.prefer,
                title=self.title,
                limit=self._limit(),
                session=self.session,
            ),
            queue_timeout_seconds=self.queue_timeout_seconds,
        )

    def _limit(self) -> model.TaskLimit | None:
        """Return the limit that was given, or else the one of a session: tasks continue it one after the other."""
        if self.limit is not None:
            return model.TaskLimit(**self.limit.model_dump())
        return None if self.session is None else model.TaskLimit(f"session/{self.session}", 1)


class TaskIn(TaskTemplate):
    id: Name | None = None
    start_at: Annotated[Time | None, Field(description="Not queued before this time, at most ten years ahead.")] = None
    after: Annotated[
        list[Name],
        Field(max_length=MAX_AFTER, description="Queued when these tasks have completed; aborted if one does not."),
    ] = []
    metadata: Annotated[MetadataIn, Field(default_factory=MetadataIn)]

    def to_draft(self) -> TaskDraft:
        draft, meta = super().to_draft(), self.metadata
        return msgspec.structs.replace(
            draft,
            id=self.id,
            metadata=msgspec.structs.replace(
                draft.metadata,
                retry_count=meta.retry_count,
                parent_task_id=meta.parent_task_id,
                grant_id=meta.grant_id,
            ),
            start_at=None if self.start_at is None else micros_from_datetime(self.start_at),
            after=tuple(dict.fromkeys(self.after)),
        )

    @field_validator("start_at")
    @classmethod
    def _is_near(cls, moment: datetime | None) -> datetime | None:
        if moment is not None and moment.timestamp() > time.time() + MAX_DELAY_SECONDS:
            raise ValueError("must be at most ten years ahead")
        return moment


class RerunIn(RequestModel):
    model_config = example_config(agent_preference="0190f5f0-0000-7000-8000-000000000000")

    agent_preference: UuidText | None = None
    from_step: Annotated[
        Annotated[Text, StringConstraints(min_length=1, max_length=1024)] | None,
        Field(description="The key of a step. The outcomes before it are kept; it and the steps after it run again."),
    ] = None


class RejectTask(RequestModel):
    model_config = example_config(reason="It would write outside its folder.")

    reason: Text | None = None


class AtpHeaderOut(ResponseModel):
    """The ATP header under which work runs."""

    mode: str
    context: str
    priority: str
    actionType: str  # noqa: N815
    targetZone: str  # noqa: N815
    specialNotes: str | None = OmittedWhenNone  # noqa: N815


class TaskAtp(ResponseModel):
    header: AtpHeaderOut


class SubmittedOut(ResponseModel):
    task_id: str
    status: TaskStatus
    estimated_start: Timestamp
    estimated_completion: Timestamp
    notice: str | None
    provenance_id: str
    atp: TaskAtp


class TaskOut(ResponseModel):
    task_id: str
    title: str
    type: str
    status: TaskStatus
    assigned_agent: str | None
    start_time: Timestamp | None
    completion_time: Timestamp | None
    duration_ms: int | None
    result: Any
    error: Any
    created_at: Timestamp
    timeout_seconds: int
    required_capabilities: list[str]
    agent_preference: str | None
    metadata: StructFields
    attempts: Annotated[int, Field(validation_alias="epoch")]
    outcome_class: OutcomeClass | None
    learning_eligible: bool | None
    provenance_id: str
    queue_timeout_seconds: int | None
    notice: str | None


class TaskInputOut(ResponseModel):
    task_id: str
    input: Any


class TaskRowOut(ResponseModel):
    task_id: str
    title: str
    status: TaskStatus
    assigned_agent: str | None
    agent_name: str | None
    type: str
    created_at: Timestamp
    completed_at: Timestamp | None
    duration_ms: int | None


class TaskPageOut(ResponseModel):
    """Where `total_is_exact` is false, at least `total` tasks match."""

    tasks: list[TaskRowOut]
    total: int
    total_is_exact: bool
    limit: int
    offset: int
    next_cursor: str | None


class CancelledOut(ResponseModel):
    task_id: str
    status: Literal["cancelled"]
    cancelled_at: Timestamp


class GradeIn(RequestModel):
    model_config = example_config(grade=0.8, comment="Right, but twice as long as needed.")

    grade: GradeValue
    comment: GradeComment | None = None


class GradeOut(ResponseModel):
    task_id: str
    agent_id: str
    grade: float
    comment: str | None
    graded_by: str
    graded_at: Timestamp
    learned: bool


class TaskOperations:
    """What callers can do with tasks. Each method is an operation: see the table below."""

    def __init__(self, submission: SubmissionService, tasks: TaskService, grades: GradeService) -> None:
        self._submission, self._tasks, self._grades = submission, tasks, grades

    async def submit(self, caller: Caller, body: TaskIn, idempotency_key: IdempotencyHeader = None) -> SubmittedOut:
        """Route a task to the best agent that may have it, and queue it."""
        draft = body.to_draft()
        key = None
        if idempotency_key is not None:
            key = IdempotencyKey(caller.tenant, caller.name, "tasks", idempotency_key, model.compute_body_hash(draft))
        result = await self._submission.submit(caller, draft, key)
        return SubmittedOut.of(result, **events.build_envelope(result.provenance_id, result.priority))

    async def list_tasks(
        self,
        caller: Caller,
        status: Annotated[TaskStatus | None, Query()] = None,
        agent_id: Annotated[str | None, Query(max_length=255)] = None,
        type: Annotated[Name | None, Query()] = None,  # noqa: A002 - the name of the field
        submitted_by: Annotated[Name | None, Query(description="The name of a key.")] = None,
        text: Annotated[Text | None, Query(description="Words that all occur in a task; see the operation.")] = None,
        created_after: After = None,
        ref: Annotated[Name | None, Query()] = None,
        parent_task_id: Annotated[Name | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        cursor: Annotated[str | None, Query(max_length=1024)] = None,
    ) -> TaskPageOut:
        """The tasks that match, newest first; without a filter all of them.

        `ref` is the beginning or the end of an id, the exact id comes first; `parent_task_id` lists the subtasks of a
        task, oldest first. Each of these two goes with no other filter. `text` searches title, type, input, result and
        error for all of its words, `"a phrase"` and `begin*`; new and ended tasks are found within seconds.
        """
        if agent_id is not None and "\0" in agent_id:
            raise InvalidRequest("agent_id: must not contain the character NUL")
        after = None if created_after is None else micros_from_datetime(created_after)
        names = [name for name, value in (("ref", ref), ("parent_task_id", parent_task_id)) if value is not None]
        others = (status, agent_id, type, submitted_by, text, after, cursor, offset or None)
        if len(names) > 1 or (names and any(value is not None for value in others)):
            raise InvalidRequest(f"{names[0]}: goes with no other filter.")
        task_filter = TaskFilter(
            status, agent_id, after, ref=ref, parent=parent_task_id, type=type, submitted_by=submitted_by
        )
        following: str | None
        if text is not None:
            if offset:
                raise InvalidRequest("offset: does not go with text; use the cursor.")
            position = None if cursor is None else decode_cursor(cursor, int)[0]
            page, before = await self._tasks.search_page(caller, task_filter, text, position, limit)
            following = None if before is None else encode_cursor(before)
        else:
            start = None if cursor is None else decode_cursor(cursor, int, str)
            page = await self._tasks.list_page(
                caller, msgspec.structs.replace(task_filter, before=start), limit, offset
            )
            following = encode_cursor(page.rows[-1].created_at, page.rows[-1].task_id) if page.has_more else None
        rows = [
            TaskRowOut.of(row, agent_name=self._tasks.agent_name(caller.tenant, row.assigned_agent))
            for row in page.rows
        ]
        return TaskPageOut.of(page, tasks=rows, limit=limit, offset=offset, next_cursor=following)

    async def read(self, caller: Caller, task_id: TaskId) -> TaskOut:
        """One task by its exact id, in any state."""
        task, notice = await self._tasks.get_with_notice(caller, task_id)
        return TaskOut.of(task, notice=notice)

    async def read_input(self, caller: Caller, task_id: TaskId) -> TaskInputOut:
        """The whole input of a task, as its agent gets it."""
        return TaskInputOut(task_id=task_id, input=await self._tasks.read_input(caller, task_id))

    async def cancel(self, caller: Caller, task_id: TaskId) -> CancelledOut:
        """Cancel a task that has not ended; its work is stopped."""
        return CancelledOut(task_id=task_id, status="cancelled", cancelled_at=await self._tasks.cancel(caller, task_id))

    async def rerun(self, caller: Caller, task_id: TaskId, body: RerunIn | None = None) -> SubmittedOut:
        """Submit a task again as a new task with the same input, in any status, on another agent if one is given.

        With `from_step` the new task goes on from that step, with the outcomes of those before it.
        """
        body = body or RerunIn()
        draft = await self._tasks.prepare_rerun(caller, task_id, body.agent_preference, body.from_step)
        result = await self._submission.submit(caller, draft)
        return SubmittedOut.of(result, **events.build_envelope(result.provenance_id, result.priority))

    async def retry(self, caller: Caller, task_id: TaskId) -> TaskOut:
        """A new attempt of a failed or aborted task, routed anew."""
        return TaskOut.of(await self._tasks.retry(caller, task_id), notice=None)

    async def approve(self, caller: Caller, task_id: TaskId) -> TaskOut:
        """Let a task that waits for approval go into the queue."""
        return TaskOut.of(await self._tasks.approve(caller, task_id), notice=None)

    async def reject(self, caller: Caller, task_id: TaskId, body: RejectTask | None = None) -> TaskOut:
        """Refuse the approval; the task is aborted."""
        return TaskOut.of(await self._tasks.reject(caller, task_id, body.reason if body else None), notice=None)

    async def grade(self, caller: Caller, task_id: TaskId, body: GradeIn) -> GradeOut:
        """Say what a completed task was worth, from 0 to 1; what was learned from it is corrected, once."""
        return GradeOut.of(await self._grades.grade_task(caller, task_id, body.grade, body.comment))

    async def read_grade(self, caller: Caller, task_id: TaskId) -> GradeOut:
        """The grade of a task."""
        grade = await self._grades.find_grade(caller, task_id)
        if grade is None:
            raise NotFound("The task has no grade.")
        return GradeOut.of(grade)


OPERATIONS = [
    Operation(
        "tasks.submit", "write", TaskOperations.submit, "POST /tasks", 202, (409, 422), fast=True, grpc="SubmitTask"
    ),
    Operation("tasks.list", "read", TaskOperations.list_tasks, "GET /tasks"),
    Operation("tasks.get", "read", TaskOperations.read, "GET /tasks/{task_id}", errors=(404,), grpc="GetTask"),
    Operation("tasks.input", "read", TaskOperations.read_input, "GET /tasks/{task_id}/input", errors=(404,)),
    Operation(
        "tasks.cancel",
        "write",
        TaskOperations.cancel,
        "POST /tasks/{task_id}/cancel",
        errors=(404, 409),
        grpc="CancelTask",
    ),
    Operation("tasks.retry", "write", TaskOperations.retry, "POST /tasks/{task_id}/retry", 202, (404, 409, 422)),
    Operation("tasks.rerun", "write", TaskOperations.rerun, "POST /tasks/{task_id}/rerun", 202, (404, 409, 422)),
    Operation("tasks.approve", "approve", TaskOperations.approve, "POST /tasks/{task_id}/approve", errors=(404, 409)),
    Operation("tasks.reject", "approve", TaskOperations.reject, "POST /tasks/{task_id}/reject", errors=(404, 409)),
    Operation(
        "tasks.grade", "write", TaskOperations.grade, "POST /tasks/{task_id}/grade", errors=(404, 409), grpc="GradeTask"
    ),
    Operation(
        "tasks.get_grade",
        "read",
        TaskOperations.read_grade,
        "GET /tasks/{task_id}/grade",
        errors=(404,),
        grpc="GetGrade",
    ),
]
