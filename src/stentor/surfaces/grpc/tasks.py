"""TaskService: submit, get, cancel, watch, grade. What is valid is said by the wire models of the HTTP routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from pydantic import TypeAdapter

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.activity.api import LastEventId
from stentor.domains.activity.service import ActivityService
from stentor.domains.tasks.api import GradeIn, Submit, build_idempotency_key
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.model import Grade, Task, TaskMetadata
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService
from stentor.surfaces.grpc import steps, wire
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from stentor.surfaces.grpc.methods import Method, Streaming, Unary
from stentor.surfaces.grpc.wire import Words, timestamp
from stentor.web.fast_routes import OptionalHeader, validate_value
from stentor.web.sse import StreamLimit

SERVICE = pb.DESCRIPTOR.services_by_name["TaskService"].full_name
PRIORITY = Words(pb.Priority, "PRIORITY_")
PREFER = Words(pb.Prefer, "PREFER_")
_SUBMIT, _GRADE = TypeAdapter(Submit), TypeAdapter(GradeIn)
_LAST = OptionalHeader("last_event_id", LastEventId)


class TaskServicer:
    def __init__(
        self, submission: SubmissionService, tasks: TaskService, activity: ActivityService, grades: GradeService
    ) -> None:
        self._submission, self._tasks, self._activity, self._grades = submission, tasks, activity, grades

    def methods(self, streams: StreamLimit) -> Mapping[str, Method]:
        return {
            f"/{SERVICE}/SubmitTask": Unary("write", pb.SubmitTaskRequest, self.submit),
            f"/{SERVICE}/GetTask": Unary("read", pb.GetTaskRequest, self.get),
            f"/{SERVICE}/CancelTask": Unary("write", pb.CancelTaskRequest, self.cancel),
            f"/{SERVICE}/WatchTask": Streaming("read", pb.WatchTaskRequest, self.watch, streams),
            f"/{SERVICE}/GradeTask": Unary("write", pb.GradeTaskRequest, self.grade),
            f"/{SERVICE}/GetGrade": Unary("read", pb.GetGradeRequest, self.grade_of),
        }

    async def submit(self, call: Call, request: pb.SubmitTaskRequest) -> pb.SubmitTaskResponse:
        draft = validate_value(_SUBMIT, _body(request)).to_draft()
        done = await self._submission.submit(
            call.caller, draft, build_idempotency_key(call.caller, draft, wire.idempotency_key(call))
        )
        return pb.SubmitTaskResponse(
            task_id=done.task_id,
            status=steps.STATUS.name(done.status),
            estimated_start=timestamp(done.estimated_start),
            estimated_completion=timestamp(done.estimated_completion),
            notice=done.notice,
            provenance_id=done.provenance_id,
        )

    async def get(self, call: Call, request: pb.GetTaskRequest) -> pb.Task:
        task = await self._tasks.get(call.caller, request.task_id)
        return _shown(task, self._tasks.notice(task))

    async def cancel(self, call: Call, request: pb.CancelTaskRequest) -> pb.CancelTaskResponse:
        moment = await self._tasks.cancel(call.caller, request.task_id)
        return pb.CancelTaskResponse(task_id=request.task_id, cancelled_at=timestamp(moment))

    async def grade(self, call: Call, request: pb.GradeTaskRequest) -> pb.Grade:
        body = validate_value(_GRADE, wire.given(request, ("grade", "comment")))
        return _graded(await self._grades.grade_task(call.caller, request.task_id, body.grade, body.comment))

    async def grade_of(self, call: Call, request: pb.GetGradeRequest) -> pb.Grade:
        grade = await self._grades.find_grade(call.caller, request.task_id)
        if grade is None:
            raise NotFound("The task has no grade.")
        return _graded(grade)

    @asynccontextmanager
    async def watch(
        self, call: Call, request: pb.WatchTaskRequest
    ) -> AsyncIterator[AsyncIterator[pb.WatchTaskResponse]]:
        last = _LAST.check(request.last_event_id or None)
        await self._activity.require_visible(call.caller, request.task_id)
        async with aclosing(steps.of(self._activity.stream(call.caller.tenant, request.task_id, last))) as found:
            yield found


def _body(request: pb.SubmitTaskRequest) -> dict[str, Any]:
    """As a caller over HTTP would have sent it."""
    body = wire.given(request, ("id", "timeout_seconds", "queue_timeout_seconds", "agent_preference"))
    body |= {"type": request.type, "required_capabilities": list(request.required_capabilities)}
    if not request.HasField("input_json"):
        raise InvalidRequest("input_json: Field required", {"fields": {"input_json": "Field required"}})
    body["input"] = wire.parsed("input_json", request.input_json)
    meta = request.metadata
    metadata = wire.given(meta, ("user_id", "retry_count", "parent_task_id", "grant_id"))
    if priority := PRIORITY.word("metadata.priority", meta.priority):
        metadata["priority"] = priority
    if prefer := PREFER.word("metadata.prefer", meta.prefer):
        metadata["prefer"] = prefer
    return body | {"metadata": metadata | {"tags": list(meta.tags)}}


def _graded(grade: Grade) -> pb.Grade:
    return pb.Grade(
        task_id=grade.task_id,
        agent_id=grade.agent_id,
        grade=grade.grade,
        comment=grade.comment,
        graded_by=grade.graded_by,
        graded_at=timestamp(grade.graded_at),
        learned=grade.learned,
    )


def _shown(task: Task, notice: str | None) -> pb.Task:
    ended = task.status == "completed"
    return pb.Task(
        task_id=task.task_id,
        type=task.type,
        status=steps.STATUS.name(task.status),
        assigned_agent=task.assigned_agent,
        created_at=timestamp(task.created_at),
        start_time=timestamp(task.start_time),
        completion_time=timestamp(task.completion_time),
        duration_ms=task.duration_ms,
        result_json=jsontext.dump(task.result) if ended else None,
        error_json=None if task.error is None else jsontext.dump(task.error),
        timeout_seconds=task.timeout_seconds,
        required_capabilities=task.required_capabilities,
        agent_preference=task.agent_preference,
        metadata=_metadata(task.metadata),
        attempts=task.epoch,
        outcome_class=steps.OUTCOME.name(task.outcome_class),
        learning_eligible=task.learning_eligible,
        provenance_id=task.provenance_id,
        queue_timeout_seconds=task.queue_timeout_seconds,
        notice=notice,
    )


def _metadata(metadata: TaskMetadata) -> pb.TaskMetadata:
    return pb.TaskMetadata(
        user_id=metadata.user_id,
        priority=PRIORITY.name(metadata.priority),
        retry_count=metadata.retry_count,
        tags=metadata.tags,
        parent_task_id=metadata.parent_task_id,
        grant_id=metadata.grant_id,
        prefer=PREFER.name(metadata.prefer),
    )
