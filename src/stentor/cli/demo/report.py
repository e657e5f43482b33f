"""What the demo shows at its end: who got what and why, how the weights moved, one task's trail."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from stentor.cli.demo import governed, learning, library, model, proof

MAX_TITLE = 24


def collect(api: httpx.Client, agents: dict[str, str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All figures of the report, read back from the service."""
    weights = {n: api.get("/hebbian/weights", params={"agent_id": i}).json()["weights"] for n, i in agents.items()}
    trust = {n: api.get(f"/registry/agents/{i}").json()["trust_score"] for n, i in agents.items()}
    return {"tasks": len(rows), "weights": weights, "trust": trust, "rows": rows}


def show(out: Console, figures: dict[str, Any]) -> None:
    rows = figures["rows"]
    out.print(_assignments(rows))
    out.print(_change_of_mind(rows))
    out.print(_learning(figures))
    out.print(learning.show(figures["learning"]))
    out.print(_trail(next(row for row in reversed(rows) if row["capability"] == "summarize")))
    out.print(library.show(figures["answers"]))
    out.print(model.show(figures["model"]))
    out.print(governed.show(figures["caught"], figures["update"]))
    out.print(proof.show(figures["proof"]))
    out.print(
        f"\n[bold green]{figures['tasks']} tasks completed.[/] Start your own service with [cyan]stentor serve[/]."
    )


def _assignments(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Which agent got what", title_justify="left")
    for name in ("capability", "agent", "tasks", "performance", "for example"):
        table.add_column(name, justify="right" if name in ("tasks", "performance") else "left", no_wrap=True)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["capability"], row["agent_name"]].append(row)
    for (capability, agent), found in sorted(groups.items()):
        mean = sum(_performance(row) for row in found) / len(found)
        title = found[0]["task"]["metadata"]["tags"][0]
        table.add_row(capability, agent, str(len(found)), f"{mean:.3f}", _short(title))
    return table


def _change_of_mind(rows: list[dict[str, Any]]) -> Table:
    """Short summaries, which two agents can do: the first, the first that went to another, the last."""
    short = [row for row in rows if row["capability"] == "summarize"]
    first, last = short[0], short[-1]
    other = next((row for row in short if row["agent_name"] != first["agent_name"]), last)
    table = Table(title="Why: score = expected + uncertainty", title_justify="left")
    for name in ("round", "chosen", "candidate", "declared", "done", "expected", "+", "score"):
        table.add_column(name, justify="left" if name in ("chosen", "candidate") else "right")
    for row in {row["task_id"]: row for row in (first, other, last)}.values():
        for i, candidate in enumerate(row["routing"]["candidates"]):
            terms = [f"{candidate['composite']:.3f}", f"{candidate['outcomes']:.0f}"]
            terms += [f"{candidate[name]:.3f}" for name in ("expected", "uncertainty", "blended")]
            head = [str(row["round"]), row["agent_name"]] if i == 0 else ["", ""]
            table.add_row(*head, candidate["name"], *terms)
        table.add_section()
    routing = last["routing"]
    table.caption = (
        "expected: what an agent declares counts as four outcomes, then what it has done; + how much better it may be; "
        f"decided in {routing['duration_us']} µs"
    )
    return table


def _learning(figures: dict[str, Any]) -> Table:
    table = Table(title="How the weights moved", title_justify="left")
    for name in ("agent", "task type", "weight", "after", "trust"):
        table.add_column(name, justify="left" if name in ("agent", "task type") else "right")
    for agent, weights in figures["weights"].items():
        trust = figures["trust"][agent]
        for task_type, weight in weights.items():
            shown = "unscored" if trust is None else f"{trust:.2f}"
            table.add_row(agent, task_type, "1.000", f"{weight:.3f}", shown)
    return table


def _trail(row: dict[str, Any]) -> Tree:
    """One task's events, each below the one that led to it."""
    tree = Tree(f"One task's trail [dim]({row['task_id']})[/]")
    nodes = {None: tree}
    for event in row["events"]:
        parent = nodes.get(event["parent_provenance_id"], tree)
        time = event["timestamp"][11:-4]
        nodes[event["provenance_id"]] = parent.add(f"[cyan]{event['event_type']}[/] [dim]{time}[/] {event['message']}")
    return tree


def _short(title: str) -> str:
    """So that the table fits into 80 columns."""
    return title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…"


def _performance(row: dict[str, Any]) -> float:
    ended = next(e for e in row["events"] if e["event_type"] == "task_completed")
    return float(ended["metadata"].get("performance", 1.0))
