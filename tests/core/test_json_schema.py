"""Schemas and values that would hold up the service, or make it fetch something, do not."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.errors import InvalidRequest
from stentor.core.validation.json_schema import check_schema, check_value
from tests.requirements import requirement


@requirement("execution.llm-schema")
@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "text"}, "not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:1/x"}, "points outside the schema"),
        ({"properties": {"a": {"items": [{"$ref": "file:///etc/passwd"}]}}}, ""),
        ({"pattern": "(?=a)b"}, "is not supported"),
        ({"pattern": r"(a)\1"}, "is not supported"),
        ({"pattern": "("}, ""),
        ({"patternProperties": {"^(a+)+$": {}}}, "patternProperties"),
        ({"$dynamicRef": "other.json#x"}, "points outside the schema"),
        ({"$ref": "#/$defs/none"}, "cannot be resolved"),
        ({"$defs": {"a": {"allOf": [{}]}}, "$ref": "#/$defs/a/allOf/1"}, "cannot be resolved"),
        ({"allOf": [{}] * 40_000}, "more than"),
    ],
)
def test_what_cannot_be_applied_is_refused(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_schema(schema)
    assert problem in refused.value.message


def test_data_in_a_schema_is_no_schema() -> None:
    schema = {
        "const": {"$ref": "x", "pattern": "("},
        "$defs": {"a/b": {"enum": [{"$ref": "y"}]}},
        "anyOf": [{"$ref": "#/$defs/a~1b"}],
    }
    check_schema(schema)


def test_a_deep_schema_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3_000):
        deep = {"not": deep}
    with pytest.raises(InvalidRequest):
        check_schema(deep)


@requirement("execution.llm-schema")
def test_a_pattern_takes_time_in_proportion_to_the_text() -> None:
    schema = {"pattern": "^(a+)+$"}
    check_schema(schema)
    check_value("a" * 50_000, schema)
    with pytest.raises(InvalidRequest, match="does not match"):
        check_value("a" * 50_000 + "!", schema)


@requirement("execution.llm-schema")
def test_many_items_are_compared_in_one_pass() -> None:
    items = [{"a": n} for n in range(30_000)]
    check_value(items, {"uniqueItems": True})
    with pytest.raises(InvalidRequest, match="not unique"):
        check_value([*items, {"a": 7}], {"uniqueItems": True})
    check_value([1, True, "1", None, [1]], {"uniqueItems": True})


@requirement("execution.llm-schema")
@pytest.mark.parametrize("word", ["allOf", "anyOf"])
def test_references_that_double_are_given_up(word: str) -> None:
    defined: dict[str, Any] = {f"a{n}": {word: [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)}
    schema = {"$ref": "#/$defs/a0", "$defs": defined | {"a60": {"type": "string"}}}
    check_schema(schema)
    with pytest.raises(InvalidRequest, match="more than 10,000 references"):
        check_value(1, schema)


def test_a_schema_that_refers_to_itself_is_applied() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "n": {"type": "integer"}}, "required": ["n"]}
    check_schema(tree)
    check_value({"n": 1, "left": {"n": 2, "left": {"n": 3}}}, tree)
    with pytest.raises(InvalidRequest, match=r"\$\.left\.left: 'n' is a required property"):
        check_value({"n": 1, "left": {"n": 2, "left": {}}}, tree)
    endless = {"$ref": "#"}
    check_schema(endless)
    with pytest.raises(InvalidRequest):
        check_value(1, endless)
