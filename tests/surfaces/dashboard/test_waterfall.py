"""The waterfall of a task, built from its events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import SECOND, format_iso
from stentor.surfaces.dashboard.presenters.waterfall import Bar, build_subtask_bar, build_waterfall

START = 1_763_600_000 * SECOND
KINDS = [
    *("prompt_received", "approval_requested", "approval_given", "routing_decision", "task_queued", "task_started"),
    *("llm_called", "tool_called", "tool_denied", "memory_read", "agent_logged", "task_requeued"),
    *("task_completed", "task_failed", "learning_updated"),
]


def event(
    kind: str, second: float, *, took_ms: float | None = None, message: str = "", **metadata: Any
) -> dict[str, Any]:
    timestamp = format_iso(START + int(second * SECOND))
    return {
        "event_type": kind,
        "timestamp": timestamp,
        "duration_ms": took_ms,
        "message": message,
        "metadata": {"task_id": "t", **metadata},
    }


def summarize(bars: list[Bar]) -> list[tuple[str, str, float, float | None]]:
    """Return kind, label, and the seconds of start and end of each bar."""
    return [
        (bar.kind, bar.label, (bar.start - START) / SECOND, None if bar.end is None else (bar.end - START) / SECOND)
        for bar in bars
    ]


def test_an_attempt_takes_as_many_whole_milliseconds_as_are_recorded_of_it() -> None:
    events = [event("task_queued", 0), event("task_started", 1), event("task_completed", 1.0449, took_ms=44)]
    bars = build_waterfall(events, [], START + 2 * SECOND)
    assert bars[-1].duration_ms == 44


def test_waits_attempts_and_calls_are_bars_in_order() -> None:
    usage = {"input_tokens": 1_200, "output_tokens": 30}
    events = [
        event("prompt_received", 0),
        event("task_queued", 0),
        event("task_started", 15),
        event("llm_called", 18, took_ms=2_000, model="sea", usage=usage, outcome="ok"),
        event("tool_denied", 19, message="write outside of the folder"),
        event("task_requeued", 20),
        event("task_started", 22),
        event("task_completed", 30),
        event("learning_updated", 31),
    ]
    subtask = {
        "task_id": "s",
        "title": "Check it",
        "status": "failed",
        "created_at": format_iso(START + 23 * SECOND),
        "completed_at": format_iso(START + 25 * SECOND),
    }
    bars = build_waterfall(events, [build_subtask_bar(subtask)], START + 99 * SECOND)
    assert summarize(bars) == [
        ("queue", "In the queue", 0, 15),
        ("attempt", "Attempt 1", 15, 20),
        ("model", "sea, 1,200 tokens in, 30 out", 16, 18),
        ("tool", "write outside of the folder", 19, 19),
        ("queue", "In the queue again", 20, 22),
        ("attempt", "Attempt 2", 22, 30),
        ("subtask", "Check it", 23, 25),
    ]
    assert [bar.label for bar in bars if bar.failed] == ["write outside of the folder", "Check it"]
    assert (bars[0].left, bars[0].width) == (0, 50)
    assert bars[0].duration_ms == 15_000


def test_open_bar_lasts_until_now() -> None:
    events = [event("prompt_received", 0), event("approval_requested", 0)]
    (bar,) = build_waterfall(events, [], START + 60 * SECOND)
    assert (bar.kind, bar.end, bar.duration_ms, bar.width) == ("approval", None, 60_000, 100)


def test_a_subtask_that_outlives_its_parent_lasts_until_now() -> None:
    subtask = Bar("subtask", "Check it", START + SECOND, None, 1)
    events = [event("task_started", 0), event("task_completed", 2)]
    parent, child = build_waterfall(events, [subtask], START + 61 * SECOND)
    assert (child.duration_ms, parent.duration_ms) == (60_000, 2_000)


def test_failed_attempt_is_marked() -> None:
    events = [event("task_queued", 0), event("task_started", 1), event("task_failed", 2)]
    assert [bar.failed for bar in build_waterfall(events, [], START)] == [False, True]


def test_an_attempt_opens_to_how_it_ended_and_a_step_to_its_value() -> None:
    events = [
        event("task_started", 0, epoch=1),
        event("step_completed", 1, key="fetch", name="fetch", epoch=1, took_ms=30),
        event("task_failed", 2, error={"code": "X", "message": "It broke."}),
    ]
    events[1]["metadata"]["kind"] = "step"
    attempt, step = build_waterfall(events, [], START, {("fetch", 1): {"page": "text"}, ("fetch", 2): "later"})
    assert attempt.details == {"task_id": "t", "epoch": 1, "error": {"code": "X", "message": "It broke."}}
    assert (step.label, step.value) == ("fetch", {"page": "text"})


def test_task_without_events_has_no_bars() -> None:
    assert build_waterfall([], [], START) == []


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 1e6), st.none() | st.floats(0, 1e9)), max_size=30),
    st.floats(0, 1e6),
)
def test_bars_of_any_events_are_inside_the_drawing(made: list[tuple[str, float, float | None]], now: float) -> None:
    events = [event(kind, second, took_ms=took_ms) for kind, second, took_ms in sorted(made, key=lambda item: item[1])]
    for bar in build_waterfall(events, [], START + int(now * SECOND)):
        assert 0 <= bar.left <= 100
        assert 0 < bar.width <= 100
        assert bar.left + bar.width <= 100.001
        assert bar.duration_ms >= 0


def test_a_wait_says_what_the_task_waited_for() -> None:
    events = [
        event("task_started", 0),
        event("task_waiting", 1, message="Waits for an answer."),
        event("task_resumed", 5),
    ]
    bars = summarize(build_waterfall(events, [], START + 6 * SECOND))
    assert bars[1] == ("wait", "Waits for an answer", 1.0, 5.0)
