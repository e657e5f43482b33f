"""Routes of the answers of `auto`: why a model was chosen, and what its answer was worth."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import AfterValidator

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.domains.modelrouting.learning import AnswerGrader
from stentor.domains.modelrouting.model import AutoAnswer
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, GradeComment, GradeValue, JsonResponse, Timestamp, api_router, error_responses
from stentor.web.wire import ResponseModel as Out

AnswerId = Annotated[
    str, Path(description="The id of an answer, or its provenance_id, as it came."), AfterValidator(decode_path_segment)
]


class AnswerGradeIn(RequestModel):
    model_config = example_config(grade=0.4, comment="It compiles, and sorts the wrong way round.")

    grade: GradeValue
    comment: GradeComment | None = None


class AnswerGradeOut(Out):
    answer_id: str
    model: str
    kind: str
    grade: float | None
    comment: str | None
    graded_by: str | None
    graded_at: Timestamp | None
    learned: bool


class AnswerOut(AnswerGradeOut):
    answered_at: Timestamp
    asked_by: str
    requested: str
    decision_id: str
    decision: dict[str, Any] | None


def router(answers: AnswerGrader) -> APIRouter:
    api = api_router("/llm/answers", tags=["llm"])

    @api.get("/{answer_id}", response_model=AnswerOut, responses=error_responses(404))
    async def read(caller: Caller, answer_id: AnswerId) -> JsonResponse:
        """An answer of `auto`: the model, the decision that chose it, and the grade."""
        answer, decided = await answers.get(caller, answer_id)
        rest = {
            "answered_at": format_iso(answer.answered_at),
            "asked_by": answer.key_name,
            "requested": decided.get("requested", ""),
            "decision_id": answer.decision_id,
            "decision": decided.get("routing"),
        }
        return JsonResponse(_shown(answer) | rest)

    @api.post("/{answer_id}/grade", response_model=AnswerGradeOut, responses=error_responses(404, 409))
    async def grade(caller: Caller, answer_id: AnswerId, body: AnswerGradeIn) -> JsonResponse:
        """Say what an answer of `auto` was worth, from 0 to 1; what was learned from it is corrected, once."""
        return JsonResponse(_shown(await answers.grade(caller, answer_id, body.grade, body.comment)))

    return api


def _shown(answer: AutoAnswer) -> dict[str, Any]:
    return {
        "answer_id": answer.answer_id,
        "model": answer.model,
        "kind": answer.kind,
        "grade": answer.grade,
        "comment": answer.comment,
        "graded_by": answer.graded_by,
        "graded_at": format_iso_or_none(answer.graded_at),
        "learned": answer.is_learned,
    }
