"""The output of `stentor task`: tasks, results and events, and how it finds the task that the user refers to.

Routing decisions are printed in `decisions`.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Awaitable, Callable
from typing import Annotated, ClassVar, TypeVar

import msgspec
import typer
from rich.text import Text
from rich.tree import Tree

from stentor.cli import output
from stentor.cli.client.client import ServiceClient, quote_segment
from stentor.cli.client.responses import Response, RunEvent, StoredTask, TaskActivity
from stentor.cli.output import console, print_notice, strip_controls
from stentor.cli.tasks import decisions
from stentor.core.clock import format_duration
from stentor.core.jsontext import JsonObject

_ENDS = {"failed": "failed", "aborted": "was aborted", "cancelled": "was cancelled"}
_RENAMED = {"assigned_agent": "agent", "total_duration_ms": "took", "duration_ms": "last attempt took"}
MIN_TITLE_CHARACTERS = 24
MAX_DEPTH = 8
"""Levels of the tree of events; each attempt and each wait of a task would add another one."""
MAX_NORMAL_LAG = 1_000
"""Events that the search index may be behind; more take a while."""
T = TypeVar("T")
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="Its id, or the beginning or end of the id.")]


class SubmittedTask(msgspec.Struct, frozen=True):
    """A task that was submitted, retried or cancelled; `notice` is why it may have to wait."""

    task_id: str
    status: str
    notice: str | None = None
    notice_code: str | None = None


class TaskRow(msgspec.Struct, frozen=True):
    task_id: str
    type: str
    status: str
    assigned_agent: str | None
    created_at: str
    title: str = ""
    agent_name: str | None = None
    attempts: int = 0
    total_duration_ms: int | None = None


class TaskList(msgspec.Struct, frozen=True):
    path: ClassVar[str] = "/tasks"
    noun: ClassVar[str] = "task"

    tasks: list[TaskRow]
    total: int
    unindexed_events: int | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {task.task_id: task.title or task.type for task in self.tasks}


class TaskGrade(msgspec.Struct, frozen=True):
    task_id: str
    grade: float
    learned: bool


def show_submitted(task: SubmittedTask) -> None:
    """Print id and status of a submitted task."""
    output.print_line(f"Task {task.task_id} is {task.status}.")
    show_notice(task)
    if task.status == "pending_approval":
        print_notice(f"It waits for an approval: stentor task approve {shlex.quote(task.task_id)}", "yellow")


def show_known(task: SubmittedTask, status: str) -> None:
    """Print the state of a task that was submitted before with the same id and body: nothing was submitted."""
    output.print_line(f"Task {task.task_id} was submitted before; it is {status}.")


def show_notice(task: SubmittedTask | StoredTask) -> None:
    """Print to standard error why the task may have to wait, if the service reports a reason."""
    if task.notice_code == "NO_WORKER_ONLINE":
        print_notice(
            "Notice: no worker online: the task waits until the program of its agent connects. "
            "`stentor agent list` shows who is online.",
            "yellow",
        )
    elif task.notice:
        print_notice(f"Notice: {task.notice.removesuffix('.')}.", "yellow")


def show_grade(graded: TaskGrade) -> None:
    """Print the grade, and whether routing learned from it."""
    effect = "learning was updated" if graded.learned else "learning is not affected"
    output.print_line(f"Graded task {graded.task_id} {graded.grade:g}; {effect}.")


def is_completed(task: StoredTask) -> bool:
    return task.status == "completed"


def show_result(task: StoredTask, *, is_printed: bool = False) -> None:
    """Print the result to standard output unless it was streamed; the error of a failed task to standard error."""
    if is_completed(task):
        if not is_printed:
            output.print_value(task.result)
        return
    error = task.error
    reason = f" {error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else ""
    print_notice(f"Task {task.task_id} {_ENDS.get(task.status, f'is {task.status}')}.{reason}", "red")


def show_task(record: JsonObject) -> None:
    """Print a task without its empty fields, its agent by name, and what it waits for."""
    fields = {_RENAMED.get(name, name): value for name, value in record.items() if value not in (None, [], {})}
    agent_id, agent_name = record.get("assigned_agent"), fields.pop("agent_name", None)
    if agent_id and agent_name:
        fields["agent"] = f"{agent_name} ({agent_id})"
    if isinstance(error := fields.get("error"), dict) and error.get("message"):
        # Its details are in the output of --json.
        fields["error"] = f"{error.get('code', '')}: {error['message']}".removeprefix(": ")
    metadata = {name: value for name, value in record.get("metadata", {}).items() if name != "title"}
    if not metadata:
        fields.pop("metadata", None)
    elif "title" in record:
        fields["metadata"] = metadata
    for name in ("took", "last attempt took"):
        if name in fields:
            fields[name] = format_duration(fields[name])
    last = fields.pop("last attempt took", None)
    if last is not None and "took" in fields and record.get("attempts", 0) > 1:
        fields["took"] += f" in {record['attempts']} attempts, the last one {last}"
    waits = fields.pop("waits_for", [])
    if waits:
        fields["waits for"] = "\n".join(describe_wait(wait).removeprefix("Waits for ") for wait in waits)
        if any(wait["kind"] in ("agent", "limit") for wait in waits):
            fields.pop("notice", None)  # it says the same
    console.print(output.render_record(fields))


def describe_wait(wait: JsonObject) -> str:
    """Return one thing that a task waits for, such as `Sleeps until 2027-01-04 08:00:00 UTC`."""
    until = f" until {wait['until'][:19].replace('T', ' ')} UTC" if wait["until"] else ""
    other = f" ({wait['other_task_id']})" if wait["other_task_id"] else ""
    return f"{wait['text']}{other}{until}"


def _describe_duration(task: TaskRow) -> str:
    if task.total_duration_ms is None:
        return f"{task.attempts} attempts" if task.attempts > 1 else "-"
    took = format_duration(task.total_duration_ms)
    return f"{took}, {task.attempts} attempts" if task.attempts > 1 else took


def show_list(page: TaskList) -> None:
    """Print a page of tasks, their titles in two lines at most."""
    columns = ("id", "title", "status", "agent", "took", "created")
    rows = [
        [
            output.shorten_id(task.task_id),
            "",
            task.status,
            output.shorten_name(task.agent_name or task.assigned_agent or "-"),
            _describe_duration(task) or "-",
            output.format_age(task.created_at),
        ]
        for task in page.tasks
    ]
    others = sum(1 + max(map(len, column)) for column in zip(columns, *rows, strict=True) if column[0] != "title")
    room = max(MIN_TITLE_CHARACTERS, 2 * (console.width - others - 2))
    for row, task in zip(rows, page.tasks, strict=True):
        row[1] = textwrap.shorten(task.title or task.type, room, placeholder="…")
    console.print(output.render_table(columns, rows))
    if page.total > len(rows):
        console.print(f"Showing {len(rows)} of {page.total}; use --limit for more.", style="dim")
    if page.unindexed_events and (not rows or page.unindexed_events > MAX_NORMAL_LAG):
        behind = "event" if page.unindexed_events == 1 else f"{page.unindexed_events:,} events"
        print_notice(f"The search index does not cover the latest {behind} of the run log yet: tasks may be missing.")


def show_activity(activity: TaskActivity) -> None:
    """Print the task, its routing decision, and its events as a tree of causes."""
    if activity.task:
        show_task(activity.task)
    if activity.routing:
        decisions.show_decision(activity.routing)
    tree = Tree("Events")
    places: dict[str | None, list[Tree]] = {}
    for event in activity.events:
        # The tree nodes from the root to the event that it follows from; deep chains go on at the last level.
        above = places.get(event.parent_provenance_id, [tree])[:MAX_DEPTH]
        places[event.provenance_id] = [*above, above[-1].add(_format_event(event))]
    console.print(tree)


def _format_event(event: RunEvent) -> Text:
    time = event.timestamp[11:-4]
    return Text.assemble((event.event_type, "cyan"), (f" {time} ", "dim"), strip_controls(event.message))


def on_task(
    ref: str, call: Callable[[ServiceClient, str], Awaitable[Response[T]]]
) -> Callable[[ServiceClient], Awaitable[Response[T]]]:
    """Return the call with the id of the task that the user refers to."""
    return lambda api: api.with_id(TaskList, ref, lambda task_id: call(api, task_id))


def task_path(task_id: str) -> str:
    """Return the path of a task in the API."""
    return f"/tasks/{quote_segment(task_id)}"
