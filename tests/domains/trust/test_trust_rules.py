"""Levels, decay and moves of trust: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import DAY
from stentor.domains.trust.model import INITIAL_SCORE, LEVELS, change_score, decay_score, find_level
from tests.requirements import requirement

UNIT = st.floats(0, 1)


@requirement("trust.level-bounds")
@pytest.mark.parametrize(
    ("score", "name"),
    [
        (1.0, "FULL"),
        (0.9, "FULL"),
        (0.899999, "HIGH"),
        (0.7, "HIGH"),
        (0.699999, "MEDIUM"),
        (0.5, "MEDIUM"),
        (0.499999, "LOW"),
        (0.3, "LOW"),
        (0.299999, "UNTRUSTED"),
        (0.0, "UNTRUSTED"),
    ],
)
def test_the_lower_bound_of_a_level_belongs_to_it(score: float, name: str) -> None:
    assert find_level(score).name == name


@requirement("trust.level-operations")
def test_each_level_permits_exactly_its_operations() -> None:
    permitted = {level.name: set(level.operations) for level in LEVELS}
    everything = {"read", "write", "delete", "search", "tag", "update", "frontmatter"}
    assert permitted == {
        "FULL": everything,
        "HIGH": everything - {"delete"},
        "MEDIUM": {"read", "write", "search", "tag"},
        "LOW": {"read", "search"},
        "UNTRUSTED": set(),
    }


@given(UNIT, UNIT)
def test_more_trust_never_permits_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert set(find_level(low).operations) <= set(find_level(high).operations)


@requirement("trust.scores-stay-in-range")
@given(st.lists(st.floats(-1, 1), max_size=50), st.integers(0, 500))
def test_no_sequence_of_moves_leaves_the_range(moves: list[float], days: int) -> None:
    score = INITIAL_SCORE
    for by in moves:
        score = decay_score(change_score(score, by), days * DAY)
        assert 0 <= score <= 1


@requirement("trust.idle-decay")
@pytest.mark.parametrize(
    ("score", "days", "expected"),
    [(0.8, 0, 0.8), (0.8, 0.99, 0.8), (0.8, 1, 0.792), (0.8, 1.99, 0.792), (0.8, 30, 0.8 * 0.99**30), (0.0, 9, 0.0)],
)
def test_a_score_decays_by_a_hundredth_a_whole_idle_day(score: float, days: float, expected: float) -> None:
    assert decay_score(score, int(days * DAY)) == pytest.approx(expected)


def test_sums_of_decimal_steps_read_as_decimals() -> None:
    assert change_score(0.5, 0.07) == 0.57
    assert change_score(0.1, 0.2) == 0.3
