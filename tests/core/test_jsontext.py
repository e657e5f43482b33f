"""JSON that stands in a line of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stentor.core import jsontext


@given(st.text())
def test_a_value_is_one_line_for_every_reader_and_stays_the_same(text: str) -> None:
    line = jsontext.line({"text": text})
    assert len(line.decode().splitlines()) == 1
    assert jsontext.decode(line) == {"text": text}


def test_the_breaks_of_unicode_are_escaped_and_other_letters_are_not() -> None:
    assert jsontext.line("é…\u0085\u2028\u2029").decode() == r'"é…\u0085\u2028\u2029"'
