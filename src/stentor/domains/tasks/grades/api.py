"""Routes of grades."""

from __future__ import annotations

from fastapi import APIRouter

from stentor.core.clock import format_iso
from stentor.core.errors import NotFound
from stentor.domains.tasks.grades.model import Grade
from stentor.domains.tasks.grades.service import Grades
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import (
    Caller,
    GradeComment,
    GradeValue,
    JsonResponse,
    ResponseModel,
    TaskId,
    Timestamp,
    api_router,
    error_responses,
)


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


def router(grades: Grades) -> APIRouter:
    api = api_router("/tasks", tags=["tasks"])

    @api.post("/{task_id}/grade", response_model=GradeOut, responses=error_responses(404, 409))
    async def grade(caller: Caller, task_id: TaskId, body: GradeIn) -> JsonResponse:
        """Say what a completed task was worth, from 0 to 1; what was learned from it is corrected, once."""
        return _shown(await grades.grade(caller, task_id, body.grade, body.comment))

    @api.get("/{task_id}/grade", response_model=GradeOut, responses=error_responses(404))
    async def read(caller: Caller, task_id: TaskId) -> JsonResponse:
        """The grade of a task."""
        found = await grades.of(caller, task_id)
        if found is None:
            raise NotFound("The task has no grade.")
        return _shown(found)

    return api


def _shown(grade: Grade) -> JsonResponse:
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
