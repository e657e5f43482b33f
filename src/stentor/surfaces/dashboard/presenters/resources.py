"""Rows as the dashboard's readers see them: pure. Source: second contract, "Resources and their fields".

How the gateway ranks: known from its settings in its own process, else from what its last decision recorded.

An agent on one page of plain text: pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso, format_iso_or_none
from stentor.core.runlog import RunLogEvent
from stentor.domains.activity import model as activity
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import SentinelAlert, Weight
from stentor.domains.registry.model import AgentStatus
from stentor.domains.reports.model import VaultReport
from stentor.domains.routing.model import RoutingPolicy
from stentor.domains.tasknotes.model import MAX_READ_CHARS, TaskNoteRecord, build_frontmatter, locate_note
from stentor.domains.tasknotes.render import MAX_BLOCK_CHARS
from stentor.surfaces.dashboard.store import GovernanceSnapshot, LastRoutingDecision, ScoredAgent, TaskWithEvents

STATUSES: tuple[AgentStatus, ...] = ("active", "suspended", "quarantined")
OPTIONAL_FIELDS = ("task_tags", "user_id", "retry_count", "parent_task_id")
BODY_FIELDS = ("input", "result", "error")


def present_task(tenant: str, found: TaskNoteRecord, *, has_note: bool) -> dict[str, Any]:
    """The task's note as metadata: the fields of its frontmatter, what went in and came out, and where it stands.

    `truncated` names the parts that are longer than a note shows; of these the first characters are given as text.
    """
    body = {name: _value(getattr(found, name)) for name in BODY_FIELDS}
    return {
        **dict.fromkeys(OPTIONAL_FIELDS),
        **build_frontmatter(found),
        **{name: value for name, (value, _) in body.items()},
        "truncated": [name for name, (_, whole) in body.items() if not whole],
        "note_path": task_note_path(tenant, found) if has_note else None,
    }


def task_note_path(tenant: str, found: TaskNoteRecord) -> str:
    """Where the mirror puts the note; made of the row, and of nothing that a caller chose but by a hash."""
    return "/".join(locate_note(tenant, found.task_id, found.created_at))


def _value(stored: str | None) -> tuple[Any, bool]:
    if stored is None:
        return None, True
    if len(stored) > MAX_READ_CHARS:
        return stored[:MAX_BLOCK_CHARS], False
    return jsontext.load(stored), True


def present_trail(
    task_id: str, task: dict[str, Any] | None, history: TaskWithEvents, reports: Sequence[VaultReport]
) -> dict[str, Any]:
    """The activity of a task; `task` is its record as it is shown."""
    found = activity.build_trail(task_id, task, history.events, reports)
    later = _status_after(history)
    return found | ({"status": later} if later else {})


def _status_after(history: TaskWithEvents) -> str | None:
    """What an event says of the status that was recorded after the task's row was written last."""
    if history.record is None:
        return None
    later = [event for event in history.events.last if event.event_id > history.record.head_id]
    found = latest_metadata(later, "status")
    return found if isinstance(found, str) else None


def latest_metadata(events: Sequence[RunLogEvent], name: str) -> Any:
    """The last word of the events on something; None when none has one."""
    return next((e.metadata[name] for e in reversed(events) if e.metadata.get(name) is not None), None)


def present_governance(found: GovernanceSnapshot, threshold: float) -> dict[str, Any]:
    names = {one.agent.agent_id: one.agent.name for one in found.agents}
    counts = dict.fromkeys(STATUSES, 0)
    for one in found.agents:
        counts[one.agent.status] += 1
    return {
        "agents": [
            _present_agent(one) for one in sorted(found.agents, key=lambda one: (one.agent.name, one.agent.agent_id))
        ],
        "status_counts": counts,
        "sentinel": present_sentinel(found.weights, names, threshold),
        "stores": {
            "agent_registry": found.has_all_agents,
            "hebbian_weights": found.has_all_weights,
            "trust": found.has_all_trust_scores,
        },
    }


def _present_agent(one: ScoredAgent) -> dict[str, Any]:
    return {
        "agent_id": one.agent.agent_id,
        "name": one.agent.name,
        "tier": one.agent.trust_tier,
        "status": one.agent.status,
        "violation_count": one.agent.violation_count,
        "trust_score": one.trust,
    }


def present_sentinel(weights: Sequence[Weight], names: Mapping[str, str], threshold: float) -> list[dict[str, Any]]:
    """A row for each agent and task type, ordered by the agent's name."""
    rows = [
        {
            "agent_id": weight.agent_id,
            "agent_name": names.get(weight.agent_id),
            "task_type": weight.task_type,
            "alert_active": learning.is_alarming(weight.recent, threshold),
            "oscillation_rate": learning.oscillation_rate(weight.recent),
            "threshold": threshold,
            "sample_count": len(weight.recent),
        }
        for weight in weights
    ]
    return sorted(rows, key=lambda row: (row["agent_name"] or "", row["agent_id"], row["task_type"]))


def present_alert(found: SentinelAlert, names: Mapping[str, str]) -> dict[str, Any]:
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


class RankingSettings(msgspec.Struct, frozen=True):
    """What the settings of the gateway say; `trust_available` is its view in memory."""

    policy: RoutingPolicy
    trust_available: bool


def present_routing_config(ranking: RankingSettings | None, decided: LastRoutingDecision | None) -> dict[str, Any]:
    """What is not known is None: the settings of a gateway in another process are its own."""
    if ranking is not None:
        policy = ranking.policy
        own: dict[str, Any] = {
            "source": "settings",
            "own_authority": policy.own_authority,
            "policy_file": policy.is_permitted is not None,
            "trust_available": ranking.trust_available,
            "decided_at": format_iso(decided.at) if decided else None,
        }
        return own | _ranking_weights(policy.alpha, policy.beta, policy.trust_floor)
    unknown = {"own_authority": None, "policy_file": None}
    if decided is None:
        nothing = dict.fromkeys(("alpha", "beta", "trust_floor", "trust_available", "decided_at"))
        return {"source": "unknown", **unknown, **nothing}
    known = {
        "source": "last_decision",
        "trust_available": decided.trust_available,
        "decided_at": format_iso(decided.at),
    }
    return known | unknown | _ranking_weights(decided.alpha, decided.beta, decided.trust_floor)


def _ranking_weights(alpha: float, beta: float, floor: float) -> dict[str, float]:
    """As in `domains/routing/ranking.py`."""
    return {"alpha": alpha, "beta": beta, "trust_floor": floor}


LABEL_WIDTH = 14
UNSCORED = "unscored"


def render_agent_card(found: ScoredAgent, weights: Sequence[Weight], now: int) -> str:
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
    lines = [
        _single_line(agent.name),
        "",
        *(f"{name + ':':<{LABEL_WIDTH}}{_single_line(value)}" for name, value in rows),
    ]
    if weights:
        lines += ["", "weights:", *(_weight_line(weight, now) for weight in weights)]
    return "\n".join(lines) + "\n"


def _weight_line(weight: Weight, now: int) -> str:
    mean = f"{weight.mean_ms:.0f} ms on average"
    return f"  {_single_line(weight.task_type)}: {weight.weight_at(now):.3f} after {weight.samples} outcomes, {mean}"


def _single_line(text: str) -> str:
    """Text of others stays on its line, and has no control characters."""
    return "".join(char if char.isprintable() else " " for char in text)
