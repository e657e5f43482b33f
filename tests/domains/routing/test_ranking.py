"""What the ranking is made of, rule by rule, and that a record is enough to compute it again: pure."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.learning import evidence
from stentor.domains.learning.model import TaskTypeProgress, Weight, apply_grade, apply_outcome, initial_weight
from stentor.domains.learning.view import LearningView
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.model import RoutingPolicy, RoutingRequest, decide
from stentor.domains.routing.penalties import Preference
from stentor.domains.routing.ranking import calibrate_priors, estimate_reward, rank_candidates
from stentor.domains.routing.service import track_record_from_weight
from stentor.domains.routing.track_record import TrackRecord, build_track_record
from tests.domains.agents import agent
from tests.requirements import requirement

REWARDS = st.lists(st.integers(0, 255), max_size=evidence.MAX_OUTCOMES)


def after(outcomes: str, known: Weight | None = None, pace: TaskTypeProgress | None = None) -> Weight:
    """The record after outcomes that are written as S and F."""
    record = known or initial_weight("a", "t", 0)
    for letter in outcomes:
        record = apply_outcome(record, success=letter == "S", performance=1.0, duration_ms=10, now=0, progress=pace)
    return record


def one(name: str, composite: float, outcomes: str = "", **load: Any) -> AgentCandidate:
    made = agent(name, alignment_score=composite, accuracy_score=composite, efficiency_score=composite)
    record = after(outcomes)
    fields: dict[str, Any] = {name: load.pop(name) for name in ("duration_ms", "cost", "stale") if name in load}
    return AgentCandidate(made, build_track_record(composite, 0.2, *record.counted_rewards, **fields), **load)


def best(*candidates: AgentCandidate, prefer: Preference = "balanced") -> str:
    return rank_candidates(candidates, 0.0, prefer).candidates[0].name


@requirement("routing.untried-agents-get-a-chance")
def test_an_untried_agent_is_tried_before_one_that_is_known_to_be_mediocre() -> None:
    assert best(one("known", 0.6, "SF" * 10), one("new", 0.5)) == "new"
    assert best(one("known", 0.6, "S" * 20), one("new", 0.5)) == "known"


@requirement("routing.untried-quick-and-free")
def test_an_agent_that_is_worse_at_other_task_types_is_not_assumed_to_be_quick_and_free() -> None:
    known, new = one("known", 0.5, "S" * 18 + "FF", duration_ms=30_000, cost=0.05), one("new", 0.5)
    for rewards, chosen, assumed in ((2.0, "known", (30_000, 0.05)), (20.0, "new", (1_000, 0))):
        record = build_track_record(0.5, 0.2, elsewhere=(rewards, 20.0))
        ranking = rank_candidates([known, msgspec.structs.replace(new, track_record=record)], 0.0)
        assert ranking.candidates[0].name == chosen
        assert (ranking.fastest_ms, ranking.cheapest) == assumed
    assert best(known, new) == "new"


@requirement("routing.change-is-noticed")
def test_after_a_drop_the_outcomes_before_it_count_as_twelve() -> None:
    record = after("S" * 40 + "F" * 6)
    rewards, outcomes = record.counted_rewards
    assert record.changed_tick > 0
    assert outcomes == pytest.approx(record.since_change + evidence.MAX_OLD_WEIGHT)
    assert rewards / outcomes < 0.7
    unchanged = after("SSSF" * 12)
    assert (unchanged.changed_tick, unchanged.counted_rewards[1]) == (0, 48)


@requirement("routing.change-is-noticed")
def test_a_drop_makes_what_is_known_of_the_others_old() -> None:
    other = after("SSF" * 10)
    assert other.estimate_rewards(stale=True, by_grades=False) == pytest.approx(
        (evidence.MAX_OLD_WEIGHT * other.counted_rewards[0] / 30, evidence.MAX_OLD_WEIGHT)
    )
    later = after("S", other, TaskTypeProgress(tick=90, changed_tick=80))
    assert later.counted_rewards[1] == pytest.approx(1 + evidence.MAX_OLD_WEIGHT)


@requirement("routing.change-is-noticed")
def test_whoever_has_not_worked_since_a_change_is_tried_once_more() -> None:
    tried = one("tried", 0.5, "S" * 10)
    old = {name: one(name, 0.5, shown, stale=True) for name, shown in (("good", "SSF" * 4), ("bad", "FFS" * 4))}
    assert best(tried, *old.values(), one("new", 0.5, stale=True)) == "new"
    assert best(tried, *old.values()) == "good"
    assert best(tried, old["bad"]) == "bad"
    assert best(tried, one("bad", 0.5, "FFS" * 4 + "F")) == "tried"
    assert best(tried, one("busy", 0.5, "SSF" * 4, stale=True, ahead=400)) == "tried"


@requirement("routing.declarations-are-checked")
def test_where_those_who_promise_most_do_worst_the_modest_are_tried_next() -> None:
    tried = [
        one("a", 0.95, "F" * 8 + "S"),
        one("b", 0.9, "F" * 8),
        one("c", 0.5, "S" * 8),
        one("d", 0.55, "S" * 7 + "F"),
    ]
    slope = calibrate_priors([each.track_record for each in tried])[1]
    assert slope < 0
    bold, modest = one("bold", 0.95), one("modest", 0.4)
    assert best(bold, modest) == "bold"
    terms = {r.name: r.expected for r in rank_candidates([*tried, bold, modest], 0.0).candidates}
    assert terms["modest"] > terms["bold"]


@requirement("routing.neighbours")
def test_outcomes_elsewhere_shift_the_prior_and_make_it_stronger() -> None:
    alone = build_track_record(0.5, 0.2)
    helped = build_track_record(0.5, 0.2, elsewhere=(15.0, 16.0))
    assert (alone.prior, alone.strength) == (0.55, 4.0)
    assert (helped.prior, helped.strength) == pytest.approx(((4 * 0.55 + 16 * 15 / 16) / 20, 8.0))


@requirement("routing.many-at-once")
def test_thirty_two_tasks_at_once_do_not_all_go_to_one_untried_agent() -> None:
    ahead = dict.fromkeys(("a", "b", "c"), 0)
    for _ in range(32):
        candidates = [one(name, 0.6, ahead=n, duration_ms=1000.0) for name, n in ahead.items()]
        ahead[best(*candidates)] += 1
    assert min(ahead.values()) >= 8


@requirement("routing.many-at-once")
def test_thirty_two_tasks_at_once_do_not_all_go_to_who_declares_most() -> None:
    ahead = {"loud": 0, "modest": 0}
    for _ in range(32):
        loud, modest = one("loud", 0.9, ahead=ahead["loud"]), one("modest", 0.6, ahead=ahead["modest"])
        ahead[best(loud, modest, prefer="quality")] += 1
    assert 12 <= ahead["modest"] < ahead["loud"]


@requirement("routing.prefer")
def test_the_preference_says_what_time_and_cost_are_worth() -> None:
    good = one("good", 0.5, "S" * 45 + "F" * 3, duration_ms=60_000.0, cost=0.40)
    quick = one("quick", 0.5, "S" * 38 + "F" * 10, duration_ms=2_000.0, cost=0.40)
    thrifty = one("thrifty", 0.5, "S" * 38 + "F" * 10, duration_ms=60_000.0, cost=0.01)
    assert best(good, quick, thrifty, prefer="quality") == "good"
    assert best(good, quick, thrifty, prefer="fast") == "quick"
    assert best(good, quick, thrifty, prefer="cheap") == "thrifty"


def play(
    prefer: Preference,
    outcome: Callable[[str, int], tuple[bool, int, float]],
    tasks: int,
    arrives: dict[str, int] | None = None,
) -> list[str]:
    """Which of `bad` and `good` got each of so many tasks, one at a time; an outcome is success, ms and dollars.

    `arrives` has the agents with the number of the first task that each may get.
    """
    arrives = arrives or {"bad": 0, "good": 0}
    records = {name: initial_weight(name, "t", 0) for name in arrives}
    progress, chosen = TaskTypeProgress(), list[str]()
    for n in range(tasks):
        candidates = []
        for name, record in records.items():
            if n < arrives[name]:
                continue
            known = record if record.samples else None
            stale, age = progress.has_changed_since(known), progress.tick - record.tick
            made = track_record_from_weight(
                0.5, 0.2, known, (0.0, 0.0), age, 0, stale=stale, by_grades=False, seen=progress.tick
            )
            candidates.append(AgentCandidate(agent(name), made))
        chosen.append(best(*candidates, prefer=prefer))
        success, ms, cost = outcome(chosen[-1], n)
        record = apply_outcome(
            records[chosen[-1]], success=success, performance=1, duration_ms=ms, now=0, cost=cost, progress=progress
        )
        records[chosen[-1]] = record
        progress = TaskTypeProgress(record.tick, max(progress.changed_tick, record.changed_tick))
    return chosen


@requirement("routing.failing-loses-at-any-price")
@pytest.mark.parametrize("prefer", ["quality", "balanced", "fast", "cheap"])
@pytest.mark.parametrize(("ms", "cost"), [(60_000, 0.05), (3_600_000, 5.0)])
def test_an_agent_that_always_fails_loses_to_one_that_succeeds_however_slow_and_dear(
    prefer: Preference, ms: int, cost: float
) -> None:
    chosen = play(prefer, lambda name, _: (False, 20, 0.0) if name == "bad" else (True, ms, cost), 100)
    assert chosen.count("bad") <= 30
    assert chosen[40:].count("bad") <= 3


@requirement("routing.failing-loses-at-any-price")
@pytest.mark.parametrize("prefer", ["balanced", "fast", "cheap"])
def test_a_fast_and_cheap_agent_that_breaks_loses_its_tasks(prefer: Preference) -> None:
    def outcome(name: str, n: int) -> tuple[bool, int, float]:
        return (True, 60_000, 0.05) if name == "good" else (n < 20, 500, 0.0001)

    chosen = play(prefer, outcome, 120)
    assert chosen[:20].count("bad") >= 15
    assert chosen[70:].count("bad") <= 3


@requirement("routing.failing-loses-at-any-price")
def test_failing_at_once_makes_nobody_fast() -> None:
    record = apply_outcome(initial_weight("a", "t", 0), success=True, performance=1, duration_ms=900, now=0)
    record = apply_outcome(record, success=False, performance=1, duration_ms=5, now=0)
    assert record.mean_ms == 900
    assert apply_outcome(record, success=False, performance=1, duration_ms=1_900, now=0).mean_ms == 900


@requirement("routing.one-slow-task")
@pytest.mark.parametrize("prefer", ["balanced", "fast"])
def test_one_slow_start_or_rare_timeouts_do_not_lose_a_better_agent_its_tasks(prefer: Preference) -> None:
    def cold_start(name: str, n: int) -> tuple[bool, int, float]:
        return (True, 1_000 if n else 30_000, 0.0) if name == "good" else (n % 2 == 0, 1_000, 0.0)

    def timeouts(name: str, n: int) -> tuple[bool, int, float]:
        if name == "good":
            return (False, 300_000, 0.0) if n % 50 == 49 else (True, 1_000, 0.0)
        return (n % 5 > 0, 1_000, 0.0)

    for outcome in (cold_start, timeouts):
        assert play(prefer, outcome, 300).count("good") >= 200


def play_rates(rate: Callable[[str, int], float], tasks: int, arrives: dict[str, int], seed: int) -> list[str]:
    draw = Random(seed)
    return play("balanced", lambda name, n: (draw.random() < rate(name, n), 1_000, 0.0), tasks, arrives)


@requirement("routing.rarely-tried-agents")
def test_a_poor_agent_that_improves_is_found_beside_a_good_one() -> None:
    def rate(name: str, n: int) -> float:
        return 0.8 if name == "steady" else 0.3 if n < 300 else 0.98

    runs = [play_rates(rate, 1_500, {"risen": 0, "steady": 0}, seed) for seed in range(10)]
    assert sum(run[:300].count("risen") for run in runs) <= 10 * 25
    assert sum(run[700:].count("risen") for run in runs) >= 10 * 500


@requirement("routing.rarely-tried-agents")
def test_a_better_agent_that_comes_late_is_found_and_a_worse_one_gets_few_tasks() -> None:
    def rate(name: str, n: int) -> float:
        return {"known": 0.9, "better": 0.99, "worse": 0.3}[name]

    found = [play_rates(rate, 1_000, {"known": 0, "better": 400}, seed) for seed in range(10)]
    assert sum(run[600:].count("better") for run in found) >= 10 * 380
    tried = [play_rates(rate, 1_000, {"known": 0, "worse": 400}, seed) for seed in range(10)]
    assert sum(run.count("worse") for run in tried) <= 10 * 15


@requirement("routing.rarely-tried-agents")
def test_beside_one_that_always_succeeds_nobody_is_tried_again() -> None:
    new = AgentCandidate(agent("new"), build_track_record(0.5, 0.2, seen=1_000_000))
    perfect = AgentCandidate(agent("perfect"), build_track_record(0.5, 0.2, 50.0, 50.0, seen=1_000_000))
    assert best(perfect, new) == "perfect"
    assert best(one("good", 0.5, "S" * 44 + "F" * 6), new) == "new"


@requirement("routing.one-slow-task")
@pytest.mark.parametrize("prefer", ["balanced", "fast"])
def test_a_new_agent_is_tried_although_another_one_is_very_slow(prefer: Preference) -> None:
    quick = one("quick", 0.5, "SF" * 25, duration_ms=1_000.0)
    slow = one("slow", 0.5, "S" * 5, duration_ms=3_600_000.0)
    assert best(quick, slow, one("new", 0.5), prefer=prefer) == "new"


@requirement("routing.tried-once")
def test_tasks_that_taught_nothing_are_tries_too() -> None:
    known, record = one("known", 0.5, "S" * 18 + "F" * 2), build_track_record(0.5, 0.2)
    bonuses = [estimate_reward(record, 0.0, 1.0, 0, unlearned)[1] for unlearned in (0, 1, 10, 1000)]
    assert bonuses == sorted(bonuses, reverse=True)
    assert bonuses[-1] < 0.05
    stale = one("stale", 0.5, "F" * 12, stale=True)
    assert best(known, stale) == "stale"
    assert best(known, msgspec.structs.replace(stale, unlearned=1)) == "known"


@requirement("routing.provider-failures")
def test_an_agent_that_rests_comes_after_the_others_that_are_online() -> None:
    good = msgspec.structs.replace(one("good", 0.9, "S" * 20), resting=True)
    poor, offline = one("poor", 0.1, "F" * 8), one("offline", 0.9, "S" * 20, online=False)
    assert [each.name for each in rank_candidates([good, poor, offline], 0.0).candidates] == ["poor", "good", "offline"]
    assert best(good, offline) == "good"


@requirement("routing.prefer")
def test_among_agents_that_are_too_slow_the_less_slow_one_is_still_preferred() -> None:
    failing = one("failing", 0.5, "F" * 48, duration_ms=100.0)
    slow, slower = (
        one(name, 0.5, "S" * 48, duration_ms=ms) for name, ms in (("slow", 60_000.0), ("slower", 600_000.0))
    )
    assert best(failing, slow, slower, prefer="fast") == "slow"


def test_a_long_queue_sends_work_elsewhere_and_milliseconds_do_not() -> None:
    busy = one("busy", 0.5, "S" * 48, duration_ms=5_000.0, ahead=200)
    idle = one("idle", 0.5, "S" * 42 + "F" * 6, duration_ms=5_000.0)
    assert best(busy, idle) == "idle"
    fast, slow = one("fast", 0.5, "S" * 45 + "FFF", duration_ms=1.0), one("slow", 0.5, "S" * 47 + "F", duration_ms=60.0)
    assert best(fast, slow) == "slow"


@requirement("routing.offline-workers")
def test_who_is_online_comes_first_whatever_the_score() -> None:
    away, here = one("away", 0.9, "S" * 30, online=False), one("here", 0.2, "F" * 5)
    assert best(away, here) == "here"
    assert best(away) == "away"


def test_an_alpha_of_zero_leaves_it_to_the_declaration_and_one_to_the_evidence() -> None:
    assert estimate_reward(build_track_record(0.7, 0.0, 0.0, 50.0), 0.7, 1.0, 0)[0] == pytest.approx(0.65, abs=1e-6)
    assert estimate_reward(build_track_record(0.7, 1.0, 0.0, 50.0), 0.7, 1.0, 0)[0] < 0.01


@requirement("routing.decision-recomputed")
@given(
    st.lists(st.tuples(st.floats(0, 1), REWARDS, st.integers(0, 500), st.integers(0, 40)), min_size=1, max_size=8),
    st.sampled_from(["quality", "balanced", "fast", "cheap"]),
    st.floats(0, 1),
)
def test_every_term_of_a_decision_can_be_computed_again_from_its_record(
    drawn: list[tuple[float, list[int], int, int]], prefer: Preference, beta: float
) -> None:
    pool = []
    for n, (composite, rewards, age, ahead) in enumerate(drawn):
        total = sum(rewards) / 255
        known = build_track_record(
            composite, 0.2, total, float(len(rewards)), (3.0, 5.0), age=age, duration_ms=100.0 * n or None
        )
        pool.append(AgentCandidate(agent(f"n{n}", alignment_score=composite), known, None, ahead))
    decision = msgspec.to_builtins(
        decide(RoutingRequest("default", "t", ("echo",), preference=prefer), pool, RoutingPolicy(beta=beta))
    )
    rows = decision["candidates"]
    again = [
        TrackRecord(
            r["prior"],
            r["strength"],
            r["rewards"],
            r["outcomes"],
            r["elsewhere"],
            r["elsewhere_outcomes"],
            variation=r["variation"],
            stale=r["stale"],
        )
        for r in rows
    ]
    for row, known in zip(rows, again, strict=True):
        expected, uncertainty = estimate_reward(known, decision["mean"], decision["slope"], row["ahead"])
        assert (row["expected"], row["uncertainty"]) == pytest.approx((expected, uncertainty))
        quality = expected + uncertainty - row["time_penalty"] - row["cost_penalty"]
        assert row["blended"] == pytest.approx((1 - beta) * quality + beta * row["trust"])


@given(REWARDS, st.integers(-1, 60))
def test_evidence_counts_no_more_than_it_has_and_no_reward_above_its_number(values: list[int], since: int) -> None:
    text = "".join(f"{value:02x}" for value in values)
    rewards, outcomes = evidence.sum_rewards(text, since)
    assert 0 <= rewards <= outcomes + 1e-9 <= len(values) + 1e-9
    found = evidence.find_drop(text, since)
    assert found is None or evidence.MIN_SEGMENT <= found <= len(values) - evidence.MIN_SEGMENT


@requirement("tasks.grade")
def test_a_grade_takes_the_place_of_its_outcome() -> None:
    record = after("SSS")
    low = apply_grade(record, sample=2, was=1.0, grade=0.2, now=0)
    assert list(evidence.decode_rewards(low.rewards)) == [255, 52, 255]
    assert low.weight < record.weight
    assert low.recent == record.recent


@requirement("tasks.grade")
def test_a_grade_of_an_outcome_that_is_no_longer_stored_takes_the_place_of_the_newest_ungraded_success() -> None:
    record = after("S" * 60 + "F")
    for sample, grade in ((60, 0.4), (1, 0.0), (2, 0.2)):
        record = apply_grade(record, sample=sample, was=1.0, grade=grade, now=0)
    assert list(evidence.decode_rewards(record.rewards))[-5:] == [255, 52, 0, 102, 0]
    for sample in range(3, 60):
        record = apply_grade(record, sample=sample, was=1.0, grade=0.2, now=0)
    graded = record.rewards
    assert apply_grade(record, sample=1, was=1.0, grade=1.0, now=0).rewards == graded


@requirement("tasks.grade")
def test_what_is_not_graded_counts_as_what_is_graded() -> None:
    record = after(("S" * 8 + "F") * 5)
    for sample, grade in ((10, 0.0), (20, 0.0), (40, 0.0)):
        record = apply_grade(record, sample=sample, was=1.0, grade=grade, now=0)
    assert not record.has_good_grade
    record = apply_grade(record, sample=30, was=1.0, grade=1.0, now=0)
    assert record.has_good_grade
    # Two grades of 1 are assumed, so three of six are good, and the other 36 successes count half.
    assert record.estimate_rewards(stale=False, by_grades=True) == (pytest.approx(1 + 36 / 2, abs=0.1), 45)
    assert record.estimate_rewards(stale=False, by_grades=False) == record.counted_rewards == (37, 45)
    reported = after("S" * 9)
    for performance in (0.4, 0.6, 0.996):
        reported = apply_outcome(reported, success=True, performance=performance, duration_ms=1, now=0)
    assert not reported.has_good_grade
    assert reported.estimate_rewards(stale=False, by_grades=True) == reported.counted_rewards


@requirement("tasks.grade")
def test_what_an_agent_reports_itself_counts_at_most_as_much_as_its_grades() -> None:
    def record(performance: float, *grades: float) -> Weight:
        known = initial_weight("a", "t", 0)
        for _ in range(20):
            known = apply_outcome(known, success=True, performance=performance, duration_ms=1, now=0)
        for sample, grade in enumerate(grades, 1):
            known = apply_grade(known, sample=sample, was=performance, grade=grade, now=0)
        return known

    for performance, grades, expected in (
        (1.0, (0.0, 1.0, 0.0), 1 + 17 * 0.6),  # two grades of 1 are assumed, so three of five are good
        (0.99, (0.0, 1.0, 0.0), 1 + 17 * 0.6),
        (0.7, (0.0, 1.0, 0.0), 1 + 17 * 0.6),
        (0.5, (0.0, 1.0, 0.0), 1 + 17 * 0.5),
        (0.8, (0.8, 0.8, 0.8), 20 * 0.8),
    ):
        rewards, outcomes = record(performance, *grades).estimate_rewards(stale=False, by_grades=True)
        assert (rewards, outcomes) == (pytest.approx(expected, abs=0.1), 20)


def test_the_grades_of_others_matter_only_if_somebody_was_graded_as_good() -> None:
    view = LearningView()
    poor = apply_grade(after("S" * 20), sample=1, was=1.0, grade=0.1, now=0)
    view.put("default", poor)
    assert view.records("default", poor.task_type).well_graded == 0
    other = msgspec.structs.replace(apply_grade(after("S" * 20), sample=1, was=1.0, grade=0.9, now=0), agent_id="b")
    for _ in range(2):
        view.put("default", other)
    assert view.records("default", poor.task_type).well_graded == 1
    # Its last grades stay while newer outcomes have none.
    view.put("default", after("S" * 60, other))
    assert view.records("default", poor.task_type).well_graded == 1
    for _ in range(evidence.KEPT_GRADES):
        other = apply_grade(after("S", other), sample=other.samples + 1, was=1.0, grade=0.2, now=0)
    view.put("default", after("S" * 50, other))
    assert view.records("default", poor.task_type).well_graded == 0


@requirement("tasks.grade")
def test_the_newest_four_grades_stay_among_the_stored_outcomes() -> None:
    record = after("S" * 10)
    for sample, grade in ((2, 0.2), (4, 0.4), (5, 0.0), (7, 0.6), (9, 0.8)):
        record = apply_grade(record, sample=sample, was=1.0, grade=grade, now=0)
    # A failure is an outcome as any other, though it has the code of a grade of 0.
    record = after("SSSSF" * 40, record)
    rewards = list(evidence.decode_rewards(record.rewards))
    assert (len(record.rewards), len(record.recent)) == (2 * evidence.MAX_OUTCOMES, evidence.MAX_OUTCOMES)
    assert rewards[:4] == [102, 0, 152, 204]
    assert record.recent == "SSSS" + ("SSSSF" * 10)[4:]
    # Two grades of 1 are assumed beside these four.
    assert evidence.scale_ungraded(record.rewards, record.recent) == pytest.approx((2 + 1.8) / 6, abs=0.01)
    newer = apply_grade(record, sample=record.samples - 1, was=1.0, grade=1.0, now=0)
    assert list(evidence.decode_rewards(after("S", newer).rewards))[:3] == [0, 152, 204]


@requirement("routing.change-is-noticed")
def test_what_is_kept_from_before_a_change_does_not_count_as_after_it() -> None:
    record = apply_grade(after("S" * 10), sample=1, was=1.0, grade=0.8, now=0)
    record = after("S" * 30 + "F" * 8, record)
    since = record.since_change
    assert 0 < since < 12
    assert after("S" * 20, record).since_change == since + 20
    # Once all outcomes from before it are dropped, only the grade is left of them.
    late = after("S" * 60, record)
    assert late.since_change == evidence.MAX_OUTCOMES - 1
    assert late.counted_rewards[1] == evidence.MAX_OUTCOMES


@requirement("routing.change-is-noticed")
def test_the_newest_outcomes_at_other_task_types_say_what_an_agent_does_now() -> None:
    view = LearningView()

    def learn(task_type: str, outcomes: str) -> None:
        view.put("default", msgspec.structs.replace(after(outcomes), agent_id="a", task_type=task_type))

    for n in range(200):
        learn(f"old {n}", "S")
    for n in range(24):
        learn(f"new {n}", "F")
    recent = view.recent_by_agent["a"]
    assert recent.elsewhere("another") == (40, 64)
    assert recent.elsewhere("new 0") == (40, 63)
    assert recent.elsewhere("old 0") == (40, 64)
    learn("often", "S" * 50)
    assert view.recent_by_agent["a"].elsewhere("another") == (40, 64)
    assert view.recent_by_agent["a"].elsewhere("often") == (24, 48)


@requirement("routing.provider-failures")
def test_an_agent_loses_the_share_of_tasks_that_its_provider_fails() -> None:
    flaky, other = one("flaky", 0.5, "S" * 40), one("other", 0.5, "S" * 36 + "F" * 4)
    assert best(flaky, other) == "flaky"
    assert best(msgspec.structs.replace(flaky, failing=0.02), other) == "flaky"
    assert best(msgspec.structs.replace(flaky, failing=0.2), other) == "other"


def test_an_agent_that_is_graded_alike_each_time_is_known_after_few_outcomes() -> None:
    record = initial_weight("a", "t", 0)
    for _ in range(8):
        record = apply_outcome(record, success=True, performance=0.4, duration_ms=1, now=0)
    assert record.variation < 0.25
    assert after("SFSSFSFS").variation == pytest.approx(1.0)
    assert after("SSSS").variation == 1.0


@given(REWARDS)
def test_rewards_never_vary_more_than_successes_and_failures_would(values: list[int]) -> None:
    assert 0 < evidence.relative_variation("".join(f"{value:02x}" for value in values)) <= 1


def test_evidence_that_is_older_than_a_million_outcomes_is_forgotten() -> None:
    assert build_track_record(0.5, 0.2, 9.0, 10.0, age=1_600_000) == build_track_record(0.5, 0.2)
