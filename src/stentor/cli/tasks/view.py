"""The output of `stentor task`: tasks, results and events. Routing decisions are printed in `decisions`."""

from __future__ import annotations

import shlex
from typing import ClassVar

import msgspec
from rich.text import Text
from rich.tree import Tree

from stentor.cli import output
from stentor.cli.output import console, print_notice, strip_controls
from stentor.cli.responses import RunEvent, StoredTask, TaskActivity
from stentor.cli.tasks import decisions
from stentor.core.jsontext import JsonObject

_ENDS = {"failed": "failed", "aborted": "was aborted", "cancelled": "was cancelled"}
MAX_DEPTH = 8
"""Levels of the tree of events; each attempt and each wait of a task would add another one."""


class SubmittedTask(msgspec.Struct, frozen=True):
    """A task that was submitted, retried or cancelled; `notice` is why it may have to wait."""

    task_id: str
    status: str
    notice: str | None = None


class TaskRow(msgspec.Struct, frozen=True):
    task_id: str
    type: str
    status: str
    assigned_agent: str | None
    created_at: str
    title: str = ""
    agent_name: str | None = None


class TaskList(msgspec.Struct, frozen=True):
    path: ClassVar[str] = "/tasks"
    noun: ClassVar[str] = "task"

    tasks: list[TaskRow]
    total: int

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


def show_notice(task: SubmittedTask) -> None:
    """Print to standard error why the task may have to wait, if the service reports a reason."""
    if task.notice:
        print_notice(f"Notice: {task.notice}.", "yellow")


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
    """Print a task without its empty fields."""
    console.print(output.render_record({name: value for name, value in record.items() if value not in (None, [], {})}))
    if record.get("status") == "waiting":
        print_notice(f"What it waits for: stentor task steps {shlex.quote(str(record['task_id']))}", "dim")


def show_list(page: TaskList) -> None:
    """Print a page of tasks."""
    rows = [
        (
            output.shorten_id(task.task_id),
            task.title or task.type,
            task.status,
            task.agent_name or task.assigned_agent,
            output.format_age(task.created_at),
        )
        for task in page.tasks
    ]
    console.print(output.render_table(("id", "title", "status", "agent", "created"), rows))
    if page.total > len(rows):
        console.print(f"Showing {len(rows)} of {page.total}; use --limit for more.", style="dim")


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
