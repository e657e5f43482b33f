"""Turns records into the JSON of the dashboard's API (models in `wire`) and into the plain-text agent card.

Pure functions. Source: second contract, "Resources and their fields".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.clock import format_iso
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import RunLogEvent
from stentor.domains.activity import model as activity
from stentor.domains.learning import model as learning
from stentor.domains.learning.model import SentinelAlert, Weight
from stentor.domains.registry.model import AgentStatus
from stentor.domains.reports.service import VaultReport
from stentor.domains.routing.model import RoutingPolicy
from stentor.domains.tasknotes.model import MAX_READ_CHARS, TaskNoteRecord, build_frontmatter, locate_note
from stentor.domains.tasknotes.render import MAX_BLOCK_CHARS
from stentor.surfaces.dashboard import wire
from stentor.surfaces.dashboard.store import GovernanceSnapshot, LastRoutingDecision, ScoredAgent, TaskWithEvents

STATUSES: tuple[AgentStatus, ...] = ("active", "suspended", "quarantined")
OPTIONAL_FIELDS = ("task_tags", "user_id", "retry_count", "parent_task_id")
BODY_FIELDS = ("input", "result", "error")
LABEL_WIDTH = 14
UNSCORED = "unscored"


class RankingSettings(msgspec.Struct, frozen=True):
    """The routing settings of a gateway in this process; `trust_available` is its state in memory."""

    policy: RoutingPolicy
    trust_available: bool


def present_task(tenant: str, record: TaskNoteRecord, *, has_note: bool) -> JsonObject:
    """Return a task with the fields of its note's frontmatter, its input, result and error, and the note's path.

    `truncated` names the body fields that are longer than a note shows; they are cut to their first characters.
    """
    body = {name: _decode_body_field(getattr(record, name)) for name in BODY_FIELDS}
    return {
        **dict.fromkeys(OPTIONAL_FIELDS),
        **build_frontmatter(record),
        **{name: value for name, (value, _) in body.items()},
        "truncated": [name for name, (_, is_complete) in body.items() if not is_complete],
        "note_path": task_note_path(tenant, record) if has_note else None,
    }


def task_note_path(tenant: str, record: TaskNoteRecord) -> str:
    """Return the path at which the mirror stores the task's note."""
    return "/".join(locate_note(tenant, record.task_id, record.created_at))


def _decode_body_field(stored: str | None) -> tuple[Any, bool]:
    """Return the value of stored JSON, and whether it is complete; a long one is cut and stays text."""
    if stored is None:
        return None, True
    if len(stored) > MAX_READ_CHARS:
        return stored[:MAX_BLOCK_CHARS], False
    return jsontext.load(stored), True


def present_trail(
    task_id: str, task: JsonObject | None, history: TaskWithEvents, reports: Sequence[VaultReport]
) -> JsonObject:
    """Return the activity of a task; `task` is the result of `present_task`."""
    trail = activity.build_trail(task_id, task, history.events, reports)
    status = _status_after(history)
    return trail | ({"status": status} if status else {})


def _status_after(history: TaskWithEvents) -> str | None:
    """Return the status in the events that are newer than the task's record, None without one."""
    if history.record is None:
        return None
    # Record and events are read one after the other, so the task may have moved on in between.
    newer = [event for event in history.events.last if event.event_id > history.record.head_id]
    status = latest_metadata(newer, "status")
    return status if isinstance(status, str) else None


def latest_metadata(events: Sequence[RunLogEvent], name: str) -> Any:
    """Return the value in the newest event whose metadata has the name, None without one."""
    return next((e.metadata[name] for e in reversed(events) if e.metadata.get(name) is not None), None)


def present_governance(snapshot: GovernanceSnapshot, threshold: float) -> JsonObject:
    """Return the body of the governance snapshot (`wire.Governance`); agents are ordered by name."""
    names = {scored.agent.agent_id: scored.agent.name for scored in snapshot.agents}
    counts = dict.fromkeys(STATUSES, 0)
    for scored in snapshot.agents:
        counts[scored.agent.status] += 1
    return {
        "agents": [
            wire.AgentRow.of(scored.agent, tier=scored.agent.trust_tier, trust_score=scored.trust).model_dump()
            for scored in sorted(snapshot.agents, key=lambda scored: (scored.agent.name, scored.agent.agent_id))
        ],
        "status_counts": counts,
        "sentinel": present_sentinel(snapshot.weights, names, threshold),
        "stores": {
            "agent_registry": snapshot.has_all_agents,
            "hebbian_weights": snapshot.has_all_weights,
            "trust": snapshot.has_all_trust_scores,
        },
    }


def present_sentinel(weights: Sequence[Weight], names: Mapping[str, str], threshold: float) -> list[JsonObject]:
    """Return a row (`wire.OscillationScope`) for each agent and task type, ordered by the agent's name."""
    rows: list[JsonObject] = [
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


def present_alert(alert: SentinelAlert, names: Mapping[str, str]) -> JsonObject:
    renamed = {"oscillation_rate": alert.rate, "sample_count": alert.samples}
    return wire.AlertOut.of(alert, agent_name=names.get(alert.agent_id), **renamed).model_dump()


def present_routing_config(ranking: RankingSettings | None, decided: LastRoutingDecision | None) -> JsonObject:
    """Return the ranking settings from the gateway in this process, else from the last decision.

    Unknown values are None: the settings of a gateway in another process are not visible here.
    """
    config: JsonObject = dict.fromkeys(wire.RoutingConfig.model_fields) | {"source": "unknown"}
    if decided is not None:
        config |= {"source": "last_decision", "trust_available": decided.trust_available}
        config |= {"decided_at": format_iso(decided.at)}
    if ranking is not None:
        policy = ranking.policy
        config |= {"source": "settings", "trust_available": ranking.trust_available}
        config |= {"own_authority": policy.own_authority, "policy_file": policy.is_permitted is not None}
    weights = ranking.policy if ranking is not None else decided
    if weights is not None:
        config |= {name: getattr(weights, name) for name in ("alpha", "beta", "trust_floor")}
    return config


def render_agent_card(scored_agent: ScoredAgent, weights: Sequence[Weight], now: int) -> str:
    """Return a plain-text summary of an agent, with a final newline.

    Of the runtime it contains only the kind: addresses and commands may hold secrets.
    """
    agent, trust = scored_agent.agent, scored_agent.trust
    status = agent.status if agent.status_reason is None else f"{agent.status} ({agent.status_reason})"
    rows = [
        ("id", agent.agent_id),
        ("status", status),
        ("tier", agent.trust_tier),
        ("trust", UNSCORED if trust is None else f"{trust:.3f}"),
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
    """Replace line breaks and control characters, so that an agent's text cannot forge lines of the card."""
    return "".join(char if char.isprintable() else " " for char in text)
