"""One run of a task in figures, to be compared with another one. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.queries import TaskCalls


class RunSummary(msgspec.Struct, frozen=True):
    """A task with its input, and what its model and tool calls add up to; `cost` in US dollars, None if unknown."""

    task: JsonObject
    task_input: Any
    model_calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    tool_calls: int
    grade: float | None


def summarize_run(
    task: JsonObject, task_input: Any, calls: TaskCalls, events: Iterable[JsonObject], grade: JsonObject | None
) -> RunSummary:
    """Return the figures of a run; `events` is its activity."""
    return RunSummary(
        task,
        task_input,
        calls.calls,
        calls.input_tokens,
        calls.output_tokens,
        calls.dollars,
        tool_calls=sum(event["event_type"] == "tool_called" for event in events),
        grade=grade["grade"] if grade else None,
    )
