"""The manifest and the tests agree: every rule that is built has a test, and no test names another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.requirements import load

pytestmark = pytest.mark.together("manifest")  # all read the sources, which takes seconds
TESTS = Path(__file__).parent
SLOW = {
    "dashboard.back",
    "dashboard.clipped-tables",
    "dashboard.flows",
    "dashboard.keyboard",
    "dashboard.live-pressed",
    "dashboard.live-kept",
    "dashboard.live-streams",
    "dashboard.page-weight",
    "dashboard.print",
    "dashboard.saved-views",
    "dashboard.unsent-texts",
    "monitoring.alerts",
    "monitoring.deployed-names-exist",
    "monitoring.scrape",
    "scale.balanced",
    "scale.deploy-systemd",
    "scale.operations-page",
    "scale.rolling-restart",
    "sessions.langgraph",
    "steps.pydantic-ai",
}
"""Rules that `make test-all` alone shows to hold: of pages in a browser, of deployments, and of frameworks."""
STEPS = range(2, 7)
"""The later steps that a rule may be deferred to."""


@cache
def named() -> list[tuple[str, str, bool]]:
    """Every id in a call of `requirement` on a test, with the test's place, and whether the test is slow."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        all_slow = any(_is_slow(node) for node in tree.body if isinstance(node, ast.Assign))
        for node in _defined(tree):
            slow = all_slow or any(map(_is_slow, node.decorator_list))
            where = f"{path.relative_to(TESTS)}::{node.name}"
            found += [(id_, where, slow) for decorator in node.decorator_list for id_ in _ids(decorator)]
    return found


def _defined(scope: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The tests and classes of a module. Nothing inside a function is a test, and most of a module is inside one."""
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from _defined(node)


def _is_slow(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "slow" for part in ast.walk(node))


def _ids(decorator: ast.expr) -> Iterator[str]:
    if not isinstance(decorator, ast.Call):
        return
    called = decorator.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    if name == "requirement":
        for argument in decorator.args:
            assert isinstance(argument, ast.Constant), "ids are written out, so that they can be found"
            yield str(argument.value)


def test_every_rule_that_is_built_has_a_test() -> None:
    shown = {id_ for id_, _, _ in named()}
    missing = [rule.id for rule in load().values() if rule.deferred is None and rule.id not in shown]
    assert missing == []


def test_what_is_left_to_slow_tests_is_listed_here() -> None:
    quick = {id_ for id_, _, slow in named() if not slow}
    assert {id_ for id_, _, _ in named()} - quick == SLOW


def test_no_test_names_a_rule_that_is_unknown_or_not_built_yet() -> None:
    rules = load()
    wrong = [f"{where}: {id_}" for id_, where, _ in named() if id_ not in rules or rules[id_].deferred is not None]
    assert wrong == []


def test_a_rule_is_deferred_to_a_later_step() -> None:
    wrong = [rule.id for rule in load().values() if rule.deferred is not None and rule.deferred not in STEPS]
    assert wrong == []


def test_every_rule_is_a_sentence_with_a_source() -> None:
    for rule in load().values():
        assert rule.text.endswith("."), rule.id
        assert rule.source.split(":")[0] in ("spec", "decision", "convention"), rule.id
