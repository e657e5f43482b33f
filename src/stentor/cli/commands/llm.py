"""`stentor llm ...`: grade answers of the model `auto`, and explain which model was chosen and why."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from stentor.cli import decisions, output
from stentor.cli.client import ServiceClient
from stentor.cli.command import AsJson, DataDir, GradeComment, GradeValue, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED
from stentor.domains.modelrouting.model import explain_choice
from stentor.domains.routing import explain as explanations

app = typer.Typer(help="Grade answers of the model auto, and explain why a model was chosen.", no_args_is_help=True)

AnswerId = Annotated[str, typer.Argument(metavar="ID", help="Id of the answer, or its provenance id.")]


@app.command()
def grade(
    answer_id: AnswerId,
    value: GradeValue,
    comment: GradeComment = None,
    data_dir: DataDir = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Rate an answer; auto learns from the grade."""
    body = {"grade": value} | ({} if comment is None else {"comment": comment})

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(_path(answer_id) + "/grade", body))

    run_command(ServiceTarget(data_dir, url, key), work, _show_grade, as_json=as_json, access="change")


@app.command()
def explain(
    answer_id: AnswerId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Explain why the model was chosen, and recompute the decision; the exit code is 1 if it differs."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return _explain_answer(await api.get(_path(answer_id)))

    explanation = run_command(ServiceTarget(data_dir, url, key), work, decisions.show_explanation, as_json=as_json)
    if explanation["recomputation"] and explanation["recomputation"]["differences"]:
        raise typer.Exit(EXIT_FAILED)


def _explain_answer(answer: dict[str, Any]) -> dict[str, Any]:

    fields = {name: answer[name] for name in ("answer_id", "model", "kind", "requested", "grade")}
    decision = answer["decision"]
    if decision is None:
        empty: dict[str, Any] = {
            "decision": None,
            "terms": None,
            "denied": [],
            "later_denial": None,
            "recomputation": None,
        }
        return fields | empty | {"why": "The run log has no decision for this answer."}
    check = explanations.check_decision(decision)
    return fields | {
        "why": explain_choice(decision, answer["model"]),
        "decision": decision,
        "terms": explanations.classify_terms(decision),
        "denied": decision.get("denied", []),
        "later_denial": None,
        "recomputation": msgspec.to_builtins(check) | {"same": check.is_reproduced},
    }


def _show_grade(answer: dict[str, Any]) -> None:
    effect = "learning was updated" if answer["learned"] else "learning is not affected"
    output.print_line(f"Graded the answer of {answer['model']} {answer['grade']:g}; {effect}.")


def _path(answer_id: str) -> str:
    return f"/llm/answers/{quote(answer_id, safe='')}"
