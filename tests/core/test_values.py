"""Ids, clock and JSON."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core import ids, jsontext
from stentor.core.clock import SystemClock, format_iso, format_iso_or_none, micros_from_datetime
from stentor.core.db.sql import Sql
from stentor.core.errors import InvalidRequest
from tests.requirements import requirement


@requirement("http.ids-and-timestamps")
def test_ids_are_uuids_of_version_7_that_sort_by_creation() -> None:
    made = [ids.new_id() for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    for text in made[::500]:
        parsed = uuid.UUID(text)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)


def test_ids_of_many_threads_are_all_different() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend(ids.new_id() for _ in range(500))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 4000


def test_an_id_holds_its_time() -> None:
    before = SystemClock().now() // 1000
    stamp = uuid.UUID(ids.new_id()).int >> 80
    assert before - 1 <= stamp <= SystemClock().now() // 1000 + 1000


MOMENTS = st.integers(0, 4_102_444_800_000_000)


@requirement("http.ids-and-timestamps")
@given(MOMENTS)
def test_a_time_as_text_is_utc_and_keeps_every_microsecond(us: int) -> None:
    text = format_iso(us)
    assert text.endswith("Z")
    assert len(text) == 27
    assert micros_from_datetime(datetime.fromisoformat(text)) == us


@given(MOMENTS, MOMENTS)
def test_texts_sort_like_times(one: int, other: int) -> None:
    assert (format_iso(one) < format_iso(other)) == (one < other)


def test_a_time_of_another_zone_is_the_same_moment() -> None:
    there = datetime(2026, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert micros_from_datetime(there) == micros_from_datetime(there.astimezone(UTC))
    assert format_iso_or_none(None) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_values_survive_the_store(value: Any) -> None:
    try:
        text = jsontext.dump(value)
    except UnicodeEncodeError:
        return  # lone surrogates are no text
    assert jsontext.load(text) == value
    assert jsontext.decode(json.dumps(value).encode()) == value


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(-9, 9), max_size=6))
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    assert jsontext.sorted_digest(value) == jsontext.sorted_digest(dict(reversed(value.items())))


@requirement("http.malformed-body-400")
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b"\xff\xfe",
        b"[1,]",
        b'{"a":1}x',
        b"NaN",
        b"[" * 100_000,
        b'{"a":' * 101 + b"1" + b"}" * 101,
        b"1e999",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_a_body_that_is_no_json_is_the_callers_error(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        jsontext.decode(body)


def test_brackets_inside_strings_are_no_depth() -> None:
    text = json.dumps(["[" * 5000 + '"\\{' * 50, "{" * 5000])
    assert jsontext.decode(text.encode()) == json.loads(text)
    deepest = b"[" * jsontext.MAX_DEPTH + b"]" * jsontext.MAX_DEPTH
    assert jsontext.decode(deepest)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_the_callers_error(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        jsontext.decode(body)


def test_named_parameters_are_translated_and_casts_left_alone() -> None:
    sql = Sql("select :a, x::text,\n  '5%' where b = :b_1")
    assert sql.text == "select :a, x::text, '5%' where b = :b_1"
    assert sql.numbered == "select $1, x::text, '5%' where b = $2"
    assert sql.qmark == "select ?, x::text, '5%' where b = ?"
    assert sql.values({"b_1": 2, "a": 1, "more": 3}) == (1, 2)
    with pytest.raises(KeyError):
        sql.values({"a": 1})


def test_a_statement_knows_the_tables_that_it_names() -> None:
    text = "insert into a (x) select x from b join c on b.x = c.x where x in (select x from d)"
    assert Sql(text).tables == {"a", "b", "c", "d"}
    assert Sql("update tasks set x = 1").tables == {"tasks"}
    assert Sql("insert into a (x) values (1) on conflict (x) do update set x = 1").tables == {"a"}
    assert Sql("select x from a for update skip locked").tables == {"a"}
