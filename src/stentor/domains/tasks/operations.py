"""Operations on tasks and their grades. Source: core contract, "Kernel (tasks)".

The functions stand first, then the table. Their requests and responses are in `wire`; grants have their own operations
in `grants`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Query

from stentor.core.clock import micros_from_datetime
from stentor.core.db.idempotency import IdempotencyKey
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks import events, model
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.model import TaskStatus
from stentor.domains.tasks.reading.list_model import TaskFilter
from stentor.domains.tasks.reading.progress import notice_fields
from stentor.domains.tasks.reading.reader import TaskReader
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission.service import SubmissionService
from stentor.domains.tasks.wire import (
    CancelledOut,
    GradeIn,
    GradeOut,
    RejectTask,
    RerunIn,
    SubmittedOut,
    TaskIn,
    TaskInputOut,
    TaskOut,
    TaskPageOut,
    TaskRowOut,
    TaskWaitOut,
)
from stentor.web.operations import operation
from stentor.web.wire import (
    After,
    Caller,
    IdempotencyHeader,
    Name,
    Offset,
    TaskId,
    Text,
    decode_cursor,
    encode_cursor,
)


class TaskOperations:
    """Operations on tasks."""

    def __init__(
        self,
        submission: SubmissionService,
        tasks: TaskService,
        reader: TaskReader,
        grades: GradeService,
        agents: AgentCache,
    ) -> None:
        self._submission, self._tasks, self._reader, self._grades = submission, tasks, reader, grades
        self._agents = agents

    @operation("tasks.submit", "write", "POST /tasks", 202, (409, 422), fast=True, grpc="SubmitTask")
    async def submit(self, caller: Caller, body: TaskIn, idempotency_key: IdempotencyHeader = None) -> SubmittedOut:
        """Route a task to the best agent that may have it, and queue it."""
        draft = body.to_draft()
        key = None
        if idempotency_key is not None:
            key = IdempotencyKey(caller.tenant, caller.name, "tasks", idempotency_key, model.compute_body_hash(draft))
        result = await self._submission.submit(caller, draft, key)
        return SubmittedOut.of(result, **events.build_envelope(result.provenance_id, result.priority))

    @operation("tasks.list", "read", "GET /tasks")
    async def list_tasks(
        self,
        caller: Caller,
        status: Annotated[TaskStatus | None, Query()] = None,
        agent_id: Annotated[str | None, Query(max_length=255)] = None,
        type: Annotated[Name | None, Query()] = None,  # noqa: A002 - the name of the field
        submitted_by: Annotated[Name | None, Query(description="The name of a key.")] = None,
        text: Annotated[Text | None, Query(description="Words that all occur in a task; see the operation.")] = None,
        session: Annotated[Name | None, Query(description="The id of a session.")] = None,
        created_after: After = None,
        ref: Annotated[Name | None, Query()] = None,
        parent_task_id: Annotated[Name | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        offset: Offset = 0,
        cursor: Annotated[str | None, Query(max_length=1024)] = None,
    ) -> TaskPageOut:
        """List the tasks that match, newest first; without a filter all of them.

        `ref` is the beginning or the end of an id, the exact id comes first; `parent_task_id` lists the subtasks of a
        task, oldest first. Each of these two goes with no other filter, and only the second with `cursor`. `text`
        searches title, type, input, result and error for all of its words, `"a phrase"` and `begin*`; new and ended
        tasks are found within seconds.
        """
        if agent_id is not None and "\0" in agent_id:
            raise InvalidRequest("agent_id: must not contain the character NUL")
        after = None if created_after is None else micros_from_datetime(created_after)
        names = [name for name, value in (("ref", ref), ("parent_task_id", parent_task_id)) if value is not None]
        others = (status, agent_id, type, submitted_by, session, text, after, cursor if ref else None, offset or None)
        if len(names) > 1 or (names and any(value is not None for value in others)):
            raise InvalidRequest(f"{names[0]}: cannot be combined with other filters.")
        task_filter = TaskFilter(
            status,
            agent_id,
            after,
            ref=ref,
            parent=parent_task_id,
            type=type,
            submitted_by=submitted_by,
            session=session,
        )
        following: str | None
        if text is not None:
            if offset:
                raise InvalidRequest("offset: cannot be combined with text; use the cursor.")
            position = None if cursor is None else decode_cursor(cursor, int)[0]
            page, before = await self._reader.search_page(caller, task_filter, text, position, limit)
            following = None if before is None else encode_cursor(before)
        else:
            start = None if cursor is None else decode_cursor(cursor, int, str)
            page = await self._reader.list_page(
                caller, msgspec.structs.replace(task_filter, before=start), limit, offset
            )
            following = encode_cursor(page.rows[-1].created_at, page.rows[-1].task_id) if page.has_more else None
        rows = [
            TaskRowOut.of(row, agent_name=self._agents.find_name(caller.tenant, row.assigned_agent))
            for row in page.rows
        ]
        return TaskPageOut.of(page, tasks=rows, limit=limit, offset=offset, next_cursor=following)

    @operation("tasks.get", "read", "GET /tasks/{task_id}", errors=(404,), grpc="GetTask")
    async def read(self, caller: Caller, task_id: TaskId) -> TaskOut:
        """Return one task by its exact id, in any state."""
        state = await self._reader.get_state(caller, task_id)
        task = state.task
        return TaskOut.of(
            task,
            **notice_fields(state.notice),
            agent_name=self._agents.find_name(task.tenant, task.assigned_agent),
            waits_for=[TaskWaitOut.of(wait) for wait in state.waits_for],
        )

    @operation("tasks.input", "read", "GET /tasks/{task_id}/input", errors=(404,))
    async def read_input(self, caller: Caller, task_id: TaskId) -> TaskInputOut:
        """Return the whole input of a task, as its agent gets it."""
        return TaskInputOut(task_id=task_id, input=await self._reader.read_input(caller, task_id))

    @operation("tasks.cancel", "write", "POST /tasks/{task_id}/cancel", errors=(404, 409), grpc="CancelTask")
    async def cancel(self, caller: Caller, task_id: TaskId) -> CancelledOut:
        """Cancel a task that has not ended; its work is stopped."""
        return CancelledOut(task_id=task_id, status="cancelled", cancelled_at=await self._tasks.cancel(caller, task_id))

    @operation("tasks.retry", "write", "POST /tasks/{task_id}/retry", 202, (404, 409, 422))
    async def retry(self, caller: Caller, task_id: TaskId) -> TaskOut:
        """Retry a failed or aborted task; it is routed again."""
        task = await self._tasks.retry(caller, task_id)
        return TaskOut.of(task, **notice_fields(self._reader.describe_wait_for_agent(task)))

    @operation("tasks.rerun", "write", "POST /tasks/{task_id}/rerun", 202, (404, 409, 422))
    async def rerun(self, caller: Caller, task_id: TaskId, body: RerunIn | None = None) -> SubmittedOut:
        """Submit a task again as a new task with the same input, in any status, on another agent if one is given.

        With `input` the new task has that one. With `from_step` the new task continues from that step, with the
        outcomes of those before it.
        """
        body = body or RerunIn()
        has_input = "input" in body.model_fields_set
        if has_input and body.from_step is not None:
            raise InvalidRequest(
                "input: cannot be combined with from_step, whose recorded outcomes are of the old input."
            )
        draft = await self._tasks.prepare_rerun(caller, task_id, body.agent_preference, body.from_step)
        if has_input:
            draft = msgspec.structs.replace(draft, input=body.input)
        result = await self._submission.submit(caller, draft)
        return SubmittedOut.of(result, **events.build_envelope(result.provenance_id, result.priority))

    @operation("tasks.approve", "approve", "POST /tasks/{task_id}/approve", errors=(404, 409))
    async def approve(self, caller: Caller, task_id: TaskId) -> TaskOut:
        """Approve a task that waits for approval; it is queued."""
        task = await self._tasks.approve(caller, task_id)
        return TaskOut.of(task, **notice_fields(self._reader.describe_wait_for_agent(task)))

    @operation("tasks.reject", "approve", "POST /tasks/{task_id}/reject", errors=(404, 409))
    async def reject(self, caller: Caller, task_id: TaskId, body: RejectTask | None = None) -> TaskOut:
        """Refuse the approval; the task is aborted."""
        task = await self._tasks.reject(caller, task_id, body.reason if body else None)
        return TaskOut.of(task, **notice_fields(None))

    @operation("tasks.grade", "write", "POST /tasks/{task_id}/grade", errors=(404, 409), grpc="GradeTask")
    async def grade(self, caller: Caller, task_id: TaskId, body: GradeIn) -> GradeOut:
        """Grade a completed task from 0 to 1, once; the grade corrects what was learned from it."""
        return GradeOut.of(await self._grades.grade_task(caller, task_id, body.grade, body.comment))

    @operation("tasks.get_grade", "read", "GET /tasks/{task_id}/grade", errors=(404,), grpc="GetGrade")
    async def read_grade(self, caller: Caller, task_id: TaskId) -> GradeOut:
        """Return the grade of a task."""
        grade = await self._grades.find_grade(caller, task_id)
        if grade is None:
            raise NotFound("The task has no grade.")
        return GradeOut.of(grade)
