"""What reading a long journal costs a worker."""

from __future__ import annotations

import sys
from typing import Any

from stentor_worker.journal import Journal


class RecordedSteps:
    """Stands for the client of the service: the journal has so many steps, each with one within."""

    def __init__(self, count: int) -> None:
        keys = [key for n in range(count) for key in (f"order {n}/pay", f"order {n}")]
        self._steps = [step(key, 0 if key.endswith("/pay") else n // 2) for n, key in enumerate(keys)]

    def call(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"steps": self._steps, "next_cursor": None}


def step(key: str, position: int) -> dict[str, Any]:
    fields = {"state": "completed", "kind": "step", "epoch": 1, "superseded": False, "position": position}
    return {"key": key, "name": key.rpartition("/")[2], **fields}


def count_calls(steps: int) -> int:
    """Return how many functions of Python and of C are called to find the steps again."""
    journal = Journal(RecordedSteps(steps), "trip", 2, lambda: None)  # pyrefly: ignore[bad-argument-type]
    journal.open_here()
    calls = 0

    def note(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        for n in range(steps):
            journal.find(journal.enter(f"order {n}", "step"))
        journal.require_complete()
    finally:
        sys.setprofile(None)
    return calls


def test_steps_with_steps_within_are_found_in_a_time_in_proportion_to_their_number() -> None:
    assert count_calls(800) < 6 * count_calls(200)
