"""How results that get worse with the number of tasks at once are noticed. Pure."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import SECOND
from stentor.domains.learning import view
from stentor.domains.learning.load import (
    LOAD_GROUPS,
    MAX_LOADS,
    append_load,
    count_loads,
    load_group,
    mean_factor,
    measure_effect,
    own_factors,
    replace_load,
)
from stentor.domains.learning.model import TaskTypeProgress, apply_grade, apply_outcome, initial_weight
from stentor.domains.registry.presence import Presence
from stentor.testing import FixedClock
from tests.requirements import requirement


def played(rates: list[float], seed: int, outcomes: int = 200) -> str:
    random, loads = Random(seed), ""
    for _ in range(outcomes):
        group = random.randrange(len(rates))
        loads = append_load(loads, (0, 1, 2, 4, 8)[group], float(random.random() < rates[group]))
    return loads


@requirement("routing.load")
def test_results_that_do_not_depend_on_the_load_are_left_alone() -> None:
    effects = [measure_effect([count_loads(played([0.8] * 5, 3 * seed + n)) for n in range(3)]) for seed in range(100)]
    assert sum(effect is not None for effect in effects) <= 2
    # Better results at a higher load are no effect of the load: the better agent has more tasks.
    assert measure_effect([count_loads(played([0.3, 0.5, 0.7, 0.9, 0.9], 1))]) is None
    assert measure_effect([]) is None


@requirement("routing.load")
def test_the_effect_of_the_load_is_measured_over_all_agents_and_for_each() -> None:
    worse, steady = (count_loads(played(rates, 1)) for rates in ([0.9, 0.8, 0.6, 0.4, 0.1], [0.7] * 5))
    pooled = measure_effect([worse, steady])
    assert pooled is not None
    assert own_factors(pooled, worse)[0] == 1
    assert 0 < own_factors(pooled, worse)[4] <= 0.3
    assert own_factors(pooled, steady) == (1,) * LOAD_GROUPS
    assert own_factors(pooled, count_loads("")) == pytest.approx(pooled)


@requirement("routing.load")
def test_bad_luck_at_one_load_does_not_lower_the_factors_of_all_higher_ones() -> None:
    pooled = (1.0, 0.95, 0.9, 0.85, 0.4)
    factors = own_factors(pooled, ((100, 100, 10, 100, 100), (95, 90, 4, 80, 40)))
    assert 0.75 < factors[3] < 0.9, factors
    assert factors[4] < 0.5


@requirement("routing.load")
@pytest.mark.parametrize(("agents", "measured"), [(1, 250), (100, 10)])
def test_the_effect_is_measured_the_less_often_the_more_agents_there_are(
    agents: int, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(view, "measure_effect", lambda _: calls.append(1))
    records = view.TaskTypeRecords()
    records.loaded = agents
    for tick in range(1000):
        records.progress = TaskTypeProgress(tick)
        records.load_effect()
    assert len(calls) == measured


@given(st.lists(st.text("ABCDEabcde-", max_size=MAX_LOADS), max_size=5))
def test_factors_never_grow_with_the_load(records: list[str]) -> None:
    counts = [count_loads(loads) for loads in records]
    pooled = measure_effect(counts)
    if pooled is None:
        return
    for loads, each in zip(records, counts, strict=True):
        factors = own_factors(pooled, each)
        assert factors[0] == 1
        assert all(1 >= a >= b > 0 for a, b in pairwise(factors))
        assert 0 < mean_factor(factors, loads, 50) <= 1


@requirement("routing.load")
def test_loads_are_kept_beside_the_rewards() -> None:
    assert [load_group(load) for load in (0, 1, 2, 3, 4, 7, 8, 500)] == [0, 1, 2, 2, 3, 3, 4, LOAD_GROUPS - 1]
    assert append_load("", 0, 1.0) == append_load("", None, 1.0) == ""
    record = initial_weight("a", "t", 0)
    for load, success in ((0, True), (3, True), (None, False), (9, False), (0, True)):
        record = apply_outcome(record, success=success, performance=1.0, duration_ms=1, now=0, load=load)
    assert record.loads == "C-eA"
    assert record.load_counts == ((1, 0, 1, 0, 1), (1, 0, 1, 0, 0))
    assert apply_grade(record, sample=2, was=1.0, grade=0.0, now=0).loads == "c-eA"
    assert apply_grade(record, sample=1, was=1.0, grade=0.0, now=0).loads == "C-eA"
    assert replace_load("Aa", 0, 1.0) == "AA"
    for _ in range(300):
        record = apply_outcome(record, success=True, performance=1.0, duration_ms=1, now=0, load=0)
    assert record.loads == "A" * MAX_LOADS


@requirement("routing.load")
def test_the_load_of_a_worker_is_what_it_held_when_it_took_the_task(clock: FixedClock) -> None:
    presence = Presence(clock, 60, lambda *args, **kwargs: None)
    until = clock.now() + 10**9
    assert presence.load_at_start("a", "elsewhere") is None
    for n in range(3):
        presence.record_start("a", f"t{n}", until)
    presence.record_lease("a", "t2", until)
    assert [presence.load_at_start("a", f"t{n}") for n in range(3)] == [0, 1, 2]
    presence.remove_lease("a", "t0")
    presence.record_start("a", "t3", until)
    assert [presence.load_at_start("a", f"t{n}") for n in range(4)] == [None, 1, 2, 2]
    presence.record_lease("a", "elsewhere", until)  # a heartbeat of a task that it took in another process
    assert presence.load_at_start("a", "elsewhere") is None


@requirement("routing.load")
def test_a_task_that_a_worker_lost_is_no_load(clock: FixedClock) -> None:
    presence = Presence(clock, 60, lambda *args, **kwargs: None)
    presence.record_start("a", "lost", clock.now() + SECOND)
    presence.record_start("a", "again", clock.now() + SECOND)
    clock.advance(seconds=2)
    presence.record_start("a", "again", clock.now() + SECOND)
    assert presence.load_at_start("a", "again") == 0
