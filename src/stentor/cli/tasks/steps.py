"""The output of the commands on the journal of a task: its steps as a tree, and what people have to decide."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
from rich.text import Text
from rich.tree import Tree

from stentor.cli import output
from stentor.cli.output import STATUS_STYLES, console, strip_controls
from stentor.cli.tasks.view import TaskRow
from stentor.core import jsontext
from stentor.core.clock import format_duration
from stentor.domains.steps import model

MAX_VALUE = 60
"""Characters of a value in the tree."""
MAX_ROWS = 500
"""How many of the first and of the last steps are in the tree: nobody reads 100,000, and they take a minute."""


class StepRow(msgspec.Struct, frozen=True):
    key: str
    name: str
    kind: str
    state: str
    epoch: int
    size: int
    encoding: str
    value: Any
    value_sha256: str | None
    error: dict[str, Any] | None
    superseded: bool
    wake_at: str | None
    waits_for: str | None
    options: list[Any] | None = None
    task_id: str = ""
    title: str = ""
    started_at: str = ""
    ended_at: str | None = None
    duration_ms: int | None = None
    question: str | None = None


class StepList(msgspec.Struct, frozen=True):
    steps: list[StepRow]
    next_cursor: str | None = None


class DecisionList(msgspec.Struct, frozen=True):
    """What waits for a person: questions and effects of tasks, and tasks that wait for an approval."""

    path: ClassVar[str] = "/decisions"

    steps: list[StepRow]
    approvals: list[TaskRow] = []
    next_cursor: str | None = None


class SignalResult(msgspec.Struct, frozen=True):
    task_id: str
    received: bool


def show_steps(page: StepList) -> None:
    """Print the first and the last steps as a tree: those that ran within another one below it."""
    if not page.steps:
        console.print("The task has recorded no steps.", style="dim")
        return
    steps = page.steps
    if omitted := max(0, len(steps) - 2 * MAX_ROWS):
        steps = steps[:MAX_ROWS] + steps[-MAX_ROWS:]
    tree = Tree("Steps (times in UTC)")
    nodes: dict[str, Tree] = {}
    # A step is recorded when it ends, which is after the steps inside it; sorted by key, it comes first.
    inner = {step.key.rpartition("/")[0] for step in steps}
    for step in sorted(steps, key=lambda step: step.key.count("/")):
        parent = nodes.get(step.key.rpartition("/")[0], tree)
        node = parent.add(_format_step(step))
        if step.key in inner:
            nodes[step.key] = node
    console.print(tree)
    if omitted:
        output.print_notice(
            f"{omitted:,} steps between the first {MAX_ROWS} and the last are left out; --json has all."
        )


def show_step_value(step: StepRow) -> None:
    """Print the value of a step on standard output, its error on standard error."""
    if step.error is not None:
        output.print_notice(f"{step.name} failed: {step.error.get('type')}: {step.error.get('message')}", "red")
    elif step.state == "started":
        output.print_notice(f"{step.name} has no outcome yet.", "yellow")
    else:
        output.print_value(step.value)


def show_decisions(found: DecisionList) -> None:
    """Print what waits for a person: the task, the question, and the command that decides it."""
    if not found.steps and not found.approvals:
        console.print("No task waits for a person.")
        return
    for task in found.approvals:
        question = f"Run this task? It is for the agent {task.agent_name or task.assigned_agent}."
        reference = _quote_task(task.task_id)
        _show_decision(task.task_id, task.title or task.type, question, f"approve {reference}", f"reject {reference}")
    for step in found.steps:
        question = step.question or step.waits_for or f"Did {step.name} happen?"
        reference = f"{_quote_task(step.task_id)} --step {shlex.quote(step.key)}"
        if step.kind == "question":
            # One command for each: a shell would read "yes|no" as a pipe.
            answers = [shlex.quote(str(option)) for option in step.options or ()] or ["ANSWER"]
            commands = [f"answer {_quote_task(step.task_id)} {answer}" for answer in answers]
            _show_decision(step.task_id, step.title, question, *commands)
        else:
            commands = [f"resolve {reference} --happened", f"resolve {reference} --not-happened"]
            _show_decision(step.task_id, step.title, question, *commands)
    if any(step.kind == "effect" for step in found.steps):
        _print_hint(f"--happened: {model.HAPPENED}")
        _print_hint(f"--not-happened: {model.NOT_HAPPENED}")
        _print_hint("Then retry its task: stentor task retry TASK")


def _show_decision(task_id: str, title: str, question: str, *commands: str) -> None:
    console.print(Text.assemble((output.shorten_id(task_id), "bold"), "  ", strip_controls(title)))
    output.print_line(f"  {question}")
    for command in commands:
        _print_hint(f"  stentor task {command}")
    console.print()


def _quote_task(task_id: str) -> str:
    return shlex.quote(output.shorten_id(task_id))


def _print_hint(text: str) -> None:
    console.print(strip_controls(text), style="dim", markup=False, soft_wrap=True)


def show_signal(result: SignalResult) -> None:
    """Print whether the task waited for the signal."""
    effect = "got the signal" if result.received else "is not waiting for it yet; the signal is kept until it does"
    output.print_line(f"Task {result.task_id} {effect}.")


def _format_step(step: StepRow) -> Text:
    line = Text(strip_controls(step.name), style="bold")
    state = step.state
    if state == "started":
        state = "without an outcome" if step.kind == "effect" else "waiting"
    line.append(f"  {step.kind} ", style="dim")
    line.append(state, style=STATUS_STYLES.get(state, "yellow" if step.state == "started" else ""))
    if step.error:
        line.append(f" {step.error.get('type')}: {step.error.get('message')}"[:200], style="red")
    elif step.state == "started":
        line.append(_describe_wait(step), style="dim")
    elif step.size:
        line.append(f" {_shorten_value(step)}", style="dim")
    if step.superseded:
        line.append(" (runs again)", style="dim")
    line.append(f"  {_describe_times(step)}", style="dim")
    if step.key != step.name:
        line.append(f"  key {strip_controls(step.key)}", style="dim")
    return line


def _describe_times(step: StepRow) -> str:
    """Return when a step began, how long it took, and in which attempt: `10:21:07, took 1.2 s, attempt 2`."""
    parts = []
    if step.started_at:
        is_today = step.started_at[:10] == datetime.now(UTC).date().isoformat()
        parts.append(step.started_at[11:19] if is_today else step.started_at[:19].replace("T", " "))
    if step.duration_ms is not None:
        took = format_duration(step.duration_ms) if step.duration_ms else "under 1 ms"
        parts.append(f"{'took' if step.kind in ('step', 'effect') else 'waited'} {took}")
    parts.append(f"attempt {step.epoch}" if step.epoch else "copied")
    return ", ".join(parts)


def _describe_wait(step: StepRow) -> str:
    text = f" for {strip_controls(step.waits_for)[:100]}" if step.waits_for else ""
    return text + (f" until {step.wake_at}" if step.wake_at else "")


def _shorten_value(step: StepRow) -> str:
    if step.encoding == "base64" or step.value_sha256 is not None:
        return f"{step.size:,} bytes"
    text = strip_controls(jsontext.dump(step.value))
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"
