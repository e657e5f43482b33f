"""Values of the page of a task: its journal, and why no agent got it, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.presenters.filters import explain_denial

MAX_BODY_CHARACTERS = 4_000
"""Characters that are shown of what a row opens to."""
MAX_DEPTH = 4
"""Levels that are indented."""
WAITS = ("sleep", "signal", "question", "child")


class JournalRow(msgspec.Struct, frozen=True):
    """A step. `depth` is that of its nesting, `is_open` whether a person can decide it now, `state` a word for it."""

    step: JsonObject
    depth: int
    state: str
    is_open: bool

    @property
    def value(self) -> Any:
        """What it led to: its value or its error; None if that is long or there is none yet."""
        return self.step["error"] or self.step["value"]


def build_journal(steps: Iterable[JsonObject], task_status: str) -> list[JournalRow]:
    """Return the rows in the order in which the steps began, those within a step right after it."""
    by_parent: dict[str, list[JsonObject]] = {}
    listed = list(steps)
    known = {step["key"] for step in listed}
    for step in listed:
        parent = step["key"].rpartition("/")[0]
        by_parent.setdefault(parent if parent in known else "", []).append(step)
    rows: list[JournalRow] = []
    # Not recursive: a key may have hundreds of levels.
    pending = [(step, 0) for step in reversed(by_parent.get("", []))]
    while pending:
        step, depth = pending.pop()
        rows.append(_to_row(step, depth, task_status))
        pending += [(inner, depth + 1) for inner in reversed(by_parent.get(step["key"], []))]
    return rows


def _to_row(step: JsonObject, depth: int, task_status: str) -> JournalRow:
    state, kind = step["state"], step["kind"]
    is_open = state == "started" and (
        (kind == "question" and task_status == "waiting")
        # While the task runs, the agent itself may still report what became of its effect.
        or (kind == "effect" and task_status not in ("executing", "queued"))
    )
    if state == "started":
        state = "unknown" if kind == "effect" and is_open else "waiting" if kind in WAITS else "running"
    if kind == "child" and state == "completed" and isinstance(step["value"], dict):
        state = step["value"]["status"]
    return JournalRow(step, min(depth, MAX_DEPTH), "runs again" if step["superseded"] else state, is_open)


def choose_bodies(lists: Iterable[Sequence[Any]], room: int) -> list[set[int]]:
    """Return the places of the bodies that fit into `room` characters: of the first list first, in each the last ones.

    The details of a row may be long, and are sent with the page: users look most at what a task did last.
    """
    chosen: list[set[int]] = []
    for bodies in lists:
        places: set[int] = set()
        for place in range(len(bodies) - 1, -1, -1):
            room -= min(len(jsontext.dump(bodies[place])), MAX_BODY_CHARACTERS) * 3 // 2  # with quotes escaped
            if room < 0:
                break
            places.add(place)
        chosen.append(places)
    return chosen


def present_denial(task: JsonObject | None) -> JsonObject | None:
    """Return the reasons why a task was not routed; None for a task that was. The error is what routing recorded."""
    error = task["error"] if task and task["outcome_class"] == "routing_failed" else None
    if not isinstance(error, dict):
        return None
    details = error.get("details") or {}
    denied = [{**row, "reason": explain_denial(row.get("code"))} for row in details.get("denied") or []]
    return {
        "message": error.get("message", "No agent could take this task."),
        "reason": explain_denial(details["reason"]) if details.get("reason") else "",
        "denied": denied,
    }
