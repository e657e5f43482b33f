"""`stentor llm ...`: grade answers of the model `auto`, and explain which model was chosen and why."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from stentor.cli import output
from stentor.cli.client.client import ServiceClient, omit_none, quote_segment
from stentor.cli.client.responses import Response
from stentor.cli.command import GradeComment, GradeValue, ServiceTarget, with_service
from stentor.cli.tasks import decisions
from stentor.cli.tasks.decisions import Explanation
from stentor.core.jsontext import JsonObject
from stentor.domains.modelrouting.model import explain_choice

app = typer.Typer(help="Grade answers of the model auto, and explain why a model was chosen.", no_args_is_help=True)

AnswerId = Annotated[str, typer.Argument(metavar="ID", help="Id of the answer, or its provenance id.")]


class ModelAnswer(msgspec.Struct, frozen=True):
    """An answer of `auto`; `decision` is None if the run log has none."""

    answer_id: str
    model: str
    kind: str
    requested: str
    grade: float | int | None
    decision: JsonObject | None


class AnswerGrade(msgspec.Struct, frozen=True):
    model: str
    grade: float
    learned: bool


@app.command()
@with_service
def grade(service: ServiceTarget, answer_id: AnswerId, value: GradeValue, comment: GradeComment = None) -> None:
    """Rate an answer; auto learns from the grade."""
    body = omit_none({"grade": value, "comment": comment})
    service.call(lambda api: api.post(f"{_path(answer_id)}/grade", AnswerGrade, body), _show_grade, access="change")


@app.command()
@with_service
def explain(service: ServiceTarget, answer_id: AnswerId) -> None:
    """Explain why the model was chosen, and recompute the decision; the exit code is 1 if it differs."""

    async def work(api: ServiceClient) -> Response[Explanation]:
        answer = await api.get(_path(answer_id), ModelAnswer)
        return Response(_explain_answer(answer.value), Explanation)

    service.call(work, decisions.show_explanation, is_success=Explanation.is_reproduced)


def _explain_answer(answer: ModelAnswer) -> JsonObject:
    document = msgspec.structs.asdict(answer)
    decision = document.pop("decision")
    if decision is None:
        return document | decisions.NO_DECISION | {"why": "The run log has no decision for this answer."}
    return document | {"why": explain_choice(decision, answer.model)} | decisions.describe_decision(decision)


def _show_grade(graded: AnswerGrade) -> None:
    effect = "learning was updated" if graded.learned else "learning is not affected"
    output.print_line(f"Graded the answer of {graded.model} {graded.grade:g}; {effect}.")


def _path(answer_id: str) -> str:
    return f"/llm/answers/{quote_segment(answer_id)}"
