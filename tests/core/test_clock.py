"""Times as people read them, and the clock that jumps."""

from __future__ import annotations

from datetime import datetime

import pytest

from stentor.core.clock import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    JumpWatch,
    format_duration,
    format_iso,
    format_relative_time,
    micros_from_datetime,
)
from stentor.testing import FixedClock


@pytest.mark.parametrize(
    ("distance", "text"),
    [
        (0, "just now"),
        (-SECOND / 2, "just now"),
        (5 * SECOND, "5 s ago"),
        (3 * DAY + 23 * HOUR, "3 d ago"),
        (-(2 * DAY + 23 * HOUR + 59 * MINUTE), "in 2 d 23 h"),
        (-3 * DAY, "in 3 d"),
        (-(3 * DAY + 5 * MINUTE), "in 3 d"),
        (-(4 * MINUTE + 30 * SECOND), "in 4 min 30 s"),
        (-(12 * HOUR + 30 * MINUTE), "in 12 h"),
        (-9 * SECOND, "in 9 s"),
    ],
)
def test_a_time_is_told_by_its_distance_and_a_near_deadline_with_two_units(distance: float, text: str) -> None:
    assert format_relative_time(distance / SECOND) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "< 1 ms"),
        (0.0004, "< 1 ms"),
        (0.42, "420 µs"),
        (12, "12 ms"),
        (3_400, "3.4 s"),
        (320_000, "5 min 20 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
        (11_100_000, "3 h 5 min"),
    ],
)
def test_a_duration_has_at_most_two_units_and_none_that_is_zero(ms: float, text: str) -> None:
    assert format_duration(ms) == text


async def test_an_answer_that_is_late_or_a_process_that_was_stopped_is_no_jump_of_the_clock() -> None:
    clock = FixedClock()
    watch, jumps = JumpWatch(clock.monotonic), list[int]()

    async def follow(since: int, now: int, jump: int) -> None:
        jumps.append(jump)
        if len(jumps) == 1:
            raise ConnectionError

    async def look(before: float = 0, after: float = 0) -> None:
        begun = watch.begin()
        clock.advance(seconds=before)
        now = clock.now()
        clock.advance(seconds=after)
        await watch.look(begun, now, follow)

    for before, after in ((0, 0), (60, 0), (0, 60), (0, 0), (60, 60), (0, 0)):
        await look(before, after)
        clock.jump(-HOUR / SECOND)  # set back: for another watch
    assert jumps == []
    clock.jump(2 * HOUR / SECOND)
    with pytest.raises(ConnectionError):
        await look()
    clock.advance(seconds=1)
    await look()
    await look()
    assert jumps == [HOUR, HOUR]


def test_a_time_that_is_read_can_be_written_and_another_one_is_refused() -> None:
    for text in ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"):
        assert format_iso(micros_from_datetime(datetime.fromisoformat(text))) == text
    for text in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        with pytest.raises(OverflowError):
            micros_from_datetime(datetime.fromisoformat(text))
