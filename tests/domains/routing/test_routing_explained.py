"""A recorded decision is computed again from what it recorded: pure."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stentor.core import jsontext
from stentor.domains.routing import explain
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.model import RoutingPolicy, RoutingRequest, decide
from stentor.domains.routing.penalties import PENALTIES_BY_PREFERENCE, Preference
from stentor.domains.routing.track_record import build_track_record
from tests.domains.agents import agent
from tests.requirements import requirement

UNIT = st.floats(0, 1)
FEW = st.just(0.0) | st.floats(0.1, 60)


def candidate(
    name: str, rewards: float = 0.0, outcomes: float = 0.0, alpha: float = 0.2, online: bool = True, **fields: Any
) -> AgentCandidate:
    known = build_track_record(0.5, alpha, rewards, outcomes, **fields)
    return AgentCandidate(agent(name, agent_id=name), known, online=online)


def recorded(
    *candidates: AgentCandidate, policy: RoutingPolicy | None = None, prefer: Preference = "balanced"
) -> dict[str, Any]:
    """The decision as it comes back from the run log."""
    decision = decide(
        RoutingRequest("default", "echo", ("echo",), preference=prefer), candidates, policy or RoutingPolicy()
    )
    record: dict[str, Any] = jsontext.load(jsontext.dump(msgspec.to_builtins(decision)))
    return record


@st.composite
def drawn(draw: st.DrawFn, alpha: float, number: int) -> AgentCandidate:
    scores = draw(UNIT), draw(UNIT), draw(UNIT)
    made = agent(
        f"agent {number}",
        agent_id=str(number),
        alignment_score=scores[0],
        accuracy_score=scores[1],
        efficiency_score=scores[2],
    )
    outcomes, elsewhere = draw(FEW), draw(FEW)
    known = build_track_record(
        made.composite,
        alpha,
        draw(UNIT) * outcomes,
        outcomes,
        (draw(UNIT) * elsewhere, elsewhere),
        age=draw(st.integers(0, 5_000)),
        duration_ms=draw(st.none() | st.floats(0, 1e6)),
        cost=draw(st.none() | st.floats(0, 100)),
    )
    return AgentCandidate(
        made,
        known,
        draw(st.none() | UNIT),
        draw(st.integers(0, 20)),
        draw(st.integers(1, 4)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 20)),
        failing=draw(UNIT),
        overload=draw(UNIT),
    )


@requirement("routing.decision-recomputed")
@given(st.data(), UNIT, UNIT, st.integers(1, 14), st.sampled_from(sorted(PENALTIES_BY_PREFERENCE)))
def test_every_decision_is_recomputed_the_same_from_its_record(
    data: st.DataObject, alpha: float, beta: float, number: int, prefer: Preference
) -> None:
    candidates = [data.draw(drawn(alpha, n)) for n in range(number)]
    found = explain.check_decision(recorded(*candidates, policy=RoutingPolicy(alpha, beta), prefer=prefer))
    assert found.recomputed
    assert found.differences == ()
    assert bool(found.assumed) == (number > 10)


@requirement("routing.decision-recomputed")
@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("composite", {"prior"}),
        ("rewards", {"expected", "blended"}),
        ("blended", {"blended"}),
        ("expected", {"expected"}),
        ("uncertainty", {"uncertainty"}),
        ("prior", {"prior"}),
        ("time_penalty", {"time_penalty"}),
    ],
)
def test_a_changed_number_of_a_candidate_is_a_difference_with_its_name(field: str, said: set[str]) -> None:
    record = recorded(candidate("ann", 9, 10), candidate("bob", 2, 10))
    record["candidates"][1][field] += 0.01
    found = explain.check_decision(record)
    assert not found.is_reproduced
    assert said <= {each.field for each in found.differences}
    assert {each.name for each in found.differences} >= {"bob"}


@requirement("routing.decision-recomputed")
def test_another_winner_than_the_scores_say_is_a_difference() -> None:
    record = recorded(candidate("ann", 9, 10), candidate("bob", 2, 10))
    record |= {"agent_id": "bob", "agent_name": "bob"}
    assert {each.field: each.recomputed for each in explain.check_decision(record).differences} == {
        "agent_id": "ann",
        "agent_name": "ann",
    }
    record = recorded(candidate("ann", 9, 10), candidate("bob", 2, 10))
    record["candidates"].reverse()
    assert "order" in {each.field for each in explain.check_decision(record).differences}


SEED = st.integers(0, 2**64)
MEASURED = ("composite", "rewards", "outcomes", "ready_ms", "cost", "trust")
COMPUTED = ("prior", "strength", "expected", "uncertainty", "time_penalty", "cost_penalty", "blended", "variation")


def crowd(draw: Random, number: int) -> dict[str, Any]:
    """A decision among many, of whom some have no known cost or duration. (By a seed: Hypothesis takes seconds to draw
    sixty agents.)
    """

    def one(n: int) -> AgentCandidate:
        scores = {f"{name}_score": draw.random() for name in ("alignment", "accuracy", "efficiency")}
        made = agent(f"agent {n}", agent_id=str(n), **scores)
        outcomes, elsewhere = draw.choice((0.0, draw.uniform(0.1, 60))), draw.choice((0.0, draw.uniform(0.1, 60)))
        known = build_track_record(
            made.composite,
            0.2,
            draw.random() * outcomes,
            outcomes,
            (draw.random() * elsewhere, elsewhere),
            age=draw.randrange(5_000),
            duration_ms=draw.choice((None, draw.uniform(0, 1e6))),
            cost=draw.choice((None, draw.uniform(0, 100))),
            stale=draw.random() < 0.3,
        )
        ahead, online = draw.choice((0, draw.randrange(20))), draw.random() < 0.8
        trust, failing = draw.choice((None, draw.random())), draw.choice((0.0, draw.random()))
        return AgentCandidate(made, known, trust, ahead, draw.randint(1, 4), online, failing=failing)

    return recorded(*(one(n) for n in range(number)), policy=RoutingPolicy(0.2, 0.3))


@requirement("routing.decision-recomputed")
@settings(max_examples=200, deadline=None)
@given(SEED, st.integers(11, 60))
def test_a_decision_among_many_is_recomputed_from_what_it_lists_alone(seed: int, number: int) -> None:
    record = crowd(Random(seed), number)
    assert len(record["candidates"]) == 10
    found = explain.check_decision(record)
    assert found.differences == ()
    assert found.assumed == (
        f"Mean, slope, shortest time, lowest and usual cost depend on {number - 10} candidates that are not listed.",
    )


@requirement("routing.decision-recomputed")
@settings(max_examples=500, deadline=None)
@given(SEED, st.integers(1, 60), st.integers(0, 9), st.sampled_from([*MEASURED, *COMPUTED, "ahead"]))
def test_any_changed_term_of_any_listed_candidate_is_a_difference(seed: int, number: int, at: int, field: str) -> None:
    record = crowd(Random(seed), number)
    row = record["candidates"][at % len(record["candidates"])]
    if field == "ahead":
        row[field] += 1
    elif field in ("ready_ms", "cost"):
        row[field] = 2 * (row[field] or 0.0) + 1_000.0
    else:
        row[field] = row[field] + 0.01 if row[field] < 0.5 else row[field] - 0.01
    assert not explain.check_decision(record).is_reproduced, (field, row)


@requirement("routing.decision-recomputed")
@settings(max_examples=200, deadline=None)
@given(SEED, st.integers(11, 60), st.sampled_from(["fastest_ms", "cheapest"]), st.booleans())
def test_a_changed_best_is_a_difference_though_not_all_are_listed(
    seed: int, number: int, field: str, more: bool
) -> None:
    record = crowd(Random(seed), number)
    shown = [row["ready_ms"] if field == "fastest_ms" else row["cost_penalty"] for row in record["candidates"]]
    # A best that nobody listed is far from decides nothing that is listed.
    assume(max(shown) > record["fastest_ms"] + 1 if field == "fastest_ms" else max(shown) > 0.001)
    record[field] = 2 * record[field] + 1.0 if more else record[field] / 2
    assume(more or record[field] > 0.01)
    assert not explain.check_decision(record).is_reproduced


@requirement("routing.decision-recomputed")
def test_a_cost_that_stands_in_for_an_unknown_one_is_recorded_and_checked() -> None:
    known = [candidate(f"a{n:02}", 9, 10, cost=1.0 + n) for n in range(14)]
    record = recorded(candidate("unknown", 10, 10), *known)
    assert 6 < record["usual_cost"] < 7  # the geometric mean of 1 to 14
    assert explain.check_decision(record).differences == ()
    record["usual_cost"] = 3.0
    differences = explain.check_decision(record).differences
    assert {(each.field, each.name) for each in differences} >= {("cost_penalty", "unknown")}


@requirement("routing.decision-recomputed")
def test_a_decision_without_the_cost_that_stood_in_is_not_reproduced() -> None:
    record = recorded(candidate("unknown", 10, 10), *(candidate(f"a{n:02}", 9, 10, cost=1.0 + n) for n in range(14)))
    del record["usual_cost"]
    assert not explain.check_decision(record).is_reproduced


@requirement("routing.decision-recomputed")
def test_a_decision_of_the_rule_before_is_shown_with_its_terms_and_not_computed_again() -> None:
    record = recorded(candidate("ann", 9, 10, cost=1.0), candidate("bob", 2, 10, cost=2.0)) | {"rule": "evidence-3"}
    found = explain.check_decision(record)
    assert (found.recomputed, found.is_reproduced) == (False, False)
    assert "'evidence-3'" in (found.reason or "")
    assert explain.is_readable(record)
    assert "its expected result is better" in explain.explain_decision(record)


@requirement("routing.decision-recomputed")
@pytest.mark.parametrize("field", ["mean", "slope", "fastest_ms", "cheapest", "usual_cost"])
def test_what_holds_for_all_is_recomputed_where_all_are_listed(field: str) -> None:
    record = recorded(candidate("ann", 9, 10, cost=1.0, duration_ms=5.0), candidate("bob", 2, 10))
    record[field] += 0.5
    assert field in {each.field for each in explain.check_decision(record).differences}


@requirement("routing.decision-recomputed")
@pytest.mark.parametrize(
    "change", [{"candidates": []}, {"prefer": "best"}, {"alpha": "0.2"}, {"candidates_total": None}, {"online": 1}]
)
def test_a_record_that_cannot_be_read_is_a_difference_and_no_crash(change: dict[str, Any]) -> None:
    found = explain.check_decision(recorded(candidate("ann")) | change)
    assert found.differences


@requirement("routing.decision-recomputed")
@pytest.mark.parametrize("field", ["rewards", "composite", "ready_ms", "cost", "outcomes", "ahead"])
def test_impossible_inputs_are_differences_and_no_crash(field: str) -> None:
    record = recorded(candidate("ann", 9, 10, cost=0.5), candidate("bob", 2, 10))
    record["candidates"][0][field] = -100_000
    assert explain.check_decision(record).differences


@requirement("routing.decision-recomputed")
@pytest.mark.parametrize("rule", [None, "evidence-0", 7])
def test_a_decision_by_another_rule_is_said_not_to_be_recomputable(rule: Any) -> None:
    record = recorded(candidate("ann"))
    record["rule"] = rule
    found = explain.check_decision(record)
    assert (found.recomputed, found.is_reproduced, found.differences) == (False, False, ())
    assert "rule" in str(found.reason)
    assert not explain.check_decision(None).recomputed


def test_a_decision_with_other_fields_is_said_to_be_unreadable_whatever_its_rule() -> None:
    # The fixed shares of a rule before the first release.
    each = {"agent_id": "a", "name": "ann", "composite": 1.0, "hebbian": 0.5, "trust": 0.5, "blended": 0.7}
    for rule in (None, "shares", explain.RULE_VERSION):
        record = {"rule": rule, "agent_name": "ann", "candidates_total": 1, "candidates": [each]}
        assert not explain.is_readable(record)
        assert explain.explain_decision(record) == "The recorded decision cannot be read."


def test_the_sentence_names_what_decided() -> None:
    strong, weak = candidate("ann", 49, 50), candidate("bob", 10, 50)
    assert explain.explain_decision(recorded(strong, weak)).startswith(
        "ann was chosen among 2 candidates with the highest score, "
    )
    assert "its expected result is better (expected 0.9" in explain.explain_decision(recorded(strong, weak))
    assert explain.explain_decision(recorded(strong)) == "ann was chosen as the only eligible agent."
    unknown = explain.explain_decision(recorded(candidate("ann"), candidate("bob", 25, 50)))
    assert "it has fewer results so far, so routing tries it" in unknown
    tried = msgspec.structs.replace(candidate("bob", 10, 20), unlearned=10)
    assert "its results so far are less certain, so routing tries it" in explain.explain_decision(
        recorded(candidate("ann", 12, 24), tried)
    )
    tie = explain.explain_decision(recorded(candidate("ann"), candidate("bob")))
    assert "the same score as bob" in tie
    assert "the name decides" in tie


@requirement("routing.length")
def test_the_sentence_says_that_the_length_decided_only_where_it_did() -> None:
    failing = candidate("ann", 0, 8, any_length=(45, 50))
    steady = candidate("bob", 35, 50, any_length=(35, 50))
    sentence = explain.explain_decision(recorded(failing, steady))
    assert sentence.startswith("bob was chosen")
    assert "its expected result is better for inputs of this length (expected 0.68" in sentence
    worse = candidate("ann", 0, 8, any_length=(10, 50))
    assert "its expected result is better (expected 0.68" in explain.explain_decision(recorded(worse, steady))
    # Of a record of the rule before, which knows no lengths.
    record = recorded(failing, steady)
    for each in record["candidates"]:
        del each["any_length"]
    assert "its expected result is better (expected 0.68" in explain.explain_decision(record)
    assert explain.check_decision(record).is_reproduced
    # A rule with other priors had another expected result, which says nothing about lengths.
    for each, expected in zip(record["candidates"], (0.4, 0.1), strict=True):
        each |= {"rewards": 5, "outcomes": 10, "expected": expected}
    sentence = explain.explain_decision(record | {"rule": "evidence-3"})
    assert "its expected result is better (expected 0.400 against 0.100)" in sentence


@requirement("routing.length")
def test_the_sentence_calls_nobody_sooner_whose_time_at_this_length_is_unknown() -> None:
    quick = candidate("cid", 1, 50, duration_ms=1_000.0, any_length=(1, 50))
    slow = candidate("bob", 50, 50, duration_ms=40_000.0, any_length=(50, 50))
    unknown = candidate("ann", 20, 20, any_length=(50, 50))
    record = recorded(quick, slow, unknown)
    sentence = explain.explain_decision(record)
    assert sentence.startswith("ann was chosen")
    assert "because nobody knows yet how long it takes with inputs of this length, so routing tries it (" in sentence
    assert explain.check_decision(record).is_reproduced
    known = candidate("ann", 20, 20, duration_ms=1_000.0, any_length=(50, 50))
    assert "because it is ready sooner (" in explain.explain_decision(recorded(quick, slow, known))
    # Of a record that does not say so.
    for each in record["candidates"]:
        del each["time_known"]
    assert "because it is ready sooner (" in explain.explain_decision(record)


def test_the_sentence_says_who_is_offline() -> None:
    absent = candidate("ann", 49, 50, online=False)
    assert "because ann, whose score is higher, is offline" in explain.explain_decision(
        recorded(absent, candidate("bob", 1, 50))
    )
    assert "No worker is online, so the task waits for ann." in explain.explain_decision(recorded(absent))


def test_the_sentence_names_time_and_cost_where_they_decide() -> None:
    slow, fast = candidate("ann", 40, 50, duration_ms=60_000.0), candidate("bob", 40, 50, duration_ms=1_000.0)
    assert "it is ready sooner" in explain.explain_decision(recorded(slow, fast, prefer="fast"))
    dear, cheap = candidate("ann", 40, 50, cost=5.0), candidate("bob", 40, 50, cost=0.1)
    assert "it costs less" in explain.explain_decision(recorded(dear, cheap, prefer="cheap"))


def test_the_sentence_does_not_call_an_agent_quick_or_cheap_whose_time_and_cost_nobody_knows() -> None:
    new = candidate("zoe")
    slow = candidate("ann", 50, 50, duration_ms=600_000.0)
    assert "nobody knows yet how long it takes" in explain.explain_decision(recorded(slow, new, prefer="fast"))
    dear = candidate("ann", 50, 50, cost=5.0)
    assert "nobody knows yet what it costs" in explain.explain_decision(recorded(dear, new, prefer="cheap"))
    others = (candidate("ann", 40, 50, cost=5.0), candidate("eve", 0, 50, cost=0.001))
    silent = candidate("bob", 40, 50)
    sentence = explain.explain_decision(recorded(*others, silent, prefer="cheap"))
    assert "bob was chosen" in sentence
    assert "its cost is unknown and counts as the usual one" in sentence
    cheap = candidate("eve", 40, 50, cost=0.001)
    sentence = explain.explain_decision(recorded(dear, silent, cheap, prefer="cheap"))
    assert "it costs less than is assumed of bob" in sentence
