"""The report of the demo: which agent got which task and why, how the weights changed, and the events of one task.

The parts from `scenarios` and `governance_scenarios` follow, each with its own rendering.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from stentor.cli.client.responses import RunEvent
from stentor.cli.demo import governance_scenarios, scenarios
from stentor.cli.output import own_command
from stentor.domains.routing.model import RoutingDecision

MAX_TITLE_LENGTH = 24
SCENARIOS = 5
"""The panels: a failing agent, the librarian, an agent as a model, governance, the run log."""


class DemoMetadata(msgspec.Struct, frozen=True):
    """The first tag is the title of the section that the task is about."""

    tags: list[str]


class DemoSubmission(msgspec.Struct, frozen=True):
    metadata: DemoMetadata


class DemoTask(msgspec.Struct, frozen=True):
    """A completed task of the demo with its routing decision and its events."""

    round: int
    capability: str
    task_id: str
    agent_name: str
    task: DemoSubmission
    routing: RoutingDecision
    events: list[RunEvent]


class DemoReport(msgspec.Struct, frozen=True):
    """All results; `weights` is per agent and task type, `trust` per agent, None if unscored."""

    tasks: int
    weights: dict[str, dict[str, float]]
    trust: dict[str, float | None]
    rows: list[DemoTask]
    answers: list[scenarios.LibrarianAnswer]
    model: scenarios.ChatAnswer
    learning: list[scenarios.LearningPhase]
    caught: governance_scenarios.Quarantine
    update: governance_scenarios.UndoneUpdate
    proof: governance_scenarios.TamperProof


def print_report(out: Console, report: DemoReport) -> None:
    """Print all parts of the report."""
    out.print(_assignments(report.rows))
    out.print(_routing_shift(report.rows))
    out.print(_learning(report))
    out.print(scenarios.render_learning(report.learning))
    out.print(_events(next(row for row in reversed(report.rows) if row.capability == "summarize")))
    out.print(scenarios.render_librarian(report.answers))
    out.print(scenarios.render_chat(report.model))
    out.print(governance_scenarios.render_governance(report.caught, report.update))
    out.print(governance_scenarios.render_tampering(report.proof))
    out.print(
        f"\n[bold green]{report.tasks} tasks and {SCENARIOS} scenarios completed.[/] "
        f"Start your own service with [cyan]{own_command()} serve[/]."
    )


def _assignments(rows: list[DemoTask]) -> Table:
    table = Table(title="Tasks by agent", title_justify="left")
    for name in ("capability", "agent", "tasks", "performance", "example"):
        table.add_column(name, justify="right" if name in ("tasks", "performance") else "left", no_wrap=True)
    groups: dict[tuple[str, str], list[DemoTask]] = defaultdict(list)
    for row in rows:
        groups[row.capability, row.agent_name].append(row)
    for (capability, agent), tasks in sorted(groups.items()):
        mean = sum(_performance(row) for row in tasks) / len(tasks)
        title = tasks[0].task.metadata.tags[0]
        table.add_row(capability, agent, str(len(tasks)), f"{mean:.3f}", _short(title))
    return table


def _routing_shift(rows: list[DemoTask]) -> Table:
    """Show three short summaries, which two agents can do: the first, the first by the other agent, the last."""
    short = [row for row in rows if row.capability == "summarize"]
    first, last = short[0], short[-1]
    other = next((row for row in short if row.agent_name != first.agent_name), last)
    table = Table(title="Why: score = expected + uncertainty", title_justify="left")
    for name in ("task", "chosen", "candidate", "declared", "done", "expected", "+", "score"):
        table.add_column(name, justify="left" if name in ("chosen", "candidate") else "right")
    for row in {row.task_id: row for row in (first, other, last)}.values():
        for i, candidate in enumerate(row.routing.candidates):
            terms = [f"{candidate.composite:.3f}", f"{candidate.outcomes:.0f}"]
            terms += [f"{score:.3f}" for score in (candidate.expected, candidate.uncertainty, candidate.blended)]
            head = [str(rows.index(row) + 1), row.agent_name] if i == 0 else ["", ""]
            table.add_row(*head, candidate.name, *terms)
        table.add_section()
    table.caption = (
        "expected: the declared scores count as four outcomes, then the agent's own count; +: uncertainty bonus; "
        f"decided in {last.routing.duration_us} µs"
    )
    return table


def _learning(report: DemoReport) -> Table:
    table = Table(title="Learned weights", title_justify="left")
    for name in ("agent", "task type", "before", "after", "trust"):
        table.add_column(name, justify="left" if name in ("agent", "task type") else "right")
    for agent, weights in report.weights.items():
        trust = report.trust[agent]
        for task_type, weight in weights.items():
            trust_text = "unscored" if trust is None else f"{trust:.2f}"
            table.add_row(agent, task_type, "1.000", f"{weight:.3f}", trust_text)
    return table


def _events(row: DemoTask) -> Tree:
    """Show the events of one task as a tree of causes."""
    tree = Tree(f"Events of one task [dim]({row.task_id})[/]")
    nodes: dict[str | None, Tree] = {}
    for event in row.events:
        parent = nodes.get(event.parent_provenance_id, tree)
        time = event.timestamp[11:-4]
        nodes[event.provenance_id] = parent.add(f"[cyan]{event.event_type}[/] [dim]{time}[/] {event.message}")
    return tree


def _short(title: str) -> str:
    """Shorten a title, so that the table fits into 80 columns."""
    return title if len(title) <= MAX_TITLE_LENGTH else title[: MAX_TITLE_LENGTH - 1] + "…"


def _performance(row: DemoTask) -> float:
    completed = next(event for event in row.events if event.event_type == "task_completed")
    return float(completed.metadata.get("performance", 1.0))
