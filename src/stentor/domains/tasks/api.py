"""Routes of tasks. Source: core contract, "Kernel (tasks)".

Routes of grades.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request

from stentor.auth.principal import Principal
from stentor.core.clock import format_iso, format_iso_or_none, micros_from_datetime
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.routing.ranking import Preference
from stentor.domains.tasks import events, model
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.model import Grade, OutcomeClass, Task, TaskDraft, TaskFilter, TaskMetadata, TaskStatus
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService
from stentor.web.fast_routes import FastRoute
from stentor.web.routes import RequestModel, example_config, get_principal, requires_permission
from stentor.web.wire import (
    After,
    Caller,
    GradeComment,
    GradeValue,
    IdempotencyHeader,
    JsonResponse,
    Name,
    Offset,
    ResponseModel,
    TaskId,
    Text,
    Timestamp,
    UuidText,
    api_router,
    decode_cursor,
    encode_cursor,
    error_responses,
    next_link,
)


class MetadataIn(RequestModel):
    user_id: UuidText | None = None
    priority: Literal["high", "normal", "low"] | None = None
    retry_count: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    tags: Annotated[list[Name], Field(max_length=64)] = []
    parent_task_id: Name | None = None
    grant_id: UuidText | None = None
    prefer: Preference | None = None


class Submit(RequestModel):
    model_config = example_config(
        type="summarize",
        input={
            "text": "Agents do tasks. Stentor routes each task to the best agent. It records why.",
            "sentences": 1,
        },
        required_capabilities=["summarize"],
        metadata={"priority": "high"},
    )

    id: Name | None = None
    type: Name
    input: Any
    required_capabilities: Annotated[list[Name], Field(max_length=64)] = []
    timeout_seconds: Annotated[int, Field(ge=1, le=model.MAX_TIMEOUT_SECONDS)] = model.DEFAULT_TIMEOUT_SECONDS
    queue_timeout_seconds: Annotated[int, Field(ge=1, le=model.MAX_QUEUE_TIMEOUT_SECONDS)] | None = None
    agent_preference: UuidText | None = None
    metadata: Annotated[MetadataIn, Field(default_factory=MetadataIn)]

    def to_draft(self) -> TaskDraft:
        meta = self.metadata
        return TaskDraft(
            self.type,
            self.input,
            self.id,
            tuple(dict.fromkeys(self.required_capabilities)),
            self.timeout_seconds,
            self.agent_preference,
            TaskMetadata(
                meta.user_id,
                meta.priority,
                meta.retry_count,
                tuple(meta.tags),
                meta.parent_task_id,
                grant_id=meta.grant_id,
                prefer=meta.prefer,
            ),
            self.queue_timeout_seconds,
        )


class Reject(RequestModel):
    model_config = example_config(reason="It would write outside its folder.")

    reason: Text | None = None


class HeaderOut(ResponseModel):
    """The ATP header under which work runs."""

    mode: str
    context: str
    priority: str
    actionType: str  # noqa: N815
    targetZone: str  # noqa: N815
    specialNotes: str | None = None  # noqa: N815


class AtpOut(ResponseModel):
    header: HeaderOut


class SubmittedOut(ResponseModel):
    task_id: str
    status: TaskStatus
    estimated_start: Timestamp
    estimated_completion: Timestamp
    notice: str | None
    provenance_id: str
    atp: AtpOut


class TaskOut(ResponseModel):
    task_id: str
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
    metadata: dict[str, Any]
    attempts: int
    outcome_class: OutcomeClass | None
    learning_eligible: bool | None
    provenance_id: str
    queue_timeout_seconds: int | None
    notice: str | None


class Row(ResponseModel):
    task_id: str
    status: TaskStatus
    assigned_agent: str | None
    type: str
    created_at: Timestamp
    completed_at: Timestamp | None


class Page(ResponseModel):
    tasks: list[Row]
    total: int
    limit: int
    offset: int
    next_cursor: str | None


class CancelledOut(ResponseModel):
    task_id: str
    status: Literal["cancelled"]
    cancelled_at: Timestamp


def router(submission: SubmissionService, tasks: TaskService) -> APIRouter:
    api = api_router("/tasks", tags=["tasks"])

    async def submit(request: Request, body: Submit, idempotency_key: IdempotencyHeader = None) -> JsonResponse:
        """Route a task to the best agent that may have it, and queue it."""
        caller = get_principal(request)
        draft = body.to_draft()
        done = await submission.submit(caller, draft, build_idempotency_key(caller, draft, idempotency_key))
        return JsonResponse(
            {
                "task_id": done.task_id,
                "status": done.status,
                "estimated_start": format_iso(done.estimated_start),
                "estimated_completion": format_iso(done.estimated_completion),
                "notice": done.notice,
                **events.build_envelope(done.provenance_id, done.priority),
            },
            202,
        )

    api.add_api_route(
        "",
        submit,
        methods=["POST"],
        status_code=202,
        response_model=SubmittedOut,
        responses=error_responses(409, 422),
        route_class_override=FastRoute,
    )

    @api.get("", response_model=Page)
    async def list_tasks(
        request: Request,
        caller: Caller,
        status: Annotated[TaskStatus | None, Query()] = None,
        agent_id: Annotated[str | None, Query(max_length=255)] = None,
        created_after: After = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        cursor: Annotated[str | None, Query(max_length=1024)] = None,
    ) -> JsonResponse:
        """The tasks that match, newest first; without a filter all of them."""
        if agent_id is not None and "\0" in agent_id:
            raise InvalidRequest("agent_id: must not contain the character NUL")
        after = None if created_after is None else micros_from_datetime(created_after)
        before = None if cursor is None else decode_cursor(cursor, int, str)
        wanted = TaskFilter(status, agent_id, after, before)
        page = await tasks.list_page(caller, wanted, limit, offset)
        following = encode_cursor(page.rows[-1].created_at, page.rows[-1].task_id) if page.has_more else None
        body = {
            "tasks": [_summary_out(row) for row in page.rows],
            "total": page.total,
            "limit": limit,
            "offset": offset,
            "next_cursor": following,
        }
        return JsonResponse(body, headers=next_link(request, following))

    @api.get("/{task_id}", response_model=TaskOut, responses=error_responses(404))
    async def read(caller: Caller, task_id: TaskId) -> JsonResponse:
        """One task by its exact id, in any state."""
        task = await tasks.get(caller, task_id)
        return JsonResponse(task_out(task, tasks.notice(task)))

    @api.post("/{task_id}/cancel", response_model=CancelledOut, responses=error_responses(404, 409))
    async def cancel(caller: Caller, task_id: TaskId) -> JsonResponse:
        """Cancel a task that has not ended; its work is stopped."""
        moment = await tasks.cancel(caller, task_id)
        return JsonResponse({"task_id": task_id, "status": "cancelled", "cancelled_at": format_iso(moment)})

    @api.post("/{task_id}/retry", status_code=202, response_model=TaskOut, responses=error_responses(404, 409, 422))
    async def retry(caller: Caller, task_id: TaskId) -> JsonResponse:
        """A new attempt of a failed or aborted task, routed anew."""
        return JsonResponse(task_out(await tasks.retry(caller, task_id)), 202)

    @api.post(
        "/{task_id}/approve",
        response_model=TaskOut,
        responses=error_responses(404, 409),
        openapi_extra=requires_permission("admin"),
    )
    async def approve(caller: Caller, task_id: TaskId) -> JsonResponse:
        """Let a task that waits for approval go into the queue."""
        return JsonResponse(task_out(await tasks.approve(caller, task_id)))

    @api.post(
        "/{task_id}/reject",
        response_model=TaskOut,
        responses=error_responses(404, 409),
        openapi_extra=requires_permission("admin"),
    )
    async def reject(caller: Caller, task_id: TaskId, body: Reject | None = None) -> JsonResponse:
        """Refuse the approval; the task is aborted."""
        return JsonResponse(task_out(await tasks.reject(caller, task_id, body.reason if body else None)))

    return api


def build_idempotency_key(caller: Principal, draft: TaskDraft, value: str | None) -> IdempotencyKey | None:
    """The caller's Idempotency-Key for the submission of this draft, on whichever surface it came."""
    if value is None:
        return None
    return IdempotencyKey(caller.tenant, caller.name, "tasks", value, model.compute_body_hash(draft))


def task_out(task: Task, notice: str | None = None) -> dict[str, Any]:
    """A task as readers see it; `notice` is what they should know while it waits."""
    return {
        "task_id": task.task_id,
        "type": task.type,
        "status": task.status,
        "assigned_agent": task.assigned_agent,
        "start_time": format_iso_or_none(task.start_time),
        "completion_time": format_iso_or_none(task.completion_time),
        "duration_ms": task.duration_ms,
        "result": task.result,
        "error": task.error,
        "created_at": format_iso(task.created_at),
        "timeout_seconds": task.timeout_seconds,
        "required_capabilities": task.required_capabilities,
        "agent_preference": task.agent_preference,
        "metadata": task.metadata,
        "attempts": task.epoch,
        "outcome_class": task.outcome_class,
        "learning_eligible": task.learning_eligible,
        "provenance_id": task.provenance_id,
        "queue_timeout_seconds": task.queue_timeout_seconds,
        "notice": notice,
    }


def _summary_out(row: model.TaskSummary) -> dict[str, Any]:
    return {
        "task_id": row.task_id,
        "status": row.status,
        "assigned_agent": row.assigned_agent,
        "type": row.type,
        "created_at": format_iso(row.created_at),
        "completed_at": format_iso_or_none(row.completed_at),
    }


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


def grades_router(grades: GradeService) -> APIRouter:
    api = api_router("/tasks", tags=["tasks"])

    @api.post("/{task_id}/grade", response_model=GradeOut, responses=error_responses(404, 409))
    async def grade(caller: Caller, task_id: TaskId, body: GradeIn) -> JsonResponse:
        """Say what a completed task was worth, from 0 to 1; what was learned from it is corrected, once."""
        return _grade_response(await grades.grade_task(caller, task_id, body.grade, body.comment))

    @api.get("/{task_id}/grade", response_model=GradeOut, responses=error_responses(404))
    async def read(caller: Caller, task_id: TaskId) -> JsonResponse:
        """The grade of a task."""
        found = await grades.find_grade(caller, task_id)
        if found is None:
            raise NotFound("The task has no grade.")
        return _grade_response(found)

    return api


def _grade_response(grade: Grade) -> JsonResponse:
    return JsonResponse(
        {
            "task_id": grade.task_id,
            "agent_id": grade.agent_id,
            "grade": grade.grade,
            "comment": grade.comment,
            "graded_by": grade.graded_by,
            "graded_at": format_iso(grade.graded_at),
            "learned": grade.learned,
        }
    )
