"""Shows that routing learns: an agent that fails is left, and gets tasks again when it does better than its peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.panel import Panel

PHASES = (
    ("bold promises more, and fails every task", "bold", 20),
    ("bold is mended, and steady breaks", "steady", 40),
)
"""What happens, who fails from then on, and for how many tasks."""
AGENTS = {"bold": 0.9, "steady": 0.6}
"""The scores that they register with."""
Call = Callable[..., Any]


def watch(call: Call) -> list[dict[str, Any]]:
    """Submit the tasks one after the other and end each as the worker that was chosen; answers who got which."""
    ids = {name: _register(call, name, score) for name, score in AGENTS.items()}
    names = {agent_id: name for name, agent_id in ids.items()}
    phases = []
    for title, failing, tasks in PHASES:
        chosen = [_one(call, names, failing) for _ in range(tasks)]
        phases.append({"title": title, "chosen": chosen})
    return phases


def _register(call: Call, name: str, score: float) -> str:
    scores = dict.fromkeys(("alignment_score", "accuracy_score", "efficiency_score"), score)
    body = {"name": name, "capabilities": ["triage"], **scores}
    return str(call("POST", "/registry/agents", body)["agent_id"])


def _one(call: Call, names: dict[str, str], failing: str) -> str:
    body = {"type": "triage", "input": "Who should answer this?", "required_capabilities": ["triage"]}
    task_id = call("POST", "/tasks", body)["task_id"]
    agent_id = call("GET", f"/tasks/{task_id}")["assigned_agent"]
    (claim,) = call("POST", f"/agents/{agent_id}/claims", {})["tasks"]
    epoch = {"epoch": claim["epoch"]}
    if names[agent_id] == failing:
        call("POST", f"/tasks/{task_id}/fail", epoch | {"error": {"message": "broken"}})
    else:
        call("POST", f"/tasks/{task_id}/complete", epoch | {"result": "support"})
    return names[agent_id]


def show(phases: list[dict[str, Any]]) -> Panel:
    lines = []
    for phase in phases:
        chosen = phase["chosen"]
        row = "".join("[red]B[/]" if name == "bold" else "[green]s[/]" for name in chosen)
        lines.append(f"{phase['title']}: bold gets {chosen.count('bold')} of {len(chosen)}")
        lines.append(row)
    lines.append("[dim]B is bold, s is steady, in the order of the tasks.[/]")
    return Panel("\n".join(lines), title="An agent that fails is left, and comes back", title_align="left", width=80)
