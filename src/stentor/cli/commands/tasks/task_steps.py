"""`stentor task steps`, `answer`, `signal`, `resolve` and `decisions`: the journal of a task, and what it waits for."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import typer

from stentor.cli import output
from stentor.cli.client.client import ServiceClient, omit_none, quote_segment
from stentor.cli.client.responses import Response, StoredTask
from stentor.cli.command import ServiceTarget, with_service
from stentor.cli.input_files import parse_json_option
from stentor.cli.output import EXIT_REFUSED, CommandFailed
from stentor.cli.tasks import steps as view
from stentor.cli.tasks.steps import DecisionList, SignalResult, StepList, StepRow
from stentor.cli.tasks.view import TaskId, TaskList, on_task, task_path

app = typer.Typer()
Page = TypeVar("Page", StepList, DecisionList)

MAX_APPROVALS = 100
"""Tasks that wait for an approval which `decisions` lists, the newest."""
StepKey = Annotated[
    str, typer.Option("--step", metavar="KEY", help="Key of the step, from `stentor task steps --json`.")
]
JsonValue = Annotated[str | None, typer.Option("--value", metavar="JSON", help="A value as JSON.")]


@app.command()
@with_service
def steps(
    service: ServiceTarget,
    task_id: TaskId,
    step: Annotated[str | None, typer.Option(metavar="KEY", help="Print the value of this step.")] = None,
) -> None:
    """Show the steps of a task, and what it waits for."""
    if step is None:
        service.call(on_task(task_id, _list_steps), view.show_steps)
    else:
        service.call(
            on_task(task_id, lambda api, found: api.get(_step_path(found, step), StepRow)), view.show_step_value
        )


@app.command()
@with_service
def answer(
    service: ServiceTarget,
    task_id: TaskId,
    value: Annotated[str, typer.Argument(metavar="ANSWER", help="The answer.")],
    step: Annotated[str | None, typer.Option(metavar="KEY", help="Key of the question, if there are several.")] = None,
) -> None:
    """Answer a question that a task has asked."""
    if not value.strip():
        # For example from an unset shell variable; no option is empty.
        raise typer.BadParameter("the answer is empty.", param_hint="ANSWER")

    async def work(api: ServiceClient, found: str) -> Response[StepRow]:
        chosen = step or await _find_question(api, found)
        return await api.post(f"{_step_path(found, chosen)}/answer", StepRow, {"value": value})

    service.call(
        on_task(task_id, work),
        lambda row: output.print_line(f"Answered {row.name!r}: {value}. The task resumes."),
        access="change",
    )


@app.command()
@with_service
def signal(
    service: ServiceTarget,
    task_id: TaskId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal.")],
    value: JsonValue = None,
) -> None:
    """Send a signal to a task that waits for it, now or later."""
    body = {"name": name, "value": _parse_json(value)}
    service.call(
        on_task(task_id, lambda api, found: api.post(f"{task_path(found)}/signals", SignalResult, body)),
        view.show_signal,
        access="change",
    )


@app.command()
@with_service
def resolve(
    service: ServiceTarget,
    task_id: TaskId,
    step: StepKey,
    happened: Annotated[bool, typer.Option("--happened/--not-happened", help="Whether the effect happened.")],
    value: JsonValue = None,
    reason: Annotated[str | None, typer.Option(help="How you know.")] = None,
) -> None:
    """Record whether an effect with unknown outcome happened; retry the task afterwards."""
    body = omit_none({"happened": happened, "value": _parse_json(value), "reason": reason})

    def show(row: StepRow) -> None:
        output.print_line(f"Recorded that {row.name!r} {'happened' if happened else 'did not happen'}.")

    service.call(
        on_task(task_id, lambda api, found: api.post(f"{_step_path(found, step)}/resolve", StepRow, body)),
        show,
        access="change",
    )


@app.command()
@with_service
def decisions(service: ServiceTarget) -> None:
    """List the questions, the effects and the approvals that wait for a person."""

    async def work(api: ServiceClient) -> Response[DecisionList]:
        open_steps = await _list_all(api, DecisionList.path, DecisionList)
        pending = await api.get(TaskList.path, TaskList, status="pending_approval", limit=MAX_APPROVALS)
        return Response(open_steps.document | {"approvals": pending.document["tasks"]}, DecisionList)

    service.call(work, view.show_decisions)


async def _list_steps(api: ServiceClient, task_id: str) -> Response[StepList]:
    return await _list_all(api, f"{task_path(task_id)}/steps", StepList)


async def _list_all(api: ServiceClient, path: str, model: type[Page]) -> Response[Page]:
    """List all steps, from as many pages as there are."""
    steps, cursor = list[Any](), None
    while True:
        page = await api.get(path, model, cursor=cursor)
        steps += page.document["steps"]
        cursor = page.value.next_cursor
        if cursor is None:
            return Response(page.document | {"steps": steps}, model)


async def _find_question(api: ServiceClient, task_id: str) -> str:
    """Return the key of the only open question of a task. Raises CommandFailed."""
    found = (await _list_steps(api, task_id)).value.steps
    keys = [step.key for step in found if step.kind == "question" and step.state == "started"]
    if len(keys) > 1:
        raise CommandFailed(f"The task asks {len(keys)} questions; choose one with --step.", EXIT_REFUSED)
    if not keys:
        status = (await api.get(task_path(task_id), StoredTask)).value.status
        raise CommandFailed(f"The task asks nothing now; its status is {status}.", EXIT_REFUSED)
    return keys[0]


def _step_path(task_id: str, step: str) -> str:
    return f"{task_path(task_id)}/steps/{quote_segment(step)}"


def _parse_json(text: str | None) -> Any:
    """Return the value of --value. Raises BadParameter."""
    try:
        return None if text is None else parse_json_option("--value", text)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{error.message} Put a text in double quotes.") from None
