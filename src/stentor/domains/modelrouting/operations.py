"""Operations on the answers of `auto`: read why a model was chosen, and grade an answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path
from pydantic import AfterValidator, Field

from stentor.core.jsontext import JsonObject
from stentor.domains.modelrouting.learning import AnswerGrader
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, GradeComment, GradeValue, ResponseModel, Timestamp

AnswerId = Annotated[
    str,
    Path(description="The id of an answer, or its provenance_id."),
    AfterValidator(decode_path_segment),
]


class AnswerGradeIn(RequestModel):
    model_config = example_config(grade=0.4, comment="It compiles, and sorts the wrong way round.")

    grade: GradeValue
    comment: GradeComment | None = None


class AnswerGradeOut(ResponseModel):
    answer_id: str
    model: str
    kind: str
    grade: float | None
    comment: str | None
    graded_by: str | None
    graded_at: Timestamp | None
    learned: Annotated[bool, Field(validation_alias="is_learned")]


class AnswerOut(AnswerGradeOut):
    answered_at: Timestamp
    asked_by: Annotated[str, Field(validation_alias="key_name")]
    requested: str
    decision_id: str
    decision: JsonObject | None


class AnswerOperations:
    """The operations on the answers of `auto`."""

    def __init__(self, answers: AnswerGrader) -> None:
        self._answers = answers

    @operation("answers.get", "read", "GET /llm/answers/{answer_id}", errors=(404,))
    async def read(self, caller: Caller, answer_id: AnswerId) -> AnswerOut:
        """Read an answer of `auto`: the model, the decision that chose it, and the grade."""
        answer, decision = await self._answers.get(caller, answer_id)
        return AnswerOut.of(answer, requested=decision.get("requested", ""), decision=decision.get("routing"))

    @operation("answers.grade", "write", "POST /llm/answers/{answer_id}/grade", errors=(404, 409))
    async def grade(self, caller: Caller, answer_id: AnswerId, body: AnswerGradeIn) -> AnswerGradeOut:
        """Grade an answer of `auto` from 0 to 1, once; the grade replaces what was learned from it."""
        return AnswerGradeOut.of(await self._answers.grade(caller, answer_id, body.grade, body.comment))
