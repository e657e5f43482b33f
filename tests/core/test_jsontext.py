"""JSON: what is refused of a caller, and what stands in a line of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest


@given(st.text())
def test_a_value_is_one_line_for_every_reader_and_stays_the_same(text: str) -> None:
    line = jsontext.line({"text": text})
    assert len(line.decode().splitlines()) == 1
    assert jsontext.decode(line) == {"text": text}


def test_the_breaks_of_unicode_are_escaped_and_other_letters_are_not() -> None:
    assert jsontext.line("é…\u0085\u2028\u2029").decode() == r'"é…\u0085\u2028\u2029"'


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


DEEP = f"nested deeper than {jsontext.MAX_DEPTH} levels"
MANY = "arrays and objects"


@pytest.mark.requirement("http.malformed-body-400")
@pytest.mark.parametrize("filling", [b"", b"[]," * 2_000, b'"[\\"[\\\\",' * 2_000, b'"' + b"[" * 300_000 + b'",'])
def test_nesting_is_counted_outside_strings_however_long_the_text_is(filling: bytes) -> None:
    allowed, refused = nested(jsontext.MAX_DEPTH - 1), nested(jsontext.MAX_DEPTH)
    assert jsontext.decode(b"[" + filling + allowed + b"]")
    with pytest.raises(InvalidRequest, match=DEEP):
        jsontext.decode(b"[" + filling + refused + b"]")


@pytest.mark.requirement("http.json-shape")
def test_a_text_of_more_than_200_000_arrays_and_objects_is_refused() -> None:
    assert len(jsontext.decode(b"[" + b"{}," * (jsontext.MAX_CONTAINERS - 2) + b"[]]")) == jsontext.MAX_CONTAINERS - 1
    with pytest.raises(InvalidRequest, match=MANY):
        jsontext.decode(b"[" + b"[]," * jsontext.MAX_CONTAINERS + b"[]]")


@given(st.recursive(st.text('[]{}"\\ab'), lambda inner: st.lists(inner, max_size=4), max_leaves=40))
def test_both_ways_of_counting_agree(value: object) -> None:
    marks = jsontext.encode([value, "\\", value])
    marks = marks.replace(b"\\\\", b"").replace(rb"\"", b"").translate(None, jsontext._OTHERS)
    slow, fast = jsontext._Shape(), jsontext._Shape()
    slow.take(marks)
    half = len(marks) // 2
    for part in (marks[:half], marks[half:]):
        if part:
            fast.take_many(part)
    assert slow == fast
