"""Frontmatter: read as YAML 1.2, edited without touching another byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core import jsontext
from stentor_vault.notes import frontmatter, yaml_writer
from stentor_vault.notes.frontmatter import InvalidFrontmatter

NOTE = """---
title: Hi  # a comment
on: push
number: 0123
day: 2026-11-20
tags:
  - a   # first
  - b

# about the text
text: |
  line 1

  line 2

flow: {a: 1, b: [x, y]}
empty:
yes: yes
---
# Body
---
not: frontmatter
"""


def test_it_is_read_as_yaml_1_2_and_times_stay_texts() -> None:
    assert frontmatter.read(NOTE) == {
        "title": "Hi",
        "on": "push",
        "number": 123,
        "day": "2026-11-20",
        "tags": ["a", "b"],
        "text": "line 1\n\nline 2\n",
        "flow": {"a": 1, "b": ["x", "y"]},
        "empty": None,
        "yes": "yes",
    }


def test_a_sign_in_two_escapes_as_json_writes_it_is_one_sign() -> None:
    assert frontmatter.read('---\na: "\\ud83d\\ude00"\n---\n') == {"a": "😀"}


@pytest.mark.parametrize("text", ["1234567890123456789", "-9223372036854775809", "+" + "9" * 4_000, "0x" + "f" * 1_998])
def test_an_integer_is_a_number_however_long_it_is(text: str) -> None:
    assert frontmatter.read(f"---\nid: {text}\n---\n") == {"id": int(text, 0)}
    assert jsontext.load(jsontext.dump(int(text, 0))) == int(text, 0)


@pytest.mark.parametrize("text", ["9" * 4_001, "0x" + "f" * 60_000])
def test_one_that_no_json_decoder_takes_stays_a_text(text: str) -> None:
    assert frontmatter.read(f"---\nid: {text}\n---\n") == {"id": text}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_an_edit_changes_the_lines_of_its_key_and_nothing_else(newline: str, bom: str) -> None:
    note = bom + NOTE.replace("\n", newline)
    edited = frontmatter.edit(note, {"title": "Ho", "tags": ["c"], "new": 1}, frozenset({"empty", "text"}))
    expected = (
        NOTE.replace("title: Hi  # a comment\n", "title: Ho\n")
        .replace("  - a   # first\n  - b\n", "  - c\n")
        .replace("text: |\n  line 1\n\n  line 2\n", "")
        .replace("empty:\n", "")
        .replace("yes: yes\n", "yes: yes\nnew: 1\n")
    )
    assert edited == bom + expected.replace("\n", newline)


def test_a_value_that_is_there_already_changes_no_byte() -> None:
    assert frontmatter.edit(NOTE, {"number": 123, "tags": ["a", "b"], "empty": None}, frozenset({"none"})) == NOTE


def test_a_note_without_frontmatter_gets_one() -> None:
    assert frontmatter.edit("body\r\n", {"a": 1}) == "---\r\na: 1\r\n---\r\nbody\r\n"
    assert frontmatter.edit("", {"a": 1}) == "---\na: 1\n---\n"
    assert frontmatter.edit("---\n---\nbody", {"a": 1}) == "---\na: 1\n---\nbody"


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("a: &x [1]\nb: *x\n", "anchors"),
        ("a: &x 1\n", "anchors"),
        ("a: [&x 1, &x 2]\n", "anchors"),
        ("b: *x\n", "alias"),
        ("a: 1\na: 2\n", "duplicate"),
        ("- a\n", "not a mapping"),
        ("a: [\n", "line"),
        ("\ta: 1\n", "line 1"),
        ("a: " + "[" * 30 + "]" * 30 + "\n", "deeper"),
        ("a: " + "[" * 5_000 + "\n", "deeper"),
        ("? [x]\n: 1\n", "not a scalar"),
        ("a: \x01\n", ""),
        ("x: " + "y" * 70_000 + "\n", "more than"),
        ("a: b: c\n", "line"),
        ('a: "x\\ud83d"\n', "unpaired surrogate in line 1"),
        ('"\\ude00": 1\n', "unpaired surrogate"),
    ],
)
def test_what_cannot_be_read_is_told_and_cannot_be_edited(block: str, reason: str) -> None:
    note = f"---\n{block}---\nbody"
    for call in (lambda: frontmatter.read(note), lambda: frontmatter.edit(note, {"k": 1})):
        with pytest.raises(InvalidFrontmatter) as error:
            call()
        assert reason in error.value.message
    assert frontmatter.split(note).body == "body"


@pytest.mark.parametrize("block", ["\nProse without keys.\n", "- a\n", "'a: b'\n"])
def test_a_block_without_keys_is_told_from_one_that_is_broken(block: str) -> None:
    for text, keyless in ((block, True), ("a: [\n", False)):
        with pytest.raises(InvalidFrontmatter) as error:
            frontmatter.read(f"---\n{text}---\nbody")
        assert error.value.is_not_mapping is keyless


@pytest.mark.parametrize("note", ["---\na: 1\nnever closed", "-- -\n", "text\n---\na: 1\n---\n", "----\na: 1\n----\n"])
def test_what_is_no_block_is_body(note: str) -> None:
    assert frontmatter.split(note).body == note
    assert frontmatter.read(note) == {}


def test_a_flow_mapping_is_read_and_its_edit_refused_rather_than_guessed() -> None:
    note = "---\n{a: 1, b: 2}\n---\n"
    assert frontmatter.read(note) == {"a": 1, "b": 2}
    with pytest.raises(InvalidFrontmatter, match="cannot be edited key by key"):
        frontmatter.edit(note, {"a": 2})


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MAPS: Any = st.dictionaries(TEXTS, VALUES, max_size=4)


@given(MAPS, MAPS, st.sampled_from(["\n", "\r\n"]))
def test_whatever_is_written_is_read_again(before: dict[str, Any], changes: dict[str, Any], newline: str) -> None:
    note = frontmatter.edit(f"body{newline}", before)
    edited = frontmatter.edit(note, changes)
    assert frontmatter.read(edited) == before | changes
    assert frontmatter.split(edited).body == f"body{newline}"


@given(st.text(max_size=60))
def test_any_text_is_split_without_loss_and_read_or_refused(text: str) -> None:
    for note in (text, f"---\n{text}\n---\nbody"):
        assert frontmatter.split(note).text == note
        try:
            frontmatter.read(note)
        except InvalidFrontmatter:
            continue


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_value_that_is_no_text_is_written_as_in_json(value: Any) -> None:
    assert yaml_writer.dump_entry("key", value, "\n") == f"key: {json.dumps(value)}\n"
