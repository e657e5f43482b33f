"""Comparisons for the overview: rates with the day before, and agents and models with the week before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stentor.core.clock import format_iso
from stentor.domains.llm.trend_queries import ModelWeek
from stentor.domains.tasks.chart_queries import AgentResults, DayOfTasks
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.presenters.filters import format_duration, format_money, format_number
from stentor.surfaces.dashboard.presenters.recent_changes import RecentChange

MIN_COMPARED = 20
"""Ended tasks, or calls, that both weeks must have, so that chance is not news."""
NOTABLE_POINTS = 0.10
"""Change of a success rate that is notable, as a share of all tasks."""
NOTABLE_FACTOR = 1.5
"""Change of a cost per task or call that is notable."""


class Rate(msgspec.Struct, frozen=True):
    """A figure with what it is compared with. `direction` is up, down or same; `is_better` None where neither is."""

    label: str
    value: str
    detail: str
    direction: str = "same"
    change: str = ""
    is_better: bool | None = None


def describe_rates(today: DayOfTasks, before: DayOfTasks, daily_cost: Sequence[float]) -> list[Rate]:
    """Return the rates of the last 24 hours; those of which there is nothing to say are left out."""
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
