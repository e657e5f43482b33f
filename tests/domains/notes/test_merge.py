"""Three-way merges: both changes, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor_vault.notes import frontmatter, merge
from stentor_vault.notes.merge import MergeConflict, merge_notes

BASE = "---\ntags: [a, b]\nstate: new\n---\none\ntwo\nthree\nfour\nfive\n"


def test_changes_of_different_lines_and_keys_are_both_kept() -> None:
    ours = BASE.replace("one", "ONE").replace("state: new", "state: old")
    theirs = BASE.replace("five", "FIVE").replace("[a, b]", "[b, c]  # mine")
    merged = merge_notes(BASE, ours, theirs)
    assert frontmatter.split(merged).body == "ONE\ntwo\nthree\nfour\nFIVE\n"
    assert frontmatter.read(merged) == {"tags": ["b", "c"], "state": "old"}
    assert "[b, c]  # mine" in merged


def test_lists_are_merged_like_sets_and_maps_by_key() -> None:
    base = "---\ntags: [a, b]\nweights: {x: 1, y: 2}\n---\n"
    ours = "---\ntags: [a, b, c]\nweights: {x: 5, y: 2}\n---\n"
    theirs = "---\ntags: [b, d]\nweights: {x: 1, y: 2, z: 3}\n---\n"
    assert frontmatter.read(merge_notes(base, ours, theirs)) == {
        "tags": ["b", "d", "c"],
        "weights": {"x": 5, "y": 2, "z": 3},
    }


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (BASE.replace("two", "2"), BASE.replace("two", "II")),
        (BASE.replace("two", "2"), BASE.replace("three", "3")),
        (BASE.replace("two\n", ""), BASE.replace("two", "II")),
        (BASE + "six\n", BASE + "sechs\n"),
        (BASE.replace("new", "old"), BASE.replace("new", "done")),
        (BASE.replace("state: new\n", ""), BASE.replace("new", "done")),
        (BASE.replace("one", "1"), BASE.replace("state: new", "state: [")),
    ],
    ids=["line", "neighbours", "removed and changed", "both at the end", "key", "key removed", "malformed"],
)
def test_changes_of_the_same_place_are_a_conflict(ours: str, theirs: str) -> None:
    with pytest.raises(MergeConflict):
        merge_notes(BASE, ours, theirs)


def test_a_text_with_lf_is_merged_into_a_note_with_crlf_by_its_lines() -> None:
    base = BASE.replace("\n", "\r\n")
    ours = frontmatter.split(BASE).body.replace("one", "ONE")
    head = base.removesuffix(frontmatter.split(base).body)
    merged = merge_notes(base, f"{head}{ours}", base.replace("five", "FIVE"))
    assert merged == base.replace("one", "ONE").replace("five", "FIVE")
    mixed = base.replace("three\r\n", "three\n")
    assert merge_notes(mixed, mixed.replace("one", "1"), mixed.replace("five", "5")) == mixed.replace(
        "one", "1"
    ).replace("five", "5")


def test_equal_changes_are_made_once() -> None:
    both = BASE.replace("two", "2")
    assert merge_notes(BASE, both, both.replace("five", "5")) == both.replace("five", "5")


@pytest.mark.parametrize("closing", ["---", "---\n"])
def test_a_body_added_below_a_last_line_that_is_the_closing_one_stays_below_it(closing: str) -> None:
    merged = merge_notes("---\nk: v\n---", "---\nk: v\n---\nhello\n", f"---\nk: w\n{closing}")
    assert merged == "---\nk: w\n---\nhello\n"


@pytest.mark.parametrize(
    ("base", "other"),
    [
        ("same\n" * 4_000, "x\n" + "same\n" * 4_000 + "y\n"),
        ("".join(f"{n}\n" for n in range(1_000)), "".join(f"{n}\nnew {n}\n" for n in range(1_000))),
    ],
    ids=["equal lines", "a new line after each"],
)
def test_texts_that_would_take_minutes_are_a_conflict(base: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_COMPARISONS", 100_000)
    with pytest.raises(MergeConflict):
        merge_notes(base, other, "z\n" + base + "w\n")


def test_a_long_note_with_changes_at_both_ends_is_merged() -> None:
    lines = "".join(f"{n}\n" for n in range(20_000))
    merged = merge_notes(f"a\n{lines}b\nc\nd\n", f"A\n{lines}b\nC\nd\n", f"a\n{lines}b\nc\nd\nD\n")
    assert merged == f"A\n{lines}b\nC\nd\nD\n"


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n"]), max_size=8).map("".join)


@given(LINES, LINES, LINES)
def test_a_side_that_changed_nothing_gives_way_and_order_does_not_matter(base: str, one: str, other: str) -> None:
    assert merge_notes(base, base, other) == other
    assert merge_notes(base, one, base) == one
    try:
        merged = merge_notes(base, one, other)
    except MergeConflict:
        with pytest.raises(MergeConflict):
            merge_notes(base, other, one)
    else:
        assert merge_notes(base, other, one) == merged
