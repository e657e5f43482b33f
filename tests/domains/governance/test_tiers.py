"""The tier of an update at every boundary."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.governance.impact import TierFacts, classify_tier
from stentor.domains.governance.model import AUTO, HUMAN, MONITORED, Changes
from tests.requirements import requirement

CHANGES = Changes(("a.py",), 5, 0, 1000, False, False, False)
"""Changes half a percent of the lines."""
BEST_FACTS = TierFacts("prompt", CHANGES, trust=0.95)


def tier_of(changes: dict[str, Any] | None = None, **facts: Any) -> int:
    changes_after = msgspec.structs.replace(BEST_FACTS.changes, **(changes or {}))
    return classify_tier(msgspec.structs.replace(BEST_FACTS, changes=changes_after, **facts)).tier


@requirement("governance.tier-integers", "governance.tier-auto")
def test_small_safe_change_of_a_trusted_agent_is_auto() -> None:
    assert (AUTO, MONITORED, HUMAN) == (1, 2, 3)
    assert (classify_tier(BEST_FACTS).tier, classify_tier(BEST_FACTS).reasons) == (AUTO, ())


@requirement("governance.tier-auto", "governance.tier-monitored", "governance.tier-human")
@pytest.mark.parametrize(
    ("trust", "expected"),
    [
        (1.0, AUTO),
        (0.9000001, AUTO),
        (0.9, MONITORED),
        (0.8, MONITORED),
        (0.7, MONITORED),
        (0.6999999, HUMAN),
        (0.0, HUMAN),
        (None, HUMAN),
    ],
)
def test_trust_boundaries_are_nine_tenths_and_seven_tenths(trust: float | None, expected: int) -> None:
    assert tier_of(trust=trust) == expected


@requirement("governance.tier-auto", "governance.tier-monitored", "governance.change-ratio")
@pytest.mark.parametrize(
    ("added", "deleted", "total", "expected"),
    [
        (0, 0, 1000, AUTO),
        (9, 0, 1000, AUTO),
        (4, 5, 1000, AUTO),
        (5, 5, 1000, MONITORED),
        (10, 0, 1000, MONITORED),
        (100, 0, 1000, MONITORED),
        (50, 50, 1000, MONITORED),
        (101, 0, 1000, HUMAN),
        (2000, 0, 1000, HUMAN),
        (0, 0, None, HUMAN),
        (0, 0, 0, HUMAN),
    ],
)
def test_changed_lines_boundaries_are_one_and_ten_percent(
    added: int, deleted: int, total: int | None, expected: int
) -> None:
    assert tier_of({"lines_added": added, "lines_deleted": deleted, "lines_total": total}) == expected


@requirement("governance.tier-monitored", "governance.tier-human", "governance.change-ratio")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"breaking": True}, HUMAN),
        ({"breaking": None}, HUMAN),
        ({"new_dependencies": True}, MONITORED),
        ({"new_dependencies": None}, HUMAN),
        ({"touches_policy": True}, HUMAN),
        ({"touches_policy": None}, HUMAN),
        ({"files_modified": ("policies/tools.cedar",)}, HUMAN),
        ({"files_modified": ("src/Governance.py",)}, HUMAN),
        ({"files_modified": ("src/policyEngine.py",)}, HUMAN),
        ({"files_modified": ("src/MyPolicy.java",)}, HUMAN),
        ({"files_modified": ("roles/IAMPolicy.json",)}, HUMAN),
        ({"files_modified": ("src/ＰＯＬＩＣＹ.py",)}, HUMAN),
        ({"files_modified": ("src/pol\u200bicy.py",)}, HUMAN),
        ({"files_modified": ()}, HUMAN),
        ({"files_modified": ("README.md", " \u200b")}, HUMAN),
        ({"files_modified": (), "lines_added": 0}, AUTO),
        ({"files_modified": ("src/policyholder.py",)}, AUTO),
    ],
)
def test_flags_raise_the_tier_and_unknown_flags_need_a_human(changes: dict[str, Any], expected: int) -> None:
    assert tier_of(changes) == expected


@requirement("governance.tier-human")
@pytest.mark.parametrize(
    "facts",
    [
        {"known": False, "trust": None},
        {"active": False},
        {"widens": True},
        {"changes_runtime": True},
        {"forbidden": True},
        {"update_type": "policy"},
        {"update_type": "Governance-rules"},
        {"update_type": "tool_policies"},
    ],
)
def test_facts_that_need_a_human_regardless_of_trust(facts: dict[str, Any]) -> None:
    assert tier_of(**facts) == HUMAN
    assert tier_of(**{**facts, "trust": facts.get("trust", 1.0)}) == HUMAN


def test_reasons_name_every_failed_condition() -> None:
    facts = TierFacts("policy", Changes(), known=False)
    reasons = " ".join(classify_tier(facts).reasons)
    for word in ("unknown", "breaking", "dependencies", "policy"):
        assert word in reasons
    monitored = classify_tier(msgspec.structs.replace(BEST_FACTS, trust=0.8))
    assert monitored.reasons == ("trust is not above 0.9",)


FLAG = st.sampled_from([True, False, None])
FACTS = st.builds(
    TierFacts,
    st.sampled_from(["prompt", "code", "policy"]),
    st.builds(
        Changes,
        st.just(("a.py",)),
        st.integers(0, 300),
        st.integers(0, 300),
        st.one_of(st.none(), st.integers(0, 3000)),
        FLAG,
        FLAG,
        FLAG,
    ),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 1)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(FACTS, st.floats(0, 1))
def test_lower_trust_never_lowers_the_tier(facts: TierFacts, factor: float) -> None:
    less_trusted = msgspec.structs.replace(facts, trust=None if facts.trust is None else facts.trust * factor)
    assert classify_tier(less_trusted).tier >= classify_tier(facts).tier


@given(FACTS)
def test_policy_forbid_always_gives_tier_human(facts: TierFacts) -> None:
    assert classify_tier(msgspec.structs.replace(facts, forbidden=True)).tier == HUMAN >= classify_tier(facts).tier


@given(FACTS)
def test_auto_tier_implies_every_condition(facts: TierFacts) -> None:
    changes = facts.changes
    if classify_tier(facts).tier == AUTO:
        assert facts.known
        assert facts.active
        assert facts.trust is not None
        assert facts.trust > 0.9
        assert changes.changed_ratio is not None
        assert changes.changed_ratio < 0.01
        assert (changes.breaking, changes.new_dependencies, changes.touches_policy) == (False, False, False)
        assert facts.update_type != "policy"
        assert (facts.widens, facts.changes_runtime, facts.forbidden) == (False, False, False)
