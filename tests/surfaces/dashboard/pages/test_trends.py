"""What the overview compares: weeks of agents and models, and days of rates."""

from __future__ import annotations

import msgspec
import pytest

from stentor.core.clock import HOUR
from stentor.core.runlog import RunLogEvent
from stentor.domains.llm.usage.trend_queries import ModelWeek
from stentor.domains.tasks.reading.chart_queries import AgentResults, DayOfTasks
from stentor.surfaces.dashboard.presenters import recent_changes
from stentor.surfaces.dashboard.presenters.recent_changes import RecentChange
from tests.requirements import requirement

NOW = DayOfTasks(24, 1.0, 12 * HOUR, 18, 6, (20.0, 40.0), (100.0, 900.0))
BEFORE = DayOfTasks(48, 2.0, 0, 48, 0, (10.0, 10.0), None)


def week(completed: int, failed: int) -> AgentResults:
    return AgentResults([completed + failed], completed, failed)


@requirement("dashboard.overview-changes")
@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ((30, 10), (39, 1), ["ann succeeds less often: 75% this week, 98% in the week before"]),
        ((40, 0), (30, 10), ["ann succeeds more often: 100% this week, 75% in the week before"]),
        ((38, 2), (40, 0), []),
        ((10, 9), (40, 0), []),
        ((40, 0), (10, 9), []),
    ],
)
def test_an_agent_that_became_notably_better_or_worse_is_named_unless_it_may_be_chance(
    now: tuple[int, int], before: tuple[int, int], expected: list[str]
) -> None:
    lines = recent_changes.describe_trends({"a": (week(*now), week(*before))}, {}, {}, {"a": "ann"})
    assert [line.text for line in lines] == expected


@requirement("dashboard.overview-changes")
def test_what_costs_notably_more_or_less_is_named_with_its_price() -> None:
    agents = {"a": (week(20, 0), week(40, 0))}
    models = {"m": (ModelWeek(100, 100, 1.0), ModelWeek(50, 50, 1.0)), "new": (ModelWeek(99, 1, 9.0), ModelWeek())}
    lines = recent_changes.describe_trends(agents, {"a": (0.4, 0.2)}, models, {})
    assert [(line.kind, line.text, line.url) for line in lines] == [
        ("Agent", "a costs more: $0.02 a task this week, $0.0050 in the week before", "/agents/a"),
        ("Model", "m costs less: $0.01 a call this week, $0.02 in the week before", "/models"),
    ]


@requirement("dashboard.overview-changes")
def test_a_changed_agent_is_described_in_the_words_of_its_page() -> None:
    fields = ["capabilities", "sandbox_whitelist", "key_name"]
    event = RunLogEvent("e", "default", None, "a", None, 5, "agent_updated", "registry", "", None, {"fields": fields})
    (line,) = recent_changes.describe_changes([event], [], lambda _: "", 0, {"a": "ann"}, ())
    assert line.text == "ann changed: capabilities, allow-list, key"


@requirement("dashboard.overview-changes")
def test_trends_keep_their_place_among_many_changes() -> None:
    events = [RecentChange("Key", f"k{n}", "/keys") for n in range(20)]
    shown, more = recent_changes.select(
        events, [RecentChange("Model", f"m{n}", "/models") for n in range(5)], lambda _: True
    )
    assert [line.text for line in shown[-4:]] == ["k6", "m0", "m1", "m2"]
    assert (len(shown), more) == (10, 15)
    shown, more = recent_changes.select(events, [RecentChange("Model", "m", "/models")], lambda name: name == "read")
    assert ([line.text for line in shown], more) == (["m"], 0)


@requirement("dashboard.overview-rates")
def test_rates_say_the_direction_in_words_and_whether_it_is_good() -> None:
    rates = {rate.label: rate for rate in recent_changes.describe_rates(NOW, BEFORE, [1.0, *[4.0] * 7])}
    success = rates["Success"]
    assert (success.value, success.direction, success.change, success.is_better) == (
        "75.0%",
        "down",
        "25 points",
        False,
    )
    slightly = recent_changes.describe_rates(msgspec.structs.replace(NOW, completed=99, failed=1), BEFORE, [0.0] * 8)
    assert (slightly[0].change, slightly[0].direction) == ("1 point", "down")
    busy = rates["Tasks per hour"]
    assert (busy.value, busy.direction, busy.change, busy.is_better) == ("1.0", "down", "50%", None)
    assert busy.detail == "24 since 12:00 UTC"
    wait = rates["Wait, median"]
    assert (wait.value, wait.detail, wait.change, wait.is_better) == ("20 ms", "95% within 40 ms", "100%", False)
    assert (rates["Duration, median"].change, rates["Duration, median"].detail) == ("", "95% within 900 ms")
    assert rates["Spent today"].detail == "25% of $4.00, the mean of the seven days before"


@requirement("dashboard.overview-rates")
def test_what_is_new_is_compared_with_nothing() -> None:
    nothing = DayOfTasks(0, 0.0, 0, 0, 0, None, None)
    assert recent_changes.describe_rates(nothing, BEFORE, [0.0] * 8) == []
    rates = recent_changes.describe_rates(NOW, nothing, [2.0, *[0.0] * 7])
    assert {rate.change for rate in rates} == {""}
    assert rates[-1].detail == "nothing in the seven days before"
