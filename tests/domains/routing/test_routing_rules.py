"""Admission and ranking as tables and properties: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.errors import (
    AgentUnavailable,
    CapabilityUnavailable,
    DelegationDenied,
    PreferredAgentIneligible,
    RoutingDenied,
    StartRefused,
    TenantDenied,
    TrustFloorExcludedAll,
)
from stentor.core.settings import load
from stentor.domains.routing.candidates import AgentCandidate
from stentor.domains.routing.model import Authority, RoutingPolicy, RoutingRequest, decide, find_denial
from stentor.domains.routing.ranking import rank_candidates
from stentor.domains.routing.track_record import build_track_record
from tests.domains.agents import agent
from tests.requirements import requirement

REQUEST = RoutingRequest("default", "echo", ("echo",))
FLOOR = RoutingPolicy(trust_floor=0.6)
UNIT = st.floats(0, 1)


def candidate(
    name: str = "ann", shown: tuple[float, float] = (0.0, 0.0), trust: float | None = None, **fields: Any
) -> AgentCandidate:
    """`shown` is a sum of rewards and a number of outcomes at the task type."""
    made = agent(name, **fields)
    return AgentCandidate(made, build_track_record(made.composite, 0.2, *shown), trust)


REFUSED: dict[type[RoutingDenied], AgentCandidate] = {
    CapabilityUnavailable: candidate("a", capabilities=("other",)),
    TenantDenied: candidate("b", tenant="other"),
    AgentUnavailable: candidate("c", status="suspended"),
    TrustFloorExcludedAll: candidate("e", trust=0.59),
}


@requirement("routing.admission-before-ranking")
@pytest.mark.parametrize(("reason", "who"), REFUSED.items(), ids=lambda value: getattr(value, "code", ""))
def test_each_check_refuses_with_its_own_code(reason: type[RoutingDenied], who: AgentCandidate) -> None:
    assert find_denial(REQUEST, who, FLOOR) is reason


@requirement("routing.admission-before-ranking")
def test_checks_run_in_their_order_and_the_first_refusal_counts() -> None:
    everything: dict[str, Any] = {"capabilities": ("other",), "tenant": "other", "status": "quarantined"}
    cured = {"capabilities": ("echo",), "tenant": "default", "status": "active"}
    order = [CapabilityUnavailable, TenantDenied, AgentUnavailable]
    for reason, name in zip(order, cured, strict=True):
        assert find_denial(REQUEST, candidate(trust=0.0, **everything), FLOOR) is reason
        everything[name] = cured[name]
    nobody = RoutingRequest("default", "echo", ("echo",), Authority(is_active=False))
    assert find_denial(nobody, candidate(trust=0.0), FLOOR) is DelegationDenied
    assert find_denial(REQUEST, candidate(trust=0.0), FLOOR) is TrustFloorExcludedAll


@requirement("routing.authority-denied-403")
@pytest.mark.parametrize(
    ("authority", "passes"),
    [
        (Authority(), True),
        (Authority(is_active=False), False),
        (Authority(capabilities=frozenset(("echo", "more"))), True),
        (Authority(capabilities=frozenset(("more",))), False),
    ],
)
def test_delegated_authority_must_be_active_and_cover_the_capabilities(authority: Authority, passes: bool) -> None:
    request = RoutingRequest("default", "echo", ("echo",), authority)
    assert find_denial(request, candidate(), RoutingPolicy()) is (None if passes else DelegationDenied)


@requirement("routing.authority-denied-403")
@pytest.mark.parametrize(
    ("capabilities", "passes"),
    [(("echo",), True), (("echo", "more"), True), (("echo", "deploy"), False), (("deploy",), False), ((), False)],
)
def test_work_that_requires_nothing_goes_only_to_an_agent_within_the_authority(
    capabilities: tuple[str, ...], passes: bool
) -> None:
    who = candidate(capabilities=capabilities)
    limited = RoutingRequest("default", "echo", (), Authority(capabilities=frozenset(("echo", "more"))))
    assert find_denial(limited, who, RoutingPolicy()) is (None if passes else DelegationDenied)
    assert find_denial(RoutingRequest("default", "echo", ()), who, RoutingPolicy()) is None


@requirement("routing.authority-denied-403")
@pytest.mark.parametrize(("key_name", "passes"), [("bob", True), ("ann", False), (None, False)])
def test_only_a_keys_own_agent_may_have_no_capabilities(key_name: str | None, passes: bool) -> None:
    request = RoutingRequest("default", "echo", (), Authority(capabilities=frozenset(("echo",)), key_name="bob"))
    who = candidate(capabilities=(), key_name=key_name)
    assert find_denial(request, who, RoutingPolicy()) is (None if passes else DelegationDenied)


@requirement("routing.code-of-furthest-check")
@given(st.sets(st.sampled_from(sorted(REFUSED, key=lambda cls: list(REFUSED).index(cls))), min_size=1))
def test_the_code_is_that_of_the_furthest_check_any_candidate_reached(reasons: set[type[RoutingDenied]]) -> None:
    furthest = max(reasons, key=list(REFUSED).index)
    with pytest.raises(furthest):
        decide(REQUEST, [REFUSED[reason] for reason in reasons], FLOOR)


def test_a_request_without_any_candidate_has_no_capability() -> None:
    with pytest.raises(CapabilityUnavailable):
        decide(REQUEST, [], RoutingPolicy())


@requirement("routing.denial-is-never-passed-on")
def test_a_denied_preference_names_the_check_that_refused_it() -> None:
    request = RoutingRequest("default", "echo", ("echo",), preferred_agent_id="c")
    with pytest.raises(PreferredAgentIneligible) as denied:
        decide(request, [REFUSED[AgentUnavailable]], RoutingPolicy())
    assert denied.value.details is not None
    assert denied.value.details["reason"] == "ROUTING_AGENT_UNAVAILABLE"


def test_a_preferred_agent_that_does_not_exist_is_said_not_to_exist() -> None:
    request = RoutingRequest("default", "echo", (), preferred_agent_id="c")
    with pytest.raises(PreferredAgentIneligible, match="No agent has the id 'c'"):
        decide(request, [], RoutingPolicy())


@requirement("routing.composite-score")
@given(UNIT, UNIT, UNIT)
def test_the_composite_weighs_the_three_scores_and_stays_in_bounds(a: float, b: float, c: float) -> None:
    made = agent(alignment_score=a, accuracy_score=b, efficiency_score=c)
    assert made.composite == pytest.approx(0.4 * a + 0.4 * b + 0.2 * c)
    assert -1e-9 <= made.composite <= 1 + 1e-9


@requirement("routing.blend-formula", "routing.trust-prior-half")
def test_the_score_follows_the_formula() -> None:
    """By hand: alpha 0.2 makes the prior worth four outcomes."""
    pool = [
        candidate("known", (9.0, 12.0), trust=0.9, alignment_score=1.0),
        candidate("new", trust=None),
    ]
    terms = {r.name: r for r in rank_candidates(pool, beta=0.2).candidates}
    known, new = terms["known"], terms["new"]
    assert (known.prior, known.strength, known.expected) == pytest.approx((0.65, 4.0, (4 * 0.65 + 9) / 16))
    # The upper end of Wilson's interval solves (p - expected)^2 = 4 p (1 - p) / 16.
    possible = known.expected + known.uncertainty
    assert known.uncertainty**2 == pytest.approx(possible * (1 - possible) / 4)
    assert known.blended == pytest.approx(0.8 * possible + 0.2 * 0.9)
    assert (new.outcomes, new.expected, new.uncertainty) == pytest.approx(
        (0, 0.55, (0.55 + 0.5 + 0.4975**0.5) / 2 - 0.55)
    )
    assert (known.trust, new.trust) == (0.9, 0.5)


CANDIDATES = st.lists(
    st.builds(
        candidate,
        st.text(st.characters(codec="ascii"), min_size=1, max_size=3),
        shown=st.tuples(UNIT, st.floats(0.1, 50)).map(lambda pair: (pair[0] * pair[1], pair[1])),
        trust=st.none() | UNIT,
        alignment_score=UNIT,
        accuracy_score=UNIT,
        efficiency_score=UNIT,
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda c: c.agent.agent_id,
)


@given(CANDIDATES, UNIT)
def test_a_ranking_is_a_permutation_with_every_term_in_bounds(pool: list[AgentCandidate], beta: float) -> None:
    ranked = rank_candidates(pool, beta).candidates
    assert sorted(r.agent_id for r in ranked) == sorted(c.agent.agent_id for c in pool)
    assert [r.blended for r in ranked] == sorted((r.blended for r in ranked), reverse=True)
    for r in ranked:
        assert all(-1e-9 <= term <= 1 + 1e-9 for term in (r.composite, r.prior, r.expected, r.uncertainty, r.trust))


@given(st.lists(st.sampled_from([0.2, 0.5, 0.8]), min_size=1, max_size=12), st.integers(1, 12), st.randoms())
def test_the_best_few_are_those_of_the_whole_ranking_although_many_are_equal(
    scores: list[float], most: int, random: Any
) -> None:
    pool = [candidate(f"agent-{n:02}", alignment_score=score) for n, score in enumerate(scores)]
    random.shuffle(pool)
    whole = rank_candidates(pool, 0.0).candidates
    expected = sorted(pool, key=lambda c: (-c.agent.composite, c.agent.name))
    assert [r.name for r in whole] == [c.agent.name for c in expected]
    assert rank_candidates(pool, 0.0, limit=most).candidates == whole[:most]


@given(CANDIDATES, UNIT, st.randoms())
def test_a_ranking_does_not_depend_on_the_order_of_the_candidates(
    pool: list[AgentCandidate], beta: float, random: Any
) -> None:
    mixed = list(pool)
    random.shuffle(mixed)
    assert [r.name for r in rank_candidates(mixed, beta).candidates] == [
        r.name for r in rank_candidates(pool, beta).candidates
    ]


@requirement("routing.ties")
def test_ties_fall_to_the_higher_composite_and_then_to_the_name() -> None:
    # Only trust counts, so all scores are equal to the last bit.
    pool = [
        candidate("b", alignment_score=0.0),
        candidate("a", alignment_score=0.0),
        candidate("c", alignment_score=0.5),
    ]
    ranked = rank_candidates(pool, beta=1.0).candidates
    assert len({r.blended for r in ranked}) == 1
    assert [r.name for r in ranked] == ["c", "a", "b"]


@requirement("routing.floor-before-scoring", "routing.trust-prior-half")
def test_the_floor_removes_candidates_before_scoring_and_missing_trust_counts_half() -> None:
    best = candidate("best", (50.0, 50.0), trust=0.59, alignment_score=1.0)
    plain = candidate("plain", (1.0, 2.0), trust=0.6)
    decision = decide(REQUEST, [best, plain], FLOOR)
    assert decision.agent_name == "plain"
    # The refused candidate is not what the others are measured against.
    assert ([r.name for r in decision.candidates], decision.slope) == (["plain"], 1.0)
    assert find_denial(REQUEST, candidate(trust=None), RoutingPolicy(trust_floor=0.5)) is None
    assert find_denial(REQUEST, candidate(trust=None), RoutingPolicy(trust_floor=0.51)) is TrustFloorExcludedAll


@requirement("routing.trust-source-unreadable")
def test_without_the_trust_source_beta_and_floor_are_zero_and_the_decision_says_so() -> None:
    policy = RoutingPolicy(beta=0.5, trust_floor=0.9)
    pool = [candidate("low", trust=0.0, alignment_score=1.0), candidate("high", trust=1.0)]
    decision = decide(REQUEST, pool, policy, trust_available=False)
    assert decision.agent_name == "low"
    assert (decision.beta, decision.trust_floor, decision.trust_available) == (0.0, 0.0, False)


@requirement("routing.blend-defaults")
def test_the_shares_have_their_defaults_and_impossible_ones_stop_the_start() -> None:
    settings = load({})
    assert (settings.routing.alpha, settings.routing.beta, settings.routing.trust_floor) == (0.2, 0.0, 0.0)
    for alpha, beta in [("-0.1", "0"), ("0.3", "-0.01"), ("nan", "0"), ("1.1", "0"), ("0.2", "1.1")]:
        with pytest.raises(StartRefused, match="SERVICE_HEBBIAN_ROUTING"):
            load({"SERVICE_HEBBIAN_ROUTING_ALPHA": alpha, "SERVICE_HEBBIAN_ROUTING_BETA": beta})
