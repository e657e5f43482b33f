"""What changed lately, as short lines that link to their pages: events, alerts, trends of a week and a day. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from stentor.core.clock import format_iso
from stentor.core.runlog import RunLogEvent
from stentor.domains.alerts.model import Alert
from stentor.domains.llm.usage.trend_queries import ModelWeek
from stentor.domains.tasks.reading.chart_queries import AgentResults, DayOfTasks
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.filters import format_duration, format_money, format_number

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
    "alert_thresholds_changed": ("Alerts", "/alerts"),
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
MIN_COMPARED = 20
"""Ended tasks, or calls, that both weeks must have, so that chance is not news."""
NOTABLE_POINTS = 0.10
"""Change of a success rate that is notable, as a share of all tasks."""
NOTABLE_FACTOR = 1.5
"""Change of a cost per task or call that is notable."""


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
        text = event.message.removesuffix(".").removeprefix(f"{kind} of ")
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


class Rate(msgspec.Struct, frozen=True):
    """A figure with what it is compared with. `direction` is up, down or same; `is_better` None where neither is."""

    label: str
    value: str
    detail: str
    direction: str = "same"
    change: str = ""
    is_better: bool | None = None


def describe_rates(today: DayOfTasks, before: DayOfTasks, daily_cost: Sequence[float]) -> list[Rate]:
    """Return the rates of the last 24 hours, without those that have no data."""
    rates = []
    if today.success is not None:
        share = f"{format_number(today.failed)} failed, {1 - today.success:.1%} of those that ended"
        rates.append(_compare_shares("Success", today.success, before.success, share))
    if today.tasks:
        detail = f"{format_number(today.tasks)} since {format_iso(today.since)[11:16]} UTC"
        rates.append(_compare("Tasks per hour", _format_rate(today.tasks_per_hour), detail, today.tasks_per_hour,
                              before.tasks_per_hour, None))  # fmt: skip
    for label, times, earlier in (("Wait", today.wait_ms, before.wait_ms), ("Duration", today.run_ms, before.run_ms)):
        if times is not None:
            detail = f"95% within {format_duration(times[1])}"
            median = earlier[0] if earlier else 0.0
            rates.append(_compare(f"{label}, median", format_duration(times[0]), detail, times[0], median, False))
    if any(daily_cost):
        spent, mean = daily_cost[0], sum(daily_cost[1:]) / len(daily_cost[1:])
        share = f"{spent / mean:.0%} of {format_money(mean)}, the mean of" if mean else "nothing in"
        detail = f"{share} the seven days before"
        rates.append(Rate("Spent today", format_money(spent), detail))
    return rates


def _format_rate(value: float) -> str:
    return format_number(value, 0 if value >= 10 else 1)


def _compare_shares(label: str, share: float, before: float | None, detail: str) -> Rate:
    """Compare shares in percentage points: a percentage of a percentage would mislead."""
    points = 0.0 if before is None else round(100 * (share - before), 1)
    if not points:
        return Rate(label, f"{share:.1%}", detail, change="as the day before" if before is not None else "")
    direction = "up" if points > 0 else "down"
    text = f"{abs(points):g} {'point' if abs(points) == 1 else 'points'}"
    return Rate(label, f"{share:.1%}", detail, direction, text, points > 0)


def _compare(label: str, value: str, detail: str, now: float, before: float, more_is_better: bool | None) -> Rate:
    if not before:
        return Rate(label, value, detail)
    change = now / before - 1
    if abs(change) < 0.005:
        return Rate(label, value, detail, change="as the day before")
    is_better = None if more_is_better is None else (change > 0) == more_is_better
    text = f"{abs(change):.0%}" if change < 10 else f"{now / before:,.0f} times"
    return Rate(label, value, detail, "up" if change > 0 else "down", text, is_better)


def describe_trends(
    agents: Mapping[str, tuple[AgentResults, AgentResults]],
    costs: Mapping[str, tuple[float, float]],
    models: Mapping[str, tuple[ModelWeek, ModelWeek]],
    names: Mapping[str, str],
) -> list[RecentChange]:
    """Return the agents and models whose success or cost differs notably from the week before, the largest first."""
    found: list[tuple[float, RecentChange]] = []
    for agent_id, (week, before) in agents.items():
        if min(week.completed + week.failed, before.completed + before.failed) < MIN_COMPARED:
            continue
        name, url = names.get(agent_id, agent_id), f"/agents/{quote_segment(agent_id)}"
        spent = costs.get(agent_id, (0.0, 0.0))
        per_task = spent[0] / week.tasks, spent[1] / before.tasks
        found += _compare_weeks("Agent", name, url, (week.success or 0.0, before.success or 0.0), per_task, "task")
    for model, (calls, earlier) in models.items():
        if min(calls.calls, earlier.calls) >= MIN_COMPARED:
            success = calls.succeeded / calls.calls, earlier.succeeded / earlier.calls
            per_call = calls.dollars / calls.calls, earlier.dollars / earlier.calls
            found += _compare_weeks("Model", model, "/models", success, per_call, "call")
    return [change for _, change in sorted(found, key=lambda entry: -entry[0])]


def _compare_weeks(
    kind: str, name: str, url: str, success: tuple[float, float], cost: tuple[float, float], unit: str
) -> list[tuple[float, RecentChange]]:
    found = []
    if (difference := abs(success[0] - success[1])) >= NOTABLE_POINTS:
        word = "more" if success[0] > success[1] else "less"
        text = f"{name} succeeds {word} often: {success[0]:.0%} this week, {success[1]:.0%} in the week before"
        found.append((difference / NOTABLE_POINTS, RecentChange(kind, text, url)))
    # Without a price in one of the weeks there is nothing to divide by.
    if min(cost) > 0 and (factor := max(cost) / min(cost)) >= NOTABLE_FACTOR:
        word = "more" if cost[0] > cost[1] else "less"
        amounts = f"{format_money(cost[0])} a {unit} this week, {format_money(cost[1])} in the week before"
        found.append((factor / NOTABLE_FACTOR, RecentChange(kind, f"{name} costs {word}: {amounts}", url)))
    return found
