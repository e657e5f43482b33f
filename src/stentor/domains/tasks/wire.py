"""Requests and responses of the operations on tasks. Source: core contract, "Kernel (tasks)"."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from stentor.core.clock import micros_from_datetime
from stentor.core.jsontext import JsonObject
from stentor.core.validation.text_checks import check_start, check_title
from stentor.domains.atp.model import Mode, Priority
from stentor.domains.routing.penalties import Preference
from stentor.domains.tasks import model
from stentor.domains.tasks.model import OutcomeClass, TaskDraft, TaskMetadata, TaskStatus
from stentor.domains.tasks.reading.progress import NoticeCode, WaitingFor
from stentor.domains.tasks.submission.drafts import MAX_TITLE_CHARACTERS
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    GradeComment,
    GradeValue,
    Name,
    OmittedWhenNone,
    ResponseModel,
    Text,
    Time,
    Timestamp,
    UuidText,
    VisibleName,
)

MAX_AFTER = 100
NEW_LIST = Field(default_factory=list, json_schema_extra={"default": []})
"""An empty list as the default. Pydantic would copy one that is given as `= []` with `copy.deepcopy`, for each task."""


class TemplateMetadata(RequestModel):
    user_id: UuidText | None = None
    priority: Literal["high", "normal", "low"] | None = None
    tags: Annotated[list[Name], Field(max_length=64), NEW_LIST]
    prefer: Preference | None = None


class MetadataIn(TemplateMetadata):
    retry_count: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    parent_task_id: Annotated[
        Name | None,
        Field(description="The task that this one is a subtask of: one that you see and that was not cancelled."),
    ] = None
    grant_id: UuidText | None = None


# Shared by the tasks that have none, which are most: nobody changes it.
NO_TEMPLATE_METADATA, NO_METADATA = TemplateMetadata.model_validate({}), MetadataIn.model_validate({})


class LimitIn(RequestModel):
    """At most `max` tasks with the key execute at a time; with `per_seconds`, at most `max` start in any such time."""

    key: Name
    max: Annotated[int, Field(ge=1, le=model.MAX_LIMIT)]
    per_seconds: Annotated[int, Field(ge=1, le=model.MAX_LIMIT_SECONDS)] | None = None


class TaskTemplate(RequestModel):
    """The fields of a task that may be submitted more than once."""

    model_config = example_config(
        type="summarize",
        input={
            "text": "Agents do tasks. Stentor routes each task to the best agent. It records why.",
            "sentences": 1,
        },
        required_capabilities=["summarize"],
        metadata={"priority": "high"},
    )

    type: VisibleName
    input: Any
    required_capabilities: Annotated[list[Name], Field(max_length=64), NEW_LIST]
    timeout_seconds: Annotated[int, Field(ge=1, le=model.MAX_TIMEOUT_SECONDS)] = model.DEFAULT_TIMEOUT_SECONDS
    queue_timeout_seconds: Annotated[int, Field(ge=1, le=model.MAX_QUEUE_TIMEOUT_SECONDS)] | None = None
    agent_preference: UuidText | None = None
    title: (
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_TITLE_CHARACTERS), AfterValidator(check_title)]
        | None
    ) = None
    limit: Annotated[LimitIn | None, Field(description="Above it, the task stays queued until there is room.")] = None
    session: Annotated[
        Name | None,
        Field(description="The id of a session: an `llm` agent continues its conversation, a task at a time."),
    ] = None
    max_cost_usd: Annotated[
        Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)] | None,
        Field(description="What the model calls of the task and of all its subtasks may cost together, in US dollars."),
    ] = None
    metadata: Annotated[TemplateMetadata, Field(default_factory=lambda: NO_TEMPLATE_METADATA)]

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
                max_cost_usd=self.max_cost_usd,
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
    start_at: Annotated[
        Annotated[Time, AfterValidator(check_start)] | None,
        Field(description="Not queued before this time, at most ten years ahead."),
    ] = None
    after: Annotated[
        list[Name],
        Field(max_length=MAX_AFTER, description="Queued when these tasks have completed; aborted if one does not."),
        NEW_LIST,
    ]
    deadline: Annotated[
        Annotated[Time, AfterValidator(check_start)] | None,
        Field(description="If they have not ended by then, the task and its subtasks are aborted."),
    ] = None
    metadata: Annotated[MetadataIn, Field(default_factory=lambda: NO_METADATA)]

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
            deadline=None if self.deadline is None else micros_from_datetime(self.deadline),
        )


class RerunIn(RequestModel):
    model_config = example_config(agent_preference="0190f5f0-0000-7000-8000-000000000000")

    agent_preference: UuidText | None = None
    input: Annotated[Any, Field(description="Another input, null included. Not with `from_step`.")] = None
    from_step: Annotated[
        Annotated[Text, StringConstraints(min_length=1, max_length=1024)] | None,
        Field(description="The key of a step. The outcomes before it are kept; it and the steps after it run again."),
    ] = None


class RejectTask(RequestModel):
    model_config = example_config(reason="It would write outside its folder.")

    reason: Text | None = None


class AtpHeaderOut(ResponseModel):
    """The ATP header under which work runs."""

    mode: Mode
    context: str
    priority: Priority
    actionType: str  # noqa: N815
    targetZone: str  # noqa: N815
    specialNotes: str | None = OmittedWhenNone  # noqa: N815


class TaskAtp(ResponseModel):
    header: AtpHeaderOut


class SubmittedOut(ResponseModel):
    """`notice` says why the task may have to wait for its agent; a program compares `notice_code`."""

    task_id: str
    status: TaskStatus
    estimated_start: Timestamp
    estimated_completion: Timestamp
    notice: str | None
    notice_code: NoticeCode | None
    provenance_id: str
    atp: TaskAtp


class TaskWaitOut(ResponseModel):
    """One thing that a task waits for, in words; it ends at `until` by itself, if that is not null.

    `key` is its step in the journal, `other_task_id` the task that it waits for.
    """

    kind: WaitingFor
    text: str
    until: Timestamp | None
    key: str | None
    other_task_id: str | None


def _metadata_to_json(metadata: TaskMetadata) -> JsonObject:
    """Return the metadata of a task without the length of the input, which only routing uses."""
    fields: JsonObject = msgspec.to_builtins(metadata)
    fields.pop("input_length", None)
    return fields


class TaskOut(ResponseModel):
    """A task. `duration_ms` is that of the last attempt, `total_duration_ms` the time from the first start to the end.

    `notice` says why it is still queued, that its agent is silent, or how many subtasks are still to be cancelled; a
    program compares `notice_code`. `agent_name` and `waits_for`, at most 20 waits, are only in the response that reads
    one task.
    """

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
    metadata: Annotated[JsonObject, BeforeValidator(_metadata_to_json)]
    attempts: Annotated[int, Field(validation_alias="epoch")]
    outcome_class: OutcomeClass | None
    learning_eligible: bool | None
    provenance_id: str
    queue_timeout_seconds: int | None
    notice: str | None
    notice_code: NoticeCode | None
    total_duration_ms: int | None
    deadline: Annotated[Timestamp | None, Field(validation_alias="end_by")] = OmittedWhenNone
    agent_name: str | None = OmittedWhenNone
    waits_for: list[TaskWaitOut] | None = OmittedWhenNone


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
    attempts: Annotated[int, Field(validation_alias="epoch")]
    total_duration_ms: int | None


class TaskPageOut(ResponseModel):
    """Where `total_is_exact` is false, at least `total` tasks match.

    `unindexed_events`, with `text` only: events of the run log that the search index does not cover yet. Tasks that
    these concern may be missing.
    """

    tasks: list[TaskRowOut]
    total: int
    total_is_exact: bool
    limit: int
    offset: int
    next_cursor: str | None
    unindexed_events: int | None


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
