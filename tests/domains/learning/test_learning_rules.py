"""Deltas, floor, return to rest and the sentinel's rate: pure."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import DAY
from stentor.domains.learning import evidence
from stentor.domains.learning.model import (
    MIN_WEIGHT,
    Weight,
    apply_grade,
    apply_outcome,
    decay_weight,
    initial_weight,
    is_alarming,
    oscillation_rate,
    weight_delta,
)
from tests.requirements import requirement


def after(known: Weight, *, success: bool, performance: float = 1.0, now: int = 0) -> Weight:
    return apply_outcome(known, success=success, performance=performance, duration_ms=10, now=now)


@requirement("learning.success-delta")
@pytest.mark.parametrize("performance", [0.01, 0.5, 1.0])
def test_a_success_adds_the_tangent_of_its_performance(performance: float) -> None:
    assert weight_delta(success=True, performance=performance) == math.tanh(0.1 * performance)
    weight = after(initial_weight("a", "t", 0), success=True, performance=performance).weight
    assert weight == pytest.approx(1 + math.tanh(0.1 * performance))


@requirement("learning.failure-delta")
def test_a_failure_takes_a_tenth() -> None:
    assert after(initial_weight("a", "t", 0), success=False).weight == 0.9


@requirement("learning.weight-start-and-floor")
@given(st.lists(st.tuples(st.booleans(), st.floats(0.001, 1), st.integers(0, 400)), max_size=80))
def test_no_sequence_of_outcomes_moves_a_weight_below_the_floor(outcomes: list[tuple[bool, float, int]]) -> None:
    weight, now = initial_weight("a", "t", 0), 0
    assert weight.weight == 1.0
    for success, performance, days in outcomes:
        now += days * DAY
        weight = after(weight, success=success, performance=performance, now=now)
        assert weight.weight >= MIN_WEIGHT
        assert len(weight.recent) <= 50


@requirement("learning.weight-start-and-floor")
def test_many_failures_rest_on_the_floor() -> None:
    weight = initial_weight("a", "t", 0)
    for _ in range(12):
        weight = after(weight, success=False)
    assert weight.weight == MIN_WEIGHT


@requirement("learning.idle-weights-return")
@pytest.mark.parametrize(
    ("start", "days", "expected"),
    [(2.0, 1, 1.99), (0.5, 1, 0.505), (2.0, 0.999, 2.0), (2.0, 10, 1 + 0.99**10), (1.0, 1000, 1.0)],
)
def test_an_idle_weight_returns_by_a_hundredth_a_whole_day(start: float, days: float, expected: float) -> None:
    assert decay_weight(start, int(days * DAY)) == pytest.approx(expected)


@given(st.floats(MIN_WEIGHT, 50), st.integers(0, 100_000), st.integers(0, 1000))
def test_a_returning_weight_comes_nearer_and_never_passes_its_rest(start: float, days: int, more: int) -> None:
    now, later = decay_weight(start, days * DAY), decay_weight(start, (days + more) * DAY)
    assert abs(later - 1) <= abs(now - 1) + 1e-12
    assert (later - 1) * (start - 1) >= 0


def test_time_that_runs_backwards_changes_no_weight() -> None:
    assert decay_weight(2.0, -5 * DAY) == 2.0


def test_the_moving_average_is_the_mean_of_the_first_durations_and_then_follows_the_newest() -> None:
    weight = initial_weight("a", "t", 0)
    means = []
    for duration_ms in (100, 200, 300, 400, 500, 800):
        weight = apply_outcome(weight, success=True, performance=1, duration_ms=duration_ms, now=0)
        means.append(weight.mean_ms)
    assert means == pytest.approx([100, 150, 200, 250, 300, 400])


@requirement("routing.change-is-noticed")
def test_grades_make_a_change_noticed_as_failures_do() -> None:
    weight = initial_weight("a", "t", 0)
    for sample in range(1, 31):
        weight = apply_outcome(weight, success=True, performance=1, duration_ms=100, now=0)
        if sample > 24:
            weight = apply_grade(weight, sample=sample, was=1.0, grade=0.0, now=0)
    assert weight.changed_tick > 0
    assert weight.counted_rewards[1] <= 12 + 8


@requirement("tasks.grade")
@pytest.mark.parametrize("late", [0, 24, 25, 40, 49, 50, 200])
def test_grades_count_as_long_however_late_they_come(late: int) -> None:
    weight = initial_weight("a", "t", 0)
    for sample in range(1, 301):
        weight = apply_outcome(weight, success=True, performance=1, duration_ms=100, now=0)
        if sample > late and sample % 5 == 0:
            weight = apply_grade(weight, sample=sample - late, was=1.0, grade=0.6, now=0)
    # A fifth of the outcomes is graded, so at least half as many of the stored ones.
    assert len(evidence.list_grades(weight.rewards)) >= 5


@requirement("learning.sentinel-alert")
@pytest.mark.parametrize(
    ("recent", "rate", "alarm"),
    [
        ("", 0.0, False),
        ("S", 0.0, False),
        ("SF" * 25, 49 / 50, True),
        ("SF" * 24 + "S", 48 / 49, False),
        ("S" * 50, 0.0, False),
        ("SF" * 10 + "F" * 30, 19 / 50, False),
        ("SF" * 10 + "S" + "F" * 29, 21 / 50, True),
        ("S" + "SF" * 10 + "F" * 28 + "S", 20 / 50, False),
    ],
)
def test_the_sentinel_counts_changes_of_sign_over_a_full_window(recent: str, rate: float, alarm: bool) -> None:
    assert oscillation_rate(recent) == pytest.approx(rate)
    assert is_alarming(recent, 0.4) is alarm


@given(st.text("SF", max_size=60))
def test_a_rate_lies_between_nothing_and_less_than_one(recent: str) -> None:
    assert 0 <= oscillation_rate(recent) < 1
