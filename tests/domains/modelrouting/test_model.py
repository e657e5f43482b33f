"""The ranking of models: pure, by the rule that ranks agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import DAY, SECOND
from stentor.domains.learning.model import Weight, apply_outcome, initial_weight
from stentor.domains.learning.outages import without_outage
from stentor.domains.learning.view import LearningView
from stentor.domains.modelrouting.model import (
    ModelOption,
    build_candidates,
    choose_model,
    is_retry_due,
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


def failing(results: str, seconds_apart: int = 0) -> tuple[Weight, Weight]:
    """The record of a model with these results, S or F, and the one after the first failure of the last row."""
    view = LearningView()
    for n, letter in enumerate(results):
        records, now = view.records("t", KINDS[0]), n * seconds_apart * SECOND
        known = records.weights_by_agent.get("a") or initial_weight("a", KINDS[0], 0)
        success = letter == "S"
        view.put("t", apply_outcome(known, success=success, performance=1.0, duration_ms=1, now=now))
    weight = view.records("t", KINDS[0]).weights_by_agent["a"]
    return weight, view.records("t", KINDS[0]).own_outages.first_failure(weight)


@requirement("modelrouting.recovery")
@pytest.mark.parametrize("results", ["F" * 20, "SSSSSSSSSSFF", "SFFSFFSFFFFF", "S" * 20])
def test_failures_that_may_be_chance_are_no_outage(results: str) -> None:
    weight, first = failing(results)
    assert not is_retry_due(weight, first, DAY)
    assert without_outage(weight) == weight


@requirement("modelrouting.recovery")
@pytest.mark.parametrize("failures", [3, 15, 49])
def test_what_counts_again_after_an_outage_is_all_from_before(failures: int) -> None:
    before = without_outage(failing("S" * 50 + "F" * failures)[0])
    left = 50 - failures
    assert (before.recent, before.samples) == ("S" * left, 50 + failures)
    assert before.counted_rewards == (left, left)


@requirement("modelrouting.recovery")
@pytest.mark.parametrize(("failures", "apart", "pause"), [(3, 0, 30), (80, 0, 30), (11, 60, 600), (3, 86_400, 86_400)])
def test_a_model_is_tried_again_after_as_long_as_its_outage_took_so_far(failures: int, apart: int, pause: int) -> None:
    weight, first = failing("S" * 20 + "F" * failures, apart)
    due = [is_retry_due(weight, first, weight.updated_at + seconds * SECOND) for seconds in (pause - 1, pause)]
    assert due == [False, True]


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
    entries = [ModelOption(*each) for each in zip("abc", prices, prices, ahead, online, strict=True)]
    ranked = build_candidates(entries, taught(outcomes), "t", KINDS[0], 0.2, 0)
    record = msgspec.json.decode(msgspec.json.encode(choose_model(ranked, KINDS[0], prefer, 0.2)))
    check = explain.check_decision(record)
    assert check.is_reproduced, check
    free = [each.name for each in entries if each.online]
    assert record["agent_name"] in (free or "abc"), "what is not to be called is not chosen while another one is"
