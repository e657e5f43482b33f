"""The rows of a task's journal."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stentor.surfaces.dashboard.presenters.task_view import build_journal


def step(key: str, kind: str = "step", state: str = "completed", **fields: Any) -> dict[str, Any]:
    return {"key": key, "kind": kind, "state": state, "superseded": False, "value": None, "error": None, **fields}


def test_steps_stand_below_the_one_in_which_they_ran() -> None:
    # A step is recorded when it ends: after those that ran in it.
    rows = build_journal([step("a"), step("b/x/y"), step("b/x"), step("b"), step("gone/z"), step("c")], "completed")
    assert [(row.step["key"], row.depth) for row in rows] == [
        ("a", 0),
        ("b", 0),
        ("b/x", 1),
        ("b/x/y", 2),
        ("gone/z", 0),
        ("c", 0),
    ]


def test_what_a_person_can_decide_is_open() -> None:
    question, effect = step("q", "question", "started"), step("e", "effect", "started")
    states = {}
    for status in ("executing", "queued", "waiting", "failed", "cancelled"):
        states[status] = [(row.state, row.is_open) for row in build_journal([question, effect], status)]
    assert states == {
        "executing": [("waiting", False), ("running", False)],
        "queued": [("waiting", False), ("running", False)],
        "waiting": [("waiting", True), ("unknown", True)],
        "failed": [("waiting", False), ("unknown", True)],
        "cancelled": [("waiting", False), ("unknown", True)],
    }


def test_a_child_that_failed_is_shown_as_failed() -> None:
    ended = step("c", "child", value={"status": "aborted", "result": None, "error": None})
    assert [row.state for row in build_journal([ended], "completed")] == ["aborted"]


@given(st.lists(st.text("ab/", min_size=1, max_size=12), unique=True, max_size=30))
def test_each_step_is_listed_once_whatever_its_key(keys: list[str]) -> None:
    rows = build_journal([step(key) for key in keys], "completed")
    assert sorted(row.step["key"] for row in rows) == sorted(keys)
