"""Operations on many tasks: cancel, retry, approve or reject them, with an outcome for each.

Each task is changed on its own, as by the operation on one task: one that cannot be changed does not keep the others
from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import Field

from stentor.core.errors import StentorError
from stentor.domains.tasks.service import TaskService
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, Name, ResponseModel, Text

MAX_TASKS = 500
CONCURRENT = 16
"""Tasks that are changed at once; more would only wait in the queue of the database."""


class TasksIn(RequestModel):
    model_config = example_config(task_ids=["0190f5f0-0000-7000-8000-000000000000"])

    task_ids: Annotated[list[Name], Field(min_length=1, max_length=MAX_TASKS)]


class RejectTasksIn(TasksIn):
    model_config = example_config(task_ids=["0190f5f0-0000-7000-8000-000000000000"], reason="Too expensive.")

    reason: Text | None = None


class BulkError(ResponseModel):
    code: str
    message: str


class BulkOutcome(ResponseModel):
    """What became of one task; `error` is null if it was changed."""

    task_id: str
    error: BulkError | None


class BulkOut(ResponseModel):
    outcomes: list[BulkOutcome]
    succeeded: int
    failed: int


class BulkOperations:
    """Each method is an operation on up to 500 tasks; the outcomes are in the order of the ids."""

    def __init__(self, tasks: TaskService) -> None:
        self._tasks = tasks

    @operation("tasks.bulk_cancel", "write", "POST /bulk/tasks/cancel")
    async def cancel(self, caller: Caller, body: TasksIn) -> BulkOut:
        """Cancel tasks; the response has the outcome of each."""
        return await _change_each(body, lambda task_id: self._tasks.cancel(caller, task_id))

    @operation("tasks.bulk_retry", "write", "POST /bulk/tasks/retry")
    async def retry(self, caller: Caller, body: TasksIn) -> BulkOut:
        """Retry failed and aborted tasks; the response has the outcome of each."""
        return await _change_each(body, lambda task_id: self._tasks.retry(caller, task_id))

    @operation("tasks.bulk_approve", "approve", "POST /bulk/tasks/approve")
    async def approve(self, caller: Caller, body: TasksIn) -> BulkOut:
        """Approve tasks that wait for it; the response has the outcome of each."""
        return await _change_each(body, lambda task_id: self._tasks.approve(caller, task_id))

    @operation("tasks.bulk_reject", "approve", "POST /bulk/tasks/reject")
    async def reject(self, caller: Caller, body: RejectTasksIn) -> BulkOut:
        """Reject tasks that wait for approval; the response has the outcome of each."""
        return await _change_each(body, lambda task_id: self._tasks.reject(caller, task_id, body.reason))


async def _change_each(body: TasksIn, change: Callable[[str], Awaitable[Any]]) -> BulkOut:
    """Change each task once. Raises the error of an outage: then a repeated request changes the others."""
    slots = asyncio.Semaphore(CONCURRENT)

    async def attempt(task_id: str) -> BulkOutcome:
        async with slots:
            try:
                await change(task_id)
            except StentorError as error:
                if error.status >= 500:
                    raise
                return BulkOutcome(task_id=task_id, error=BulkError(code=error.code, message=error.message))
        return BulkOutcome(task_id=task_id, error=None)

    # Wait for all, also in an outage: nothing may change after the response.
    results = await asyncio.gather(*map(attempt, dict.fromkeys(body.task_ids)), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    outcomes = [result for result in results if isinstance(result, BulkOutcome)]
    failed = sum(outcome.error is not None for outcome in outcomes)
    return BulkOut(outcomes=outcomes, succeeded=len(outcomes) - failed, failed=failed)
