"""What changed lately, as short lines that link to their pages: events, alerts, trends of a week. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from stentor.core.runlog import RunLogEvent
from stentor.domains.alerts.model import Alert
from stentor.surfaces.dashboard.gateway import quote_segment

MAX_LINES = 10
MAX_FIELDS = 3
MAX_ALERTS = 50
"""Alerts that are read, offline agents last; so of that many there may be more offline agents."""
MIN_GROUPED_OFFLINE = 3
"""From how many offline agents on their alerts are one row."""
PERMISSIONS = {
    "Agent": "admin",
    "Budget": "admin",
    "Key": "admin",
    "Provider": "admin",
    "Rollback": "admin",
    "Update": "approve",
}
"""What the page of a line needs, by its kind. Kinds that are not here need `read`."""
_MODEL_SETTINGS = {
    "budget_changed": ("Budget", "/models/budgets"),
    "model_route_changed": ("Models", "/models/providers"),
}
_STATUS_WORDS = {
    "active": "was activated",
    "suspended": "was suspended",
    "quarantined": "was quarantined",
    "archived": "was archived",
}
_AGENT_EVENTS = frozenset(("agent_registered", "agent_updated", "agent_status_changed"))
_FIELD_WORDS = {"sandbox_whitelist": "allow-list", "key_name": "key"}
_UPDATE_ENDS = {"update_deployed": "was deployed", "update_rolled_back": "was rolled back"}
_ROLLBACK_ENDS = {"rollback_completed": "rolled back and verified", "rollback_failed": "rollback failed"}


class RecentChange(msgspec.Struct, frozen=True):
    """A line. `at` is when it happened last, in microseconds; None for what became better or worse over a week."""

    kind: str
    text: str
    url: str
    at: int | None = None
    times: int = 1


def describe_changes(
    events: Iterable[RunLogEvent], alerts: Sequence[Alert], alert_url: Callable[[Alert], str], since: int,
    names: Mapping[str, str], schedules: Collection[str],
) -> list[RecentChange]:  # fmt: skip
    """Return a line for each change since a time, the latest first; the same change of one thing is one line.

    `names` are those of agents by id, `schedules` the names of those that exist.
    """
    lines = [line for event in events if (line := _describe_event(event, names, schedules))]
    lines += _describe_alerts(alerts, alert_url, since)
    return _merge(sorted(lines, key=lambda line: line.at or 0, reverse=True))


def _describe_alerts(alerts: Sequence[Alert], alert_url: Callable[[Alert], str], since: int) -> Iterator[RecentChange]:
    """Yield a line for each alert, but one for many offline agents, which would leave no room for anything else."""
    offline: dict[str, dict[str | None, RecentChange]] = {"Opened": {}, "Resolved": {}}
    for alert in alerts:
        is_resolved = alert.resolved_at is not None and alert.resolved_at >= since
        at = alert.resolved_at if is_resolved else alert.opened_at
        if at is None or at < since:
            continue
        change = "Resolved" if is_resolved else "Opened"
        line = RecentChange("Alert", f"{change}: {alert.message}", alert_url(alert), at)
        if alert.kind == "agent_offline":
            offline[change].setdefault(alert.agent_id, line)
        else:
            yield line
    for change, lines in offline.items():
        if len(lines) < MIN_GROUPED_OFFLINE:
            yield from lines.values()
            continue
        state = "are offline" if change == "Opened" else "were offline"
        number = f"{len(lines)}+" if len(alerts) == MAX_ALERTS else str(len(lines))
        latest = max(line.at or 0 for line in lines.values())
        yield RecentChange("Alert", f"{change}: {number} agents {state}", "/alerts", latest)


def _merge(lines: Iterable[RecentChange]) -> list[RecentChange]:
    merged: dict[tuple[str, str, str], RecentChange] = {}
    for line in lines:
        key = line.kind, line.text, line.url
        first = merged.get(key)
        merged[key] = line if first is None else msgspec.structs.replace(first, times=first.times + 1)
    return list(merged.values())


def select(
    changes: Sequence[RecentChange], trends: Sequence[RecentChange], may: Callable[[str], bool]
) -> tuple[list[RecentChange], int]:
    """Return at most MAX_LINES lines whose pages the reader may open, and how many more there are."""
    visible = [[line for line in lines if may(PERMISSIONS.get(line.kind, "read"))] for lines in (changes, trends)]
    # A trend is worth more than the tenth change of the same hour, so up to three have their place.
    trend_lines = visible[1][: max(3, MAX_LINES - len(visible[0]))]
    shown = visible[0][: MAX_LINES - len(trend_lines)] + trend_lines
    return shown, sum(map(len, visible)) - len(shown)


def _describe_event(event: RunLogEvent, names: Mapping[str, str], schedules: Collection[str]) -> RecentChange | None:
    meta, type_ = event.metadata, event.event_type
    agent = names.get(event.agent_id or "", "An agent")
    if type_ in _AGENT_EVENTS and event.agent_id:
        return RecentChange(
            "Agent", _describe_agent(event, agent), f"/agents/{quote_segment(event.agent_id)}", event.happened_at
        )
    if type_ in ("key_changed", "schedule_changed"):
        kind, name = type_.removesuffix("_changed"), str(meta.get("name"))
        text = f"{name} was {meta.get('change')} by {meta.get('by')}"
        is_gone = kind == "schedule" and name not in schedules
        url = "/schedules" if is_gone else f"/{kind}s/{quote_segment(name)}"
        return RecentChange(kind.capitalize(), text, url, event.happened_at)
    if type_ == "provider_changed":
        text = f"{meta.get('provider')} was {'removed' if meta.get('removed') else 'set'} by {meta.get('by')}"
        return RecentChange("Provider", text, "/models/providers", event.happened_at)
    if type_ in _MODEL_SETTINGS:
        kind, url = _MODEL_SETTINGS[type_]
        text = event.message.removesuffix(".")
        return RecentChange(kind, f"{text} by {meta.get('by')}", url, event.happened_at)
    if type_ in _UPDATE_ENDS:
        url = f"/governance/updates/{quote_segment(str(meta.get('update_id')))}"
        return RecentChange("Update", f"An update of {agent} {_UPDATE_ENDS[type_]}", url, event.happened_at)
    if type_ in _ROLLBACK_ENDS:
        url = f"/governance/rollbacks/{quote_segment(str(meta.get('rollback_id')))}"
        return RecentChange("Rollback", f"{agent}: {_ROLLBACK_ENDS[type_]}", url, event.happened_at)
    return None


def _describe_agent(event: RunLogEvent, agent: str) -> str:
    if event.event_type == "agent_registered":
        return f"{agent} is new"
    if event.event_type == "agent_updated":
        names = map(str, event.metadata.get("fields") or ["scores"])
        fields = [_FIELD_WORDS.get(name) or name.replace("_", " ") for name in names]
        more = f" and {len(fields) - MAX_FIELDS} more" if len(fields) > MAX_FIELDS else ""
        return f"{agent} changed: {', '.join(fields[:MAX_FIELDS])}{more}"
    if "override_tier" in event.metadata:
        return f"Violations of {agent} were cleared"
    return f"{agent} {_STATUS_WORDS.get(str(event.metadata.get('to')), 'changed its status')}"
