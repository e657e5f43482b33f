"""One agent's record, trust and lessons as its page shows them: pure."""

from __future__ import annotations

from typing import Any

from stentor.core.clock import format_iso, format_iso_or_none
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import Alert, Weight
from stentor.domains.trust import model as trust_model
from stentor.domains.trust.model import Change
from stentor.surfaces.dashboard.pages import lines

CONNECTIONS = 100


def composite(record: dict[str, Any]) -> float:
    shares = {"alignment_score": 0.4, "accuracy_score": 0.4, "efficiency_score": 0.2}
    return sum(share * float(record[name]) for name, share in shares.items())


def trust(record: dict[str, Any], changes: list[Change], now: int) -> dict[str, Any]:
    """The line goes up to now, with what decayed since the last change."""
    score = record["trust_score"]
    points = [(change.happened_at, change.score) for change in reversed(changes)]
    if points and score is not None and now > points[-1][0]:
        points.append((now, score))
    rows = [
        {
            "time": format_iso(one.happened_at),
            "kind": one.kind,
            "delta": one.delta,
            "score": one.score,
            "cause": one.cause,
        }
        for one in changes
    ]
    level = None if score is None else trust_model.level_of(score)
    return {
        "line": lines.line(points, 0.0, 1.0, stepped=True),
        "changes": rows,
        "level": level,
        "since": rows and rows[-1]["time"],
    }


def weights(weights: list[Weight], entries: list[dict[str, Any]], now: int, threshold: float) -> list[dict[str, Any]]:
    """Each task type with its last outcomes and how its weight moved."""
    top = max((weight.at(now) for weight in weights), default=0.0)
    return [
        {
            "type": weight.task_type,
            "weight": weight.at(now),
            "most": max(top, 1.0),
            "mean_ms": weight.mean_ms,
            "samples": weight.samples,
            "recent": weight.recent,
            "successes": weight.recent.count("S"),
            "rate": learning.oscillation(weight.recent),
            "alarming": learning.alarming(weight.recent, threshold),
            "line": _moves(weight.task_type, entries),
        }
        for weight in weights
    ]


def _moves(task_type: str, entries: list[dict[str, Any]]) -> lines.Line | None:
    """By number of the outcome, not by its time: bursts would be one stroke."""
    values = [float(one["weight_after"]) for one in reversed(entries) if one["task_type"] == task_type]
    if len(values) < 2:
        return None
    return lines.line(list(enumerate(values)), min(values), max(values))


def connections(found: list[dict[str, Any]], agent_id: str) -> list[dict[str, Any]]:
    """The strongest first, each by the other end."""
    strongest = sorted(found, key=lambda one: -one["weight"])[:CONNECTIONS]
    return [{**one, "other": one["agent2"] if one["agent1"] == agent_id else one["agent1"]} for one in strongest]


def alert(alert: Alert) -> dict[str, Any]:
    times = {"opened_at": format_iso(alert.opened_at), "resolved_at": format_iso_or_none(alert.resolved_at)}
    return {name: getattr(alert, name) for name in ("task_type", "rate", "threshold", "samples")} | times
