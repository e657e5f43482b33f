"""What differs between two values, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.formats.json_diff import MAX_LINES, DiffLine, diff_lines, is_same, tree_lines


def test_items_of_a_list_are_gone_come_or_the_same() -> None:
    assert diff_lines(["a", "b"], ["b", "c"]) == [("-", '"a"'), (" ", '"b"'), ("+", '"c"')]
    assert diff_lines(None, ["a"]) == [("+", '"a"')]
    assert diff_lines("x", None) == [("-", '"x"')]
    assert diff_lines([1], [1]) == []


def test_lines_that_are_the_same_are_left_out_but_for_three() -> None:
    old = [str(n) for n in range(20)]
    found = diff_lines(old, [*old[:10], "new", *old[11:]])
    assert found[0] == ("@", "7 unchanged lines")
    assert found[-1] == ("@", "6 unchanged lines")
    assert [sign for sign, _ in found[1:-1]] == [" "] * 3 + ["-", "+"] + [" "] * 3


def test_a_member_of_an_object_is_a_line_of_its_own_when_asked_for() -> None:
    before = [{"name": "files", "paths": ["a"]}]
    after = [{"name": "files", "paths": ["a", "b"]}]
    assert diff_lines(before, after, deep=True)[-1] == ("+", '    - "b"')
    assert diff_lines(before, after)[0] == ("-", '{"name": "files", "paths": ["a"]}')
    assert tree_lines({"a": {}, "b": [[1], []], "c": None}) == ["a: {}", "b:", "  - - 1", "  - []", "c: null"]


def test_a_text_is_compared_by_its_lines() -> None:
    assert diff_lines("one\ntwo\n", "one\nthree\n") == [(" ", "one"), ("-", "two"), ("+", "three"), (" ", "")]


def test_characters_that_turn_the_order_of_others_are_shown_by_their_code() -> None:
    assert diff_lines(None, "safe\u202egnp\n\u200b") == [("+", "safe\\u202egnp"), ("+", "\\u200b")]
    assert tree_lines({"\u202e": 1}) == ['"\\u202e": 1']


def test_very_many_lines_are_not_compared() -> None:
    found = diff_lines(["a"] * MAX_LINES, ["a"])
    assert found == [("-", '"a"')] * MAX_LINES + [("+", '"a"')]


@pytest.mark.parametrize("char", "\u034f\u115f\u1160\u17b4\u180b\u2800\u3164\ufe00\ufe0f\uffa0\U000e0100\U000e01ef")
def test_a_printable_character_that_shows_nothing_is_shown_by_its_code(char: str) -> None:
    code = char.encode("unicode_escape").decode()
    assert diff_lines("be kind", f"be kind{char}") == [("-", '"be kind"'), ("+", f'"be kind{code}"')]


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("a", ["a"], [("-", '"a"'), ("+", '["a"]')]),
        (None, [], [("+", "[]")]),
        ([{"a": 1}], [{" a": 1}], [("-", "- a: 1"), ("+", '- " a": 1')]),
        ({"x": {"- a": 1}}, {"x": [{"a": 1}]}, [(" ", "x:"), ("-", '  "- a": 1'), ("+", "  - a: 1")]),
        ({"a: 1": {"b": 2}}, {"a": 1, "b": 2}, [("-", '"a: 1":'), ("-", "  b: 2"), ("+", "a: 1"), ("+", "b: 2")]),
    ],
)
def test_different_values_never_have_the_same_lines(before: Any, after: Any, lines: list[DiffLine]) -> None:
    assert diff_lines(before, after, deep=True) == lines


@pytest.mark.parametrize(
    ("before", "after"),
    [(1, True), (0, False), ([0], [False]), ({"a": [1]}, {"a": [True]}), (1, 1.0), ([{"a": 0.0}], [{"a": -0.0}])],
)
def test_equal_values_that_json_writes_in_different_ways_are_a_difference(before: Any, after: Any) -> None:
    assert not is_same(before, after)
    assert diff_lines(before, after)


def test_the_order_of_the_members_of_an_object_is_no_difference() -> None:
    before, after = (
        {"a": [1, 10**30], "b": {"c": "\ud800", "d": None}},
        {"b": {"d": None, "c": "\ud800"}, "a": [1, 10**30]},
    )
    assert is_same(before, after)


def test_a_change_far_into_a_long_line_is_shown() -> None:
    assert diff_lines("a" * 25 + "x", "a" * 25 + "y", width=10) == [
        (" ", '"' + "a" * 9),
        (" ", "… " + "a" * 10),
        ("-", '… aaaaaax"'),
        ("+", '… aaaaaay"'),
    ]
