"""`stentor schedule ...`: submit tasks again and again, at the times of a cron expression."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from stentor.cli import output
from stentor.cli.agents import AgentList
from stentor.cli.client.client import ServiceClient, omit_none, quote_segment
from stentor.cli.client.responses import Response
from stentor.cli.command import Capabilities, ServiceTarget, with_service
from stentor.cli.commands.tasks.task import Prefer, Priority
from stentor.cli.input_files import read_input
from stentor.cli.output import console, format_age
from stentor.cli.tasks import view as task_view
from stentor.cli.tasks.view import SubmittedTask
from stentor.core.clock import format_duration
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.schedules.model import CronTimes

app = typer.Typer(help="Submit tasks on a cron schedule.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Missed = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip"]
BASE = "/schedules"


class ListedRun(msgspec.Struct, frozen=True):
    due_at: str
    happened_at: str
    outcome: str
    task_id: str | None
    reason: str | None


class ShownSchedule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cron: str
    description: str
    timezone: str
    paused: bool
    paused_reason: str | None
    next_at: str | None
    type: str
    last_run: ListedRun | None = None
    notice: str | None = None


class ScheduleTable(msgspec.Struct, frozen=True):
    schedules: list[ShownSchedule]


class ListedRuns(msgspec.Struct, frozen=True):
    runs: list[ListedRun]


class RemovedSchedule(msgspec.Struct, frozen=True):
    name: str


@app.command()
@with_service
def add(
    service: ServiceTarget,
    name: Name,
    cron: Annotated[str, typer.Option(help="Minute, hour, day of month, month, weekday: '30 6 * * MON-FRI'; @daily.")],
    type_: Annotated[str, typer.Option("--type", help="Type of the task.")],
    timezone: Annotated[str, typer.Option(help="Time zone of the expression, such as Europe/Rome.")] = "UTC",
    capability: Capabilities = [],  # noqa: B006
    text: Annotated[str | None, typer.Option("--input", help="The input as text.")] = None,
    input_json: Annotated[str | None, typer.Option(help="The input as JSON.")] = None,
    file: Annotated[Path | None, typer.Option(help="File with the input as text; - for standard input.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="AGENT", help="Preferred agent: its name or id.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Priority in the queue.")] = None,
    prefer: Annotated[Prefer | None, typer.Option(help="What to optimize when choosing the agent.")] = None,
    timeout: Annotated[int | None, typer.Option(help="Maximum run time in seconds.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the tasks; default: derived from the input.")] = None,
    missed: Annotated[
        Missed, typer.Option(help="What to do with runs missed while the service was down: none, one for all, or each.")
    ] = "one",
    overlap: Annotated[Overlap, typer.Option(help="skip: no run while the previous task has not ended.")] = "allow",
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
) -> None:
    """Create a schedule."""
    # Checked before the input is read, because a user may be typing it.
    try:
        CronTimes(cron, "UTC")
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None
    task: dict[str, Any] = {
        "type": type_,
        "input": read_input(text, input_json, file),
        "required_capabilities": list(capability),
        **omit_none({"timeout_seconds": timeout, "title": title}),
        "metadata": omit_none({"priority": priority, "prefer": prefer}),
    }
    body = {"name": name, "cron": cron, "timezone": timezone, "missed": missed, "overlap": overlap, "paused": paused}

    async def send(api: ServiceClient) -> Response[ShownSchedule]:
        preferred = {} if agent is None else {"agent_preference": await api.find_id(AgentList, agent, must_exist=True)}
        return await api.post(BASE, ShownSchedule, body | {"task": task | preferred})

    service.call(send, _show_state, access="create")


@app.command("list")
@with_service
def list_schedules(service: ServiceTarget) -> None:
    """List schedules with their next and their last run."""
    service.call(lambda api: api.get(BASE, ScheduleTable), _show_list)


@app.command()
@with_service
def show(service: ServiceTarget, name: Name) -> None:
    """Show one schedule with its task and its next times."""
    service.call(lambda api: api.get(_path(name), JsonObject), _show_schedule)


@app.command()
@with_service
def runs(
    service: ServiceTarget,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Maximum number of runs.")] = 20,
) -> None:
    """List the last runs of a schedule and their results, newest first."""
    service.call(lambda api: api.get(f"{_path(name)}/runs", ListedRuns, limit=limit), _show_runs)


@app.command()
@with_service
def run(service: ServiceTarget, name: Name) -> None:
    """Submit the task of a schedule now; its next time stays."""
    service.call(lambda api: api.post(f"{_path(name)}/run", SubmittedTask), task_view.show_submitted, access="create")


@app.command()
@with_service
def pause(service: ServiceTarget, name: Name) -> None:
    """Pause a schedule."""
    _set_paused(service, name, is_paused=True)


@app.command()
@with_service
def resume(service: ServiceTarget, name: Name) -> None:
    """Resume a paused schedule; times that it missed are skipped."""
    _set_paused(service, name, is_paused=False)


@app.command()
@with_service
def remove(service: ServiceTarget, name: Name) -> None:
    """Delete a schedule with the list of its runs; its tasks stay."""
    service.call(
        lambda api: api.request("DELETE", _path(name), RemovedSchedule),
        lambda deleted: output.print_line(f"Deleted schedule {deleted.name}."),
        access="change",
    )


def _set_paused(service: ServiceTarget, name: str, *, is_paused: bool) -> None:
    service.call(
        lambda api: api.request("PATCH", _path(name), ShownSchedule, {"paused": is_paused}),
        _show_state,
        access="change",
    )


def _path(name: str) -> str:
    return f"{BASE}/{quote_segment(name)}"


def _show_state(schedule: ShownSchedule) -> None:
    if schedule.notice:
        output.print_notice(f"Notice: {schedule.notice}", "yellow")
    if schedule.next_at is None:
        output.print_line(f"{schedule.name} is paused.")
        return
    words = f"{schedule.description[0].lower()}{schedule.description[1:]}" if schedule.description else schedule.cron
    output.print_line(f"{schedule.name} runs {words} ({schedule.timezone}); next {format_age(schedule.next_at)}.")


def _show_list(page: ScheduleTable) -> None:
    if not page.schedules:
        output.print_notice("There are no schedules yet. Create one with: stentor schedule add NAME --cron ...")
        return
    rows = [
        [
            each.name,
            each.description,
            each.timezone,
            each.type,
            _describe_next(each),
            f"{each.last_run.outcome} {format_age(each.last_run.happened_at)}" if each.last_run else "-",
        ]
        for each in page.schedules
    ]
    console.print(output.render_table(["name", "times", "zone", "type", "next", "last"], rows))


def _show_schedule(record: JsonObject) -> None:
    """Print a schedule with its times and its task in words; --json has every field."""
    task = record["task"]
    paused = f"yes: {record['paused_reason']}" if record["paused_reason"] else "yes"
    ends = {
        "times": f"{record['description']} ({record['cron']})",
        "time zone": record["timezone"],
        "paused": paused if record["paused"] else None,
        "next times": "\n".join(f"{at[:19].replace('T', ' ')} UTC, {format_age(at)}" for at in record["next_times"]),
        "missed times": record["missed"],
        "overlap": record["overlap"],
        "runs as": record["runs_as"],
        "title": task["title"],
        "type": task["type"],
        "capability": ", ".join(task["required_capabilities"]) or "any agent",
        "agent": task["agent_preference"],
        "input": task["input"],
        "timeout": format_duration(1000 * task["timeout_seconds"]),
        **{name: value for name, value in task["metadata"].items() if name != "title" and value not in (None, [])},
        "created": f"{format_age(record['created_at'])} by {record['created_by']}",
        "notice": record["notice"],
    }
    fields = {"name": record["name"]} | {name: value for name, value in ends.items() if value not in (None, "")}
    console.print(output.render_record(fields))


def _describe_next(schedule: ShownSchedule) -> str:
    if schedule.next_at is not None:
        return format_age(schedule.next_at)
    return f"paused: {schedule.paused_reason}" if schedule.paused_reason else "paused"


def _show_runs(page: ListedRuns) -> None:
    rows = [[run.due_at[:19] + "Z", run.outcome, run.task_id, run.reason] for run in page.runs]
    console.print(output.render_table(["due", "outcome", "task", "reason"], rows))
