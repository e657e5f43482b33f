"""The mark of the last look at the clock, for a jump while no service runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.core.clock import DAY, HOUR, SECOND, ClockMark, JumpWatch
from stentor.testing import FixedClock
from tests.requirements import requirement


async def jumps_after(mark: ClockMark, clock: FixedClock) -> list[int]:
    """The jumps that a new process finds at its first look."""
    watch, jumps = JumpWatch(clock.monotonic, mark.read()), list[int]()

    async def follow(since: int, now: int, jump: int) -> None:
        jumps.append(jump)

    await watch.look(watch.begin(), clock.now(), follow)
    return jumps


@requirement("steps.stopped-clocks")
async def test_a_jump_while_no_service_runs_is_found_and_the_time_that_passed_is_none_of_it(tmp_path: Path) -> None:
    mark, clock = ClockMark(tmp_path / "clock.json", "boot 1"), FixedClock()
    mark.write(clock.monotonic(), clock.now())
    clock.advance(days=1)
    assert await jumps_after(mark, clock) == []
    clock.jump(HOUR / SECOND)
    assert await jumps_after(mark, clock) == [HOUR]
    clock.jump(-2 * HOUR / SECOND)
    assert await jumps_after(mark, clock) == []


@requirement("steps.stopped-clocks")
async def test_two_clocks_that_run_apart_by_a_thousandth_have_not_jumped(tmp_path: Path) -> None:
    mark, clock = ClockMark(tmp_path / "clock.json", "boot 1"), FixedClock()
    mark.write(clock.monotonic(), clock.now())
    clock.advance(days=10)
    clock.jump(10 * DAY / SECOND / 1000)
    assert await jumps_after(mark, clock) == []


@requirement("steps.stopped-clocks")
@pytest.mark.parametrize(
    "text", [None, "", "{", '{"boot_id": "boot 1"}', '{"boot_id": "boot 2", "begun": 1, "now": 1}', "\x00" * 9]
)
async def test_without_a_mark_of_the_same_boot_nothing_is_known(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "clock.json"
    if text is not None:
        path.write_text(text)
    clock = FixedClock()
    clock.jump(HOUR / SECOND)
    assert await jumps_after(ClockMark(path, "boot 1"), clock) == []


@requirement("steps.stopped-clocks")
async def test_a_mark_that_cannot_be_written_or_is_from_a_later_time_stops_nothing(tmp_path: Path) -> None:
    ClockMark(tmp_path / "missing" / "clock.json", "boot 1").write(1, 1)
    mark, clock = ClockMark(tmp_path / "clock.json", "boot 1"), FixedClock()
    mark.write(clock.monotonic() + HOUR, clock.now() - DAY)
    assert await jumps_after(mark, clock) == []
