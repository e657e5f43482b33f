"""`stentor llm ...`: grade answers of the model `auto`, and see why their models were chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from stentor.cli import decisions, output
from stentor.cli.command import AsJson, DataDir, GradeComment, GradeValue, Key, ServiceTarget, Url, run_command
from stentor.cli.output import EXIT_FAILED

if TYPE_CHECKING:
    from stentor.cli.client import ServiceClient

app = typer.Typer(help="Grade answers of the model auto, see why it was chosen.", no_args_is_help=True)

AnswerId = Annotated[str, typer.Argument(metavar="ID", help="The answer's id, or its provenance id.")]


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
    """Say what an answer was worth; auto learns from it."""
    body = {"grade": value} | ({} if comment is None else {"comment": comment})

    async def work(api: ServiceClient) -> dict[str, Any]:
        return dict(await api.post(_path(answer_id) + "/grade", body))

    run_command(ServiceTarget(data_dir, url, key), work, _show_grade, as_json=as_json, access="change")


@app.command()
def explain(
    answer_id: AnswerId, data_dir: DataDir = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Say why its model was chosen, and compute the decision again; the exit code is 1 when it differs."""

    async def work(api: ServiceClient) -> dict[str, Any]:
        return _explained(await api.get(_path(answer_id)))

    found = run_command(ServiceTarget(data_dir, url, key), work, decisions.show_explanation, as_json=as_json)
    if found["recomputation"] and found["recomputation"]["differences"]:
        raise typer.Exit(EXIT_FAILED)


def _explained(answer: dict[str, Any]) -> dict[str, Any]:
    # Comes with the routing domain: not for `stentor --help`.
    import msgspec

    from stentor.domains.modelrouting.model import explain_choice
    from stentor.domains.routing import explain

    known = {name: answer[name] for name in ("answer_id", "model", "kind", "requested", "grade")}
    decision = answer["decision"]
    if decision is None:
        nothing: dict[str, Any] = {
            "decision": None,
            "terms": None,
            "denied": [],
            "later_denial": None,
            "recomputation": None,
        }
        return known | nothing | {"why": "The run log has no decision of this answer."}
    check = explain.check_decision(decision)
    return known | {
        "why": explain_choice(decision, answer["model"]),
        "decision": decision,
        "terms": explain.classify_terms(decision),
        "denied": decision.get("denied", []),
        "later_denial": None,
        "recomputation": msgspec.to_builtins(check) | {"same": check.is_reproduced},
    }


def _show_grade(answer: dict[str, Any]) -> None:
    learned = "what was learned from it is corrected" if answer["learned"] else "nothing was learned from it"
    output.print_line(f"The answer of {answer['model']} is graded {answer['grade']:g}; {learned}.")


def _path(answer_id: str) -> str:
    return f"/llm/answers/{quote(answer_id, safe='')}"
