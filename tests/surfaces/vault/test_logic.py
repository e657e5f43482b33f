"""JsonLogic: its operators, and limits on the work of a rule."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from stentor_vault.server.search import jsonlogic
from stentor_vault.server.search.jsonlogic import JsonLogicRule, RuleData
from stentor_vault.server.search.jsonlogic_operators import InvalidRule, to_string
from tests.surfaces.vault.conftest import Vault
from tests.surfaces.vault.test_server import assert_error

DATA = {"a": 1, "b": {"c": [10, {"d": "x"}]}, "s": "text", "n": None, "empty": [], "list": [1, 2, 3], "zero": 0}
JSON_LOGIC_TYPE = "application/vnd.olrapi.jsonlogic+json"


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"var": "a"}, 1),
        ({"var": ["b.c.1.d"]}, "x"),
        ({"var": ["none", "other"]}, "other"),
        ({"var": ["zero", 5]}, 0),
        ({"var": "list.length"}, 3),
        ({"var": ""}, DATA),
        ({"==": [1, "1"]}, True),
        ({"===": [1, "1"]}, False),
        ({"==": [1, True]}, True),
        ({"==": [{"var": "n"}, 0]}, False),
        ({"==": [{"var": "none"}, None]}, True),
        ({"!=": [1, 2]}, True),
        ({"!==": [1, 1.0]}, False),
        ({"<": [1, 2, 3]}, True),
        ({"<": [1, 3, 3]}, False),
        ({"<=": [1, "1"]}, True),
        ({">": ["b", "a"]}, True),
        ({">=": [3, "x"]}, False),
        ({"!": [[]]}, True),
        ({"!!": ["0"]}, True),
        ({"and": [1, 0, 5]}, 0),
        ({"or": [0, "", "x", 5]}, "x"),
        ({"if": [False, 1, 0, 2, 3]}, 3),
        ({"?:": [True, "yes", "no"]}, "yes"),
        ({"if": []}, None),
        ({"in": ["ex", {"var": "s"}]}, True),
        ({"in": [2, {"var": "list"}]}, True),
        ({"in": ["2", {"var": "list"}]}, False),
        ({"in": ["x", {"var": "n"}]}, False),
        ({"cat": ["a", 1, None, 2.5, True]}, "a12.5true"),
        ({"substr": ["jsonlogic", 4]}, "logic"),
        ({"substr": ["jsonlogic", -5]}, "logic"),
        ({"substr": ["jsonlogic", 1, 3]}, "son"),
        ({"substr": ["jsonlogic", 4, -2]}, "log"),
        ({"+": [1, "2", 3.5]}, 6.5),
        ({"+": "3.14"}, 3.14),
        ({"*": [2, 3]}, 6),
        ({"-": [5, 2]}, 3),
        ({"-": 5}, -5),
        ({"/": [1, 4]}, 0.25),
        ({"/": [1, 0]}, math.inf),
        ({"%": [-7, 3]}, -1),
        ({"min": [3, 1, 2]}, 1),
        ({"max": [3, "4"]}, 4),
        ({"merge": [[1], 2, [3, 4]]}, [1, 2, 3, 4]),
        ({"missing": ["a", "none", "n"]}, ["none", "n"]),
        ({"missing": {"merge": [["a"], ["none"]]}}, ["none"]),
        ({"missing_some": [1, ["a", "none"]]}, []),
        ({"missing_some": [2, ["a", "none"]]}, ["none"]),
        ({"filter": [{"var": "list"}, {">": [{"var": ""}, 1]}]}, [2, 3]),
        ({"map": [{"var": "list"}, {"*": [{"var": ""}, 2]}]}, [2, 4, 6]),
        ({"reduce": [{"var": "list"}, {"+": [{"var": "current"}, {"var": "accumulator"}]}, 0]}, 6),
        ({"all": [{"var": "list"}, {">": [{"var": ""}, 0]}]}, True),
        ({"all": [{"var": "empty"}, True]}, False),
        ({"none": [{"var": "empty"}, True]}, True),
        ({"some": [{"var": "list"}, {"==": [{"var": ""}, 3]}]}, True),
        ({"log": "x"}, "x"),
        ({"glob": ["*.md", "dir/a.md"]}, True),
        ({"glob": ["a?.md", "ab.md"]}, False),
        ({"glob": ["*.md", "a.mdx"]}, False),
        ({"glob": ["*", {"var": "n"}]}, False),
        ({"regexp": ["^d.r/\\w+\\.md$", "dir/a.md"]}, True),
        ({"regexp": ["x", {"var": "list"}]}, False),
        ([{"var": "a"}, 2], [1, 2]),
        ({"two": 1, "keys": 2}, {"two": 1, "keys": 2}),
        (5, 5),
    ],
)
def test_rule_evaluates_as_jsonlogic_specifies(rule: Any, expected: Any) -> None:
    value = JsonLogicRule(rule).evaluate(DATA)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "rule",
    [
        {"method": ["x", "constructor"]},
        {"none_such": 1},
        {"regexp": ["(", "x"]},
        {"regexp": ["(a)\\1", "aa"]},
        {"regexp": ["a(?=b)", "ab"]},
        {"regexp": ["x" * 501, "x"]},
        {"regexp": ["((a{100}){100}){100}", "x"]},
        {"missing_some": ["x", "y"]},
    ],
)
def test_invalid_rule_raises_an_error(rule: Any) -> None:
    with pytest.raises(InvalidRule):
        JsonLogicRule(rule).evaluate(DATA)


@pytest.mark.requirement("vault.json-logic-bounded")
def test_patterns_do_not_backtrack_exponentially() -> None:
    text = "a" * 50_000 + "b"
    for pattern in ("(a+)+$", "(a|a)*c", "(a*)*c", "(.*)(.*)(.*)(.*)x"):
        assert JsonLogicRule({"regexp": [pattern, text]}).evaluate({}) is False
    assert JsonLogicRule({"glob": ["*a" * 80 + "*c", text]}).evaluate({}) is False


@pytest.mark.requirement("vault.json-logic-bounded")
def test_rule_above_the_work_limits_raises_an_error() -> None:
    doubled = {"cat": [{"var": "accumulator"}, {"var": "accumulator"}]}
    with pytest.raises(InvalidRule, match="characters"):
        JsonLogicRule({"reduce": [{"var": "l"}, doubled, "xx"]}).evaluate({"l": list(range(100))})
    merged = {"merge": [{"var": "accumulator"}, {"var": "accumulator"}]}
    with pytest.raises(InvalidRule, match="items"):
        JsonLogicRule({"reduce": [{"var": "l"}, merged, [1]]}).evaluate({"l": list(range(100))})
    nested: Any = 1
    for _ in range(4):
        nested = {"map": [list(range(100)), nested]}
    with pytest.raises(InvalidRule, match="work"):
        JsonLogicRule(nested, max_steps=10_000).evaluate({})
    assert JsonLogicRule({"reduce": [{"var": "l"}, {"*": [{"var": "accumulator"}, 1e9]}, 1]}).evaluate(
        {"l": list(range(100))}
    )


class Data(RuleData):
    """A note with these fields."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def to_dict(self) -> dict[str, Any]:
        return self._fields


ACCUMULATOR = {"var": "accumulator"}


@pytest.mark.requirement("vault.json-logic-bounded")
@pytest.mark.parametrize(
    ("length", "step", "reason"),
    [(30, [ACCUMULATOR, ACCUMULATOR], "work"), (1000, [ACCUMULATOR], "deeper"), (1000, {"var": ""}, "deeper")],
)
def test_a_result_that_multiplies_or_nests_a_list_raises_an_error(length: int, step: Any, reason: str) -> None:
    rule = {"reduce": [[0] * length, step, "text"]}
    with pytest.raises(InvalidRule, match=reason):
        JsonLogicRule(rule, max_steps=10_000).find_matches([Data(path="a.md")])


@pytest.mark.requirement("vault.json-logic-bounded")
@pytest.mark.parametrize(
    ("length", "step", "reason"), [(30, [ACCUMULATOR, ACCUMULATOR], "characters"), (1000, [ACCUMULATOR], "deeper")]
)
def test_the_text_of_a_list_that_is_multiplied_or_nested_raises_an_error(length: int, step: Any, reason: str) -> None:
    with pytest.raises(InvalidRule, match=reason):
        JsonLogicRule({"cat": [{"reduce": [[0] * length, step, "text"]}]}).evaluate({})


@pytest.mark.requirement("vault.json-logic-bounded")
def test_results_are_limited_together_and_what_is_computed_for_each_note(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [Data(path=f"{number}.md", content="x" * 1000) for number in range(10)]
    monkeypatch.setattr(jsonlogic, "MAX_RESULT_LENGTH", 10_000)
    assert len(JsonLogicRule({"var": "content"}).find_matches(notes)) == 10
    with pytest.raises(InvalidRule, match="too long"):
        JsonLogicRule([{"var": "content"}, {"var": "path"}]).find_matches(notes)
    monkeypatch.setattr(jsonlogic, "MAX_COMPUTED", 3_000)
    thrice: Any = {"!!": [[{"cat": [{"var": "content"}]}] * 3]}
    assert len(JsonLogicRule(thrice).find_matches(notes)) == 10
    with pytest.raises(InvalidRule, match="too much text"):
        JsonLogicRule({"and": [thrice, {"cat": ["x"]}]}).find_matches(notes)


@pytest.mark.parametrize(
    ("value", "text"), [([], ""), ([[], 1], ",1"), ([1, [2, [None, "x"]], {}], "1,2,,x,[object Object]")]
)
def test_the_text_of_a_list_is_the_one_of_javascript(value: Any, text: str) -> None:
    assert to_string(value) == text


def send_rule(vault: Vault, rule: Any, content_type: str = JSON_LOGIC_TYPE) -> httpx.Response:
    return vault.http.post(
        "/search/", content=json.dumps(rule), headers={"Content-Type": content_type} if content_type else {}
    )


def search(vault: Vault, rule: Any) -> dict[str, Any]:
    response = send_rule(vault, rule)
    assert response.status_code == 200, response.text
    return {row["filename"]: row["result"] for row in response.json()}


@pytest.mark.requirement("vault.json-logic")
def test_search_returns_the_notes_that_match_a_rule(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("a.md", "---\nstatus: done\ntags: [x/y]\nrank: 3\n---\nHello [[b]]\n")
    vault.put("dir/b.md", "#inline [[nobody]]")
    vault.put("c.txt", "no note")
    assert search(vault, {"==": [{"var": "frontmatter.status"}, "done"]}) == {"a.md": True}
    assert search(vault, {"var": "frontmatter.rank"}) == {"a.md": 3}
    assert search(vault, {"in": ["inline", {"var": "tags"}]}) == {"dir/b.md": True}
    assert search(vault, {"glob": ["dir/*", {"var": "path"}]}) == {"dir/b.md": True}
    assert search(vault, {"regexp": ["^---[^$]*Hello", {"var": "content"}]}) == {"a.md": True}
    assert search(vault, {">": [{"var": "stat.size"}, 40]}) == {"a.md": True}
    assert search(vault, {"var": "backlinks"}) == {"dir/b.md": ["a.md"]}
    assert search(vault, {"var": "links"}) == {"a.md": ["dir/b.md"]}
    assert search(vault, {"var": "unresolvedLinks"}) == {"dir/b.md": ["nobody"]}
    assert set(search(vault, {"var": ""})["a.md"]) >= {"path", "content", "frontmatter", "tags", "stat"}
    assert search(vault, {"var": "none"}) == {}
    assert search(vault, {"/": [1, 0]}) == {"a.md": None, "dir/b.md": None}


@pytest.mark.requirement("vault.json-logic")
def test_invalid_search_returns_its_error_code(vault: Vault) -> None:
    vault.put("a.md", "x")
    assert_error(send_rule(vault, {"none_such": []}), 40070)
    assert_error(send_rule(vault, {"regexp": ["(", {"var": "path"}]}), 40070)
    assert_error(send_rule(vault, {}, ""), 40011)
    assert_error(send_rule(vault, {}, "application/json"), 40012)
    response = send_rule(vault, "TABLE x", "application/vnd.olrapi.dataview.dql+txt")
    assert_error(response, 40012)
    assert "Dataview" in response.json()["message"]
    assert_error(vault.http.post("/search/", content="{", headers={"Content-Type": JSON_LOGIC_TYPE}), 40015)
    assert_error(
        vault.http.post("/search/", content="[" * 200 + "]" * 200, headers={"Content-Type": JSON_LOGIC_TYPE}), 40015
    )
