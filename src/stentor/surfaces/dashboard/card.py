"""An agent on one page of plain text: pure."""

from __future__ import annotations

from collections.abc import Sequence

from stentor.core.clock import format_iso
from stentor.domains.learning.model import Weight
from stentor.surfaces.dashboard.stores import Standing

WIDTH = 14
UNSCORED = "unscored"


def card(found: Standing, weights: Sequence[Weight], now: int) -> str:
    """Ends in a newline. Nothing of the runtime but its kind: addresses and commands may hold secrets."""
    agent = found.agent
    status = agent.status if agent.status_reason is None else f"{agent.status} ({agent.status_reason})"
    rows = [
        ("id", agent.agent_id),
        ("status", status),
        ("tier", agent.trust_tier),
        ("trust", UNSCORED if found.trust is None else f"{found.trust:.3f}"),
        ("violations", str(agent.violation_count)),
        ("capabilities", ", ".join(agent.capabilities) or "none"),
        ("scores", f"alignment {agent.alignment_score:g}, accuracy {agent.accuracy_score:g}, "
         f"efficiency {agent.efficiency_score:g}, composite {agent.composite:.3f}"),
        ("runtime", agent.runtime.kind),
        ("registered", format_iso(agent.created_at)),
        ("changed", format_iso(agent.updated_at)),
    ]  # fmt: skip
    lines = [_line(agent.name), "", *(f"{name + ':':<{WIDTH}}{_line(value)}" for name, value in rows)]
    if weights:
        lines += ["", "weights:", *(_weight(weight, now) for weight in weights)]
    return "\n".join(lines) + "\n"


def _weight(weight: Weight, now: int) -> str:
    mean = f"{weight.mean_ms:.0f} ms on average"
    return f"  {_line(weight.task_type)}: {weight.at(now):.3f} after {weight.samples} outcomes, {mean}"


def _line(text: str) -> str:
    """Text of others stays on its line, and has no control characters."""
    return "".join(char if char.isprintable() else " " for char in text)
