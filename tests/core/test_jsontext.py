"""JSON: what is refused of a caller, and what stands in a line of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, ProviderError
from stentor.domains.llm.formats import openai
from stentor.domains.llm.providers import failures
from stentor_vault import jsontext as vault_jsontext

MANY_EMPTY = b"[" + b"[]," * 200_000 + b"[]]"


@pytest.mark.requirement("http.json-shape")
def test_a_providers_answer_is_held_to_the_same_shape() -> None:
    for answer in (b'{"data":[],"more":' + MANY_EMPTY + b"}", b'{"data":' + b"[" * 200 + b"]" * 200 + b"}"):
        with pytest.raises(ProviderError):
            openai.parse_embeddings(answer, "a-model")
    assert failures.extract_error_message(b'{"error":{"message":"no","more":' + MANY_EMPTY + b"}}", "key") == ""
    assert failures.extract_error_message(b'{"error":{"message":"no"}}', "key") == "no"


@given(st.text())
def test_a_value_is_one_line_for_every_reader_and_stays_the_same(text: str) -> None:
    line = jsontext.encode_line({"text": text})
    assert len(line.decode().splitlines()) == 1
    assert jsontext.decode(line) == {"text": text}


def test_the_breaks_of_unicode_are_escaped_and_other_letters_are_not() -> None:
    assert jsontext.encode_line("é…\u0085\u2028\u2029").decode() == r'"é…\u0085\u2028\u2029"'


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


def processor_time(read: Callable[[bytes], Any], number: bytes) -> float:
    """Seconds that the decoder needs for ten thousand of this number, the least of three tries."""
    body = b'{"data":[{"index":0,"embedding":[' + b",".join([number] * 10_000) + b"]}]}"
    tries = []
    for _ in range(3):
        before = time.process_time()
        read(body)
        tries.append(time.process_time() - before)
    return min(tries)


def embeddings(body: bytes) -> Any:
    return openai.parse_embeddings(body, "a-model")


@pytest.mark.requirement("http.json-numbers")
@pytest.mark.parametrize("read", [jsontext.decode, jsontext.load, embeddings])
@pytest.mark.parametrize("number", [b"1e308", b"2.2250738585072011e-308"])
def test_no_number_takes_many_times_as_long_as_another(read: Callable[[bytes], Any], number: bytes) -> None:
    usual = processor_time(read, b"1.5")
    assert processor_time(read, number) < 15 * usual


@pytest.mark.requirement("http.json-numbers")
@pytest.mark.parametrize("number", [b"1e309", b"-1e309", b"1e999999999"])
def test_a_number_beyond_all_is_refused(number: bytes) -> None:
    with pytest.raises(InvalidRequest, match="out of range"):
        jsontext.decode(b"[" + number + b"]")


@given(st.recursive(st.text('[]{}"\\ab'), lambda inner: st.lists(inner, max_size=4), max_leaves=40))
def test_both_ways_of_counting_agree(value: object) -> None:
    marks = jsontext.encode([value, "\\", value])
    marks = marks.replace(b"\\\\", b"").replace(rb"\"", b"").translate(None, vault_jsontext._OTHERS)
    slow, fast = vault_jsontext._Shape(), vault_jsontext._Shape()
    slow.take(marks)
    half = len(marks) // 2
    for part in (marks[:half], marks[half:]):
        if part:
            fast.take_many(part)
    assert slow == fast


@given(st.text('[]{}"', max_size=60).map(str.encode), st.integers(0, 101))
def test_what_is_found_shallow_without_counting_is_shallow(marks: bytes, around: int) -> None:
    marks = b'{"":[' * (around // 2) + marks + b"]}" * (around // 2)
    if vault_jsontext._is_shallow(marks):
        shape = vault_jsontext._Shape()
        shape.take(marks)
        assert shape.deepest <= jsontext.MAX_DEPTH
        assert (shape.depth, shape.in_string) == (0, False)


@pytest.mark.requirement("http.malformed-body-400")
@given(
    st.recursive(st.text('[]{}"\\ab'), lambda inner: st.lists(inner, max_size=4), max_leaves=40), st.integers(0, 101)
)
def test_values_with_many_brackets_are_read_up_to_the_limit(value: object, around: int) -> None:
    def levels(one: object) -> int:
        return 1 + max(map(levels, one), default=0) if isinstance(one, list) else 0

    value = [value, *[[]] * jsontext.MAX_DEPTH]
    for _ in range(around):
        value = [value]
    if levels(value) <= jsontext.MAX_DEPTH:
        assert jsontext.decode(jsontext.encode(value)) == value
    else:
        with pytest.raises(InvalidRequest, match=DEEP):
            jsontext.decode(jsontext.encode(value))


@pytest.mark.requirement("http.malformed-body-400")
@pytest.mark.parametrize("text", [rb'"\ud800"', rb'{"a": "\uDBFFb"}', rb'["\ud83d\n"]', rb'{"a": "\\\ud83d"}'])
def test_an_unpaired_surrogate_at_the_end_is_not_called_truncated(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="unpaired surrogate"):
        jsontext.decode(text)


@pytest.mark.requirement("http.malformed-body-400")
@pytest.mark.parametrize("text", [rb'"\ud83d', rb'"\ud83d\ude', b'"\\ud83d\\', b'{"a": "x"', rb'["\\ud83d"'])
def test_a_text_that_ends_too_early_is_called_truncated(text: bytes) -> None:
    with pytest.raises(InvalidRequest, match="truncated"):
        jsontext.decode(text)
