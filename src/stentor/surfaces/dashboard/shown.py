"""Rows as the dashboard's readers see them: pure. Source: second contract, "Resources and their fields"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stentor.core import jsontext
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.runlog import RunLogEvent
from stentor.domains.activity import model as activity
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import Alert, Weight
from stentor.domains.registry.model import Status
from stentor.domains.reports.model import Report
from stentor.domains.tasknotes.model import READ, Record, frontmatter, place
from stentor.domains.tasknotes.render import SHOWN
from stentor.surfaces.dashboard.stores import History, Overview, Standing

STATUSES: tuple[Status, ...] = ("active", "suspended", "quarantined")
OPTIONAL = ("task_tags", "user_id", "retry_count", "parent_task_id")
BODY = ("input", "result", "error")


def record(tenant: str, found: Record, *, mirrored: bool) -> dict[str, Any]:
    """The task's note as metadata: the fields of its frontmatter, what went in and came out, and where it stands.

    `truncated` names the parts that are longer than a note shows; of these the first characters are given as text.
    """
    body = {name: _value(getattr(found, name)) for name in BODY}
    return {
        **dict.fromkeys(OPTIONAL),
        **frontmatter(found),
        **{name: value for name, (value, _) in body.items()},
        "truncated": [name for name, (_, whole) in body.items() if not whole],
        "note_path": note_path(tenant, found) if mirrored else None,
    }


def note_path(tenant: str, found: Record) -> str:
    """Where the mirror puts the note; made of the row, and of nothing that a caller chose but by a hash."""
    return "/".join(place(tenant, found.task_id, found.created_at))


def _value(stored: str | None) -> tuple[Any, bool]:
    if stored is None:
        return None, True
    if len(stored) > READ:
        return stored[:SHOWN], False
    return jsontext.load(stored), True


def trail(task_id: str, task: dict[str, Any] | None, history: History, reports: Sequence[Report]) -> dict[str, Any]:
    """The activity of a task; `task` is its record as it is shown."""
    found = activity.trail(task_id, task, history.events, reports)
    later = _status_after(history)
    return found | ({"status": later} if later else {})


def _status_after(history: History) -> str | None:
    """What an event says of the status that was recorded after the task's row was written last."""
    if history.record is None:
        return None
    later = [event for event in history.events.last if event.event_id > history.record.head_id]
    found = latest(later, "status")
    return found if isinstance(found, str) else None


def latest(events: Sequence[RunLogEvent], name: str) -> Any:
    """The last word of the events on something; None when none has one."""
    return next((e.metadata[name] for e in reversed(events) if e.metadata.get(name) is not None), None)


def governance(found: Overview, threshold: float) -> dict[str, Any]:
    names = {one.agent.agent_id: one.agent.name for one in found.agents}
    counts = dict.fromkeys(STATUSES, 0)
    for one in found.agents:
        counts[one.agent.status] += 1
    return {
        "agents": [_agent(one) for one in sorted(found.agents, key=lambda one: (one.agent.name, one.agent.agent_id))],
        "status_counts": counts,
        "sentinel": sentinel(found.weights, names, threshold),
        "stores": {"agent_registry": found.registry, "hebbian_weights": found.hebbian, "trust": found.trust},
    }


def _agent(one: Standing) -> dict[str, Any]:
    return {
        "agent_id": one.agent.agent_id,
        "name": one.agent.name,
        "tier": one.agent.trust_tier,
        "status": one.agent.status,
        "violation_count": one.agent.violation_count,
        "trust_score": one.trust,
    }


def sentinel(weights: Sequence[Weight], names: Mapping[str, str], threshold: float) -> list[dict[str, Any]]:
    """A row for each agent and task type, ordered by the agent's name."""
    rows = [
        {
            "agent_id": weight.agent_id,
            "agent_name": names.get(weight.agent_id),
            "task_type": weight.task_type,
            "alert_active": learning.alarming(weight.recent, threshold),
            "oscillation_rate": learning.oscillation(weight.recent),
            "threshold": threshold,
            "sample_count": len(weight.recent),
        }
        for weight in weights
    ]
    return sorted(rows, key=lambda row: (row["agent_name"] or "", row["agent_id"], row["task_type"]))


def alert(found: Alert, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "alert_id": found.alert_id,
        "agent_id": found.agent_id,
        "agent_name": names.get(found.agent_id),
        "task_type": found.task_type,
        "oscillation_rate": found.rate,
        "threshold": found.threshold,
        "sample_count": found.samples,
        "opened_at": format_iso(found.opened_at),
        "resolved_at": format_iso_or_none(found.resolved_at),
    }
