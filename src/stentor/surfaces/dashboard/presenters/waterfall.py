"""The waterfall of a task: what it waited for, its attempts, and what happened in them, each as a bar in time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from stentor.core.clock import format_iso, micros_from_datetime
from stentor.core.jsontext import JsonObject

BarKind = Literal["queue", "approval", "wait", "attempt", "step", "model", "tool", "memory", "subtask", "log"]
POINT_EVENTS: Mapping[str, BarKind] = {
    "step_completed": "step",
    "step_failed": "step",
    "llm_called": "model",
    "tool_called": "tool",
    "tool_denied": "tool",
    "memory_read": "memory",
    "memory_written": "memory",
    "agent_logged": "log",
}
"""Events within an attempt; one with a duration is a bar that ends at the event."""
WAITS: Mapping[str, tuple[BarKind, str]] = {
    "approval_requested": ("approval", "Approval"),
    "task_queued": ("queue", "In the queue"),
    "task_requeued": ("queue", "In the queue again"),
    "task_waiting": ("wait", "Waits"),
    "task_resumed": ("queue", "In the queue again"),
}
STEP_KINDS = ("step", "effect")
END_EVENTS = frozenset(("task_completed", "task_failed", "task_aborted", "task_cancelled"))
MIN_WIDTH = 0.6
"""Width of the shortest bar in percent, so that it is visible."""


class Bar(msgspec.Struct):
    """A bar: times in microseconds, `end` None while it lasts. `failed` marks a denial or a failure.

    `left` and `width` are percent of the whole. Opening the bar shows `value` and `details`; `task_id` is the subtask
    it links to.
    """

    kind: BarKind
    label: str
    start: int
    end: int | None
    depth: int = 0
    failed: bool = False
    details: JsonObject = {}
    value: Any = None
    task_id: str | None = None
    left: float = 0.0
    width: float = 0.0
    duration_ms: float = 0.0

    @property
    def started_at(self) -> str:
        return format_iso(self.start)


StepValues = Mapping[tuple[str, int], Any]
"""The values of steps by key and attempt; their errors are in the events."""


def build_waterfall(
    events: Iterable[JsonObject], subtasks: Iterable[Bar], now: int, values: StepValues | None = None
) -> list[Bar]:
    """Return the bars, oldest first. `events` are the task's activity, oldest first; `now` in microseconds."""
    bars: list[Bar] = []
    current: Bar | None = None
    attempts = 0
    begin = end = None
    for event in events:
        kind, at = event["event_type"], _micros(event["timestamp"])
        begin = at if begin is None else begin
        if (point := POINT_EVENTS.get(kind)) and not _is_end_of_wait(event):
            bars.append(_point(point, event, at, values or {}))
            continue
        if kind in WAITS or kind in END_EVENTS or kind in ("task_started", "approval_given"):
            _close(current, at, event, failed=kind in ("task_failed", "task_aborted"))
            current, end = None, at
        if kind in WAITS:
            wait, label = WAITS[kind]
            # The event names what the task waits for: "Waits for an answer."
            label = (str(event["message"]).rstrip(".") if wait == "wait" else "") or label
            current = Bar(wait, label, at, None)
        elif kind == "task_started":
            # The epoch counts attempts too, and knows those whose events are left out.
            attempts = max(attempts + 1, event["metadata"].get("epoch", 0))
            current = Bar("attempt", f"Attempt {attempts}", at, None, details=event["metadata"])
        # Bars are added when they begin, and `_close` sets their end in place.
        if current is not None and current not in bars:
            bars.append(current)
    bars += subtasks
    is_open = any(bar.end is None for bar in bars)  # a subtask may outlive its parent
    return _lay_out(sorted(bars, key=lambda bar: bar.start), begin or now, now if is_open else end or now)


def build_subtask_bar(task: JsonObject) -> Bar:
    """Return the bar of a subtask, from its row in a list."""
    end = None if task["completed_at"] is None else _micros(task["completed_at"])
    failed = task["status"] in ("failed", "aborted")
    return Bar("subtask", task["title"], _micros(task["created_at"]), end, 1, failed, task_id=task["task_id"])


def _point(kind: BarKind, event: JsonObject, at: int, values: StepValues) -> Bar:
    metadata = event["metadata"]
    label, value = str(event["message"]), None
    if kind == "model":
        usage = metadata.get("usage") if isinstance(metadata.get("usage"), dict) else {}
        tokens = f", {usage.get('input_tokens', 0):,} tokens in, {usage.get('output_tokens', 0):,} out" if usage else ""
        label = f"{metadata.get('model', 'model')}{tokens}"
    # Events are recorded when something ends.
    start = at - int((event["duration_ms"] or 0) * 1000)
    if kind == "step":
        label = str(metadata.get("name") or metadata.get("key", label))
        value = values.get((str(metadata.get("key")), metadata.get("epoch", 0)))
    failed = event["event_type"] in ("tool_denied", "step_failed") or metadata.get("outcome", "ok") not in (
        "ok",
        "success",
    )
    return Bar(kind, label, start, at, 1, failed, metadata, value)


def _is_end_of_wait(event: JsonObject) -> bool:
    """Return whether the event ends a wait, which has a bar of its own."""
    return event["event_type"] in ("step_completed", "step_failed") and event["metadata"].get("kind") not in STEP_KINDS


def _close(bar: Bar | None, at: int, event: JsonObject, *, failed: bool) -> None:
    if bar is not None:
        bar.end, bar.failed = at, failed
        if bar.kind == "attempt":  # expanding it also shows how it ended: its outcome, its error
            bar.details = {**bar.details, **event["metadata"]}


def _lay_out(bars: list[Bar], begin: int, end: int) -> list[Bar]:
    """Set the places of the bars. Those that begin before the task or end after it widen the whole."""
    begin = min([begin, *(bar.start for bar in bars)])
    end = max([end, begin + 1, *(bar.end or bar.start for bar in bars)])  # the clock of another process may be ahead
    for bar in bars:
        stop = end if bar.end is None else bar.end
        took = stop - bar.start
        # Recorded durations are truncated to whole milliseconds, so a duration is the same number on the whole page.
        bar.duration_ms = took // 1000 if took >= 1000 else took / 1000
        bar.width = max(MIN_WIDTH, 100 * (stop - bar.start) / (end - begin))
        bar.left = min(100 * (bar.start - begin) / (end - begin), 100 - bar.width)
    return bars


def _micros(timestamp: str) -> int:
    return micros_from_datetime(datetime.fromisoformat(timestamp))
