"""From which time on the next read of other processes' changes must read."""

from __future__ import annotations

from stentor.core.clock import SECOND
from stentor.core.db.late_commits import LONGEST_US, CommitHorizon

START = 1_000_000 * SECOND


def test_without_a_running_transaction_nothing_older_can_become_visible() -> None:
    horizon = CommitHorizon()
    assert horizon.advance(START, 100, 100) == START
    assert horizon.advance(START + SECOND, 100, 100) == START + SECOND


def test_a_running_transaction_holds_the_horizon_until_it_is_visible() -> None:
    horizon = CommitHorizon()
    horizon.advance(START, 100, 100)
    # 100 began after the first read, and still runs at the next ones.
    assert horizon.advance(START + SECOND, 100, 105) == START
    assert horizon.advance(START + 60 * SECOND, 100, 110) == START
    # It has ended, 107 not yet: that one may have begun right after the second read.
    assert horizon.advance(START + 61 * SECOND, 107, 120) == START + SECOND
    assert horizon.advance(START + 62 * SECOND, 121, 121) == START + 62 * SECOND


def test_a_transaction_that_runs_for_a_day_does_not_hold_it_for_as_long() -> None:
    horizon = CommitHorizon()
    assert horizon.advance(START, 5, 100) == START - LONGEST_US
    for minute in range(1, 60):
        now = START + minute * 60 * SECOND
        assert horizon.advance(now, 5, 100 + minute) >= now - LONGEST_US


def test_after_the_clock_was_set_back_the_horizon_is_not_ahead_of_it() -> None:
    horizon = CommitHorizon()
    horizon.advance(START, 100, 100)
    horizon.advance(START + 10 * SECOND, 100, 101)
    now = START + 5 * SECOND
    assert horizon.advance(now, 100, 102) <= now
    horizon = CommitHorizon()
    horizon.advance(START, 100, 100)
    assert horizon.advance(START - 3_600 * SECOND, 100, 102) == START - 3_600 * SECOND - LONGEST_US
