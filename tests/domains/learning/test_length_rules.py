"""How results that depend on the length of the input are noticed. Pure."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.learning import view
from stentor.domains.learning.length import (
    GROUPS,
    MAX_GROUP_OUTCOMES,
    add_outcome,
    decode_counts,
    length_group,
    measure_effect,
    replace_reward,
    share_evidence,
    split_factors,
)
from stentor.domains.learning.model import TaskTypeProgress, apply_grade, apply_outcome, initial_weight
from stentor.domains.routing.service import _track_record_cache
from tests.requirements import requirement


def played(rate: Callable[[int], float], seed: int, outcomes: int = 100) -> str:
    """Outcomes at lengths from 100 bytes to 100 kB, as many of each order of magnitude."""
    random, lengths = Random(seed), ""
    for _ in range(outcomes):
        length = int(10 ** random.uniform(2, 5))
        lengths = add_outcome(lengths, length, float(random.random() < rate(length)), 10)
    return lengths


@requirement("routing.length")
def test_results_that_do_not_depend_on_the_length_are_left_alone() -> None:
    effects = [
        measure_effect([split_factors(decode_counts(played(lambda _: 0.8, 3 * seed + n))) for n in range(3)])
        for seed in range(100)
    ]
    assert sum(effect is not None for effect in effects) <= 10
    assert measure_effect([]) is None
    assert measure_effect([split_factors(decode_counts(played(lambda _: 1.0, 1)))]) is None
    # At one length nothing can depend on it.
    assert split_factors(decode_counts("3:12:0:0")) is None


@requirement("routing.length")
def test_an_agent_that_fails_long_inputs_is_noticed_and_only_what_is_as_long_counts() -> None:
    window = decode_counts(played(lambda length: float(length < 8192), 1))
    steady = decode_counts(played(lambda _: 0.8, 2))
    odds = measure_effect([split_factors(window), split_factors(steady)])
    assert odds is not None
    assert odds.index(max(odds)) == length_group(8192) - 1
    outcomes, rewards, duration = share_evidence(window, split_factors(window), odds, length_group(50_000))
    assert 0.2 < outcomes < 0.6
    assert rewards < 0.01
    assert duration is None
    outcomes, rewards, duration = share_evidence(window, split_factors(window), odds, length_group(500))
    assert rewards > 0.99
    assert duration == 10
    # The other one is as good at each length, so nearly all that is known of it counts for each.
    assert min(share_evidence(steady, split_factors(steady), odds, 9)[:2]) > 0.75
    # Of a third one only short inputs are known. That says less about long ones, since lengths matter here.
    short = decode_counts("1:12:12:10")
    assert 0.3 < share_evidence(short, split_factors(short), odds, 9)[0] < 0.7
    assert share_evidence({}, None, odds, 9) == (1.0, 1.0, None)


@requirement("routing.length")
def test_successes_of_an_unknown_length_still_count_after_a_failure_of_a_known_one() -> None:
    # As after an upgrade: the record of the type has successes, but of this agent only a failure has a length.
    window, failed = decode_counts("0:12:12:10 7:12:0:0"), decode_counts("7:1:0:0")
    odds = measure_effect([split_factors(window)])
    assert odds is not None
    for group in (0, 7):
        outcome_share, reward_share, duration_ms = share_evidence(failed, None, odds, group)
        assert reward_share == outcome_share > 0
        assert duration_ms is None


@requirement("routing.length")
def test_cached_track_records_of_other_lengths_last_until_the_odds_change() -> None:
    records = view.TaskTypeRecords()
    before, now = (0.1,) * (GROUPS - 1), (0.2,) * (GROUPS - 1)
    for group in (*range(GROUPS), None):
        _track_record_cache(records, 1, before, group)
    assert set(records.derived) == {*range(GROUPS), None}
    _track_record_cache(records, 1, now, 3)
    assert set(records.derived) == {3}


@requirement("routing.length")
@pytest.mark.parametrize(("agents", "measured"), [(1, 250), (100, 40)])
def test_the_effect_is_measured_the_less_often_the_more_agents_there_are(
    agents: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(view.by_length, "measure_effect", lambda _: calls.append(1))
    records = view.TaskTypeRecords()
    for n in range(agents):
        record = initial_weight(str(n), "t", 0)
        for length in (10, 1000):
            record = apply_outcome(record, success=True, performance=1.0, duration_ms=1, now=0, length=length)
        records.put(record)
    for tick in range(1000):
        records.progress = TaskTypeProgress(tick)
        records.length_effect()
    assert len(calls) == measured


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2**24), st.floats(0, 1), st.integers(0, 10**7))), max_size=4),
    st.integers(0, GROUPS - 1),
)
def test_shares_are_from_0_to_1(records: list[list[tuple[int, float, int]]], group: int) -> None:
    stored = []
    for outcomes in records:
        lengths = ""
        for length, reward, duration_ms in outcomes:
            lengths = add_outcome(lengths, length, reward, duration_ms)
        stored.append(decode_counts(lengths))
    odds = measure_effect(split_factors(counts) for counts in stored) or (0.01,) * (GROUPS - 1)
    for counts in stored:
        outcomes_share, reward_share, duration = share_evidence(counts, split_factors(counts), odds, group)
        assert -1e-9 <= outcomes_share <= 1 + 1e-9
        assert -1e-9 <= reward_share <= 1 + 1e-9
        assert duration is None or 0.5 <= duration <= 10**7


@requirement("routing.length")
def test_lengths_are_kept_beside_the_rewards() -> None:
    lengths = (0, 255, 256, 511, 512, 1_048_575, 1_048_576, 10**9)
    assert [length_group(length) for length in lengths] == [0, 0, 1, 1, 2, GROUPS - 2, GROUPS - 1, GROUPS - 1]
    record = initial_weight("a", "t", 0)
    for length, success, duration_ms in ((10, True, 20), (10, True, 40), (300, False, 99), (None, True, 7)):
        record = apply_outcome(record, success=success, performance=1.0, duration_ms=duration_ms, now=0, length=length)
    assert record.length_counts == {0: (2, 2, 30), 1: (1, 0, 0)}
    graded = apply_grade(record, sample=1, was=1.0, grade=0.25, now=0, length=10)
    assert graded.length_counts == {0: (2, 1.25, 30), 1: (1, 0, 0)}
    # What is not known changes nothing.
    assert apply_grade(record, sample=None, was=1.0, grade=0.0, now=0, length=10).lengths == record.lengths
    assert replace_reward(record.lengths, 5_000, 1.0, 0.0) == record.lengths
    for _ in range(300):
        record = apply_outcome(record, success=False, performance=0.0, duration_ms=1, now=0, length=10)
    outcomes, rewards, _ = record.length_counts[0]
    assert outcomes == MAX_GROUP_OUTCOMES
    assert rewards < 0.01
