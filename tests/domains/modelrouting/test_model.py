"""The ranking of models: pure, by the rule that ranks agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import DAY, SECOND
from stentor.domains.learning.model import Weight, apply_outcome, initial_weight
from stentor.domains.learning.service import LearningView
from stentor.domains.modelrouting.model import (
    ModelOption,
    build_candidates,
    choose_model,
    is_retry_due,
    without_outage,
)
from stentor.domains.routing import explain
from stentor.domains.routing.penalties import Preference
from tests.requirements import requirement

KINDS = ("code/short", "maths/long", "question/short")
OUTCOME = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from(KINDS),
    st.floats(0, 1),
    st.integers(0, 60_000),
    st.none() | st.floats(0, 2),
)


def taught(outcomes: Sequence[tuple[str, str, float, int, float | None]]) -> LearningView:
    """What a view holds after (model, kind, reward, milliseconds, cost) in this order."""
    view = LearningView()
    for model, kind, reward, took, cost in outcomes:
        records = view.records("t", kind)
        known = records.weights_by_agent.get(model) or initial_weight(model, kind, 0)
        weight = apply_outcome(
            known, success=reward > 0, performance=reward, duration_ms=took, now=0, cost=cost, progress=records.progress
        )
        view.put("t", weight)
    return view


def chosen(
    view: LearningView, entries: list[ModelOption], prefer: Preference = "balanced", kind: str = KINDS[0]
) -> str:
    return choose_model(build_candidates(entries, view, "t", kind, 0.2, 0), kind, prefer, 0.2).agent_id


@requirement("modelrouting.preference")
def test_who_prefers_what_is_fast_gets_the_faster_of_two_that_are_about_as_good() -> None:
    shown = (("a", 0.95, 40_000), ("b", 0.9, 500))
    outcomes = [(model, KINDS[0], reward, took, 0.01) for model, reward, took in shown for _ in range(5)]
    entries = [ModelOption("a"), ModelOption("b")]
    assert chosen(taught(outcomes), entries, "fast") == "b"
    assert chosen(taught(outcomes), entries, "quality") == "a", "time is nothing there"


@requirement("modelrouting.learns")
def test_before_anything_is_known_the_cheaper_one_is_tried_and_an_unknown_price_is_the_mean() -> None:
    prices = [ModelOption("a", 0.5), ModelOption("b", None), ModelOption("c", 0.01)]
    assert chosen(LearningView(), prices) == "c"
    assert chosen(LearningView(), prices, "quality") == "a"
    assert chosen(LearningView(), [ModelOption("a", 0.5), ModelOption("b", None)]) == "a", (
        "unknown is as much as the other"
    )


@requirement("modelrouting.kinds")
def test_what_failed_at_every_other_kind_is_not_tried_before_what_is_unknown() -> None:
    failed = [("a", kind, 0.0, 10, None) for kind in KINDS[1:] for _ in range(8)]
    assert chosen(taught(failed), [ModelOption("a"), ModelOption("b")]) == "b"


@requirement("modelrouting.recovery")
def test_only_failures_in_place_of_successes_are_an_outage() -> None:
    def record(results: str) -> Weight:
        outcomes = [("a", KINDS[0], float(letter == "S"), 10, None) for letter in results]
        return taught(outcomes).records("t", KINDS[0]).weights_by_agent["a"]

    for results in ("F" * 20, "SSSSSSSSSSFF", "SFFSFFSFFFFF", "S" * 20):
        assert not is_retry_due(record(results), DAY), results
        assert without_outage(record(results)) == record(results), results
    for failures, seconds in ((3, 30), (4, 60), (9, 1_920), (15, 86_400)):
        known = record("S" * 20 + "F" * failures)
        assert [is_retry_due(known, after * SECOND) for after in (seconds - 1, seconds)] == [False, True], failures
        before = without_outage(known)
        rewards, outcomes = before.counted_rewards
        assert (before.recent, before.samples) == ("S" * 20, 20 + failures)
        assert rewards == outcomes >= 12


@requirement("modelrouting.decision")
@given(
    outcomes=st.lists(OUTCOME, max_size=60),
    prices=st.lists(st.none() | st.floats(0, 2), min_size=3, max_size=3),
    ahead=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    online=st.lists(st.booleans(), min_size=3, max_size=3),
    prefer=st.sampled_from(get_args(Preference)),
)
def test_every_decision_is_computed_again_from_its_record(
    outcomes: list[tuple[str, str, float, int, float | None]],
    prices: list[float | None],
    ahead: list[int],
    online: list[bool],
    prefer: Preference,
) -> None:
    entries = [ModelOption(*each) for each in zip("abc", prices, ahead, online, strict=True)]
    ranked = build_candidates(entries, taught(outcomes), "t", KINDS[0], 0.2, 0)
    record = msgspec.json.decode(msgspec.json.encode(choose_model(ranked, KINDS[0], prefer, 0.2)))
    check = explain.check_decision(record)
    assert check.is_reproduced, check
    free = [each.name for each in entries if each.online]
    assert record["agent_name"] in (free or "abc"), "what is not to be called is not chosen while another one is"
