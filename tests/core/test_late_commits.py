"""From which time on the next read of other processes' changes must read."""

from __future__ import annotations

import psycopg
import pytest

from stentor.core.clock import SECOND
from stentor.core.db.postgres.late_commits import _SNAPSHOT, LONGEST_US, CommitHorizon

START = 1_000_000 * SECOND


def test_without_a_running_transaction_nothing_older_can_become_visible() -> None:
    horizon = CommitHorizon()
    assert horizon.advance(START, [], 100, 100) == START
    assert horizon.advance(START + SECOND, [], 100, 100) == START + SECOND


def test_a_running_transaction_holds_the_horizon_until_it_is_visible() -> None:
    horizon = CommitHorizon()
    horizon.advance(START, [], 100, 100)
    # 100 began after the first read, and still runs at the next ones.
    assert horizon.advance(START + SECOND, [100], 105, 105) == START
    assert horizon.advance(START + 60 * SECOND, [100, 107], 110, 110) == START
    # It has ended, 107 not yet: that one may have begun right after the second read.
    assert horizon.advance(START + 61 * SECOND, [107], 120, 120) == START + SECOND
    assert horizon.advance(START + 62 * SECOND, [], 121, 121) == START + 62 * SECOND


def test_a_running_transaction_holds_the_horizon_also_while_no_later_one_has_ended() -> None:
    horizon = CommitHorizon()
    horizon.advance(START, [], 100, 100)
    # The snapshot does not name 100, which was given out after the last one that ended.
    for second in range(1, 181):
        assert horizon.advance(START + second * SECOND, [], 100, 101) == START
    assert horizon.advance(START + 182 * SECOND, [], 100, 101) == START + 182 * SECOND


@pytest.mark.parametrize("number", [5, 101])
def test_a_transaction_that_runs_for_a_day_holds_it_for_three_minutes(number: int) -> None:
    horizon = CommitHorizon()
    held = horizon.advance(START, [5] if number == 5 else [], 100, 100)
    for second in range(1, 181):
        now = START + second * SECOND
        held = max(held, now - LONGEST_US)
        assert horizon.advance(now, [number], 102 + second, 102 + second) == held
    for second in range(182, 300):
        now = START + second * SECOND
        assert horizon.advance(now, [number], 102 + second, 102 + second) == now
        assert horizon.advance(now, [number, 102 + second], 103 + second, 103 + second) == now


@pytest.mark.parametrize("named", [True, False])
def test_a_transaction_that_ends_after_an_hour_has_everything_read_since_its_begin_once(named: bool) -> None:
    horizon = CommitHorizon()
    horizon.advance(START, [], 100, 100)
    for second in range(1, 3_600):
        # 100 and 101 began after the first read. A snapshot names them as soon as a later one has ended.
        state = ([100, 101], 102 + second, 102 + second) if named else ([], 100, 102)
        horizon.advance(START + second * SECOND, *state)
    now = START + 3_600 * SECOND
    assert horizon.advance(now, [100], 6_000, 6_000) == START
    assert horizon.advance(now + SECOND, [100], 6_001, 6_001) == now + SECOND
    assert horizon.advance(now + 2 * SECOND, [], 6_001, 6_001) == START
    assert horizon.advance(now + 3 * SECOND, [], 6_001, 6_001) == now + 3 * SECOND


def test_a_transaction_from_before_the_first_read_has_everything_read_when_it_ends() -> None:
    horizon = CommitHorizon()
    for second in range(200):
        horizon.advance(START + second * SECOND, [5], 100 + second, 100 + second)
    assert horizon.advance(START + 201 * SECOND, [], 500, 500) == 0
    assert horizon.advance(START + 202 * SECOND, [], 501, 501) == START + 202 * SECOND


def test_a_transaction_that_begins_after_the_clock_was_set_back_and_runs_for_long_is_not_missed() -> None:
    horizon = CommitHorizon()
    for second in range(200):
        horizon.advance(START + second * SECOND, [100], 101 + second, 101 + second)
    began = START - 3_600 * SECOND
    for second in range(1, 400):
        horizon.advance(began + second * SECOND, [300], 301 + second, 301 + second)
    assert horizon.advance(began + 400 * SECOND, [], 701, 701) <= began


def test_after_the_clock_was_set_back_the_horizon_is_not_ahead_of_it() -> None:
    horizon = CommitHorizon()
    horizon.advance(START, [], 100, 100)
    horizon.advance(START + 10 * SECOND, [100], 101, 101)
    now = START + 5 * SECOND
    assert horizon.advance(now, [100], 102, 102) <= now
    horizon = CommitHorizon()
    horizon.advance(START, [], 100, 100)
    assert horizon.advance(START - 3_600 * SECOND, [100], 102, 102) == 0, "what changed may have any time"


@pytest.mark.only("postgresql", reason="numbers of transactions")
def test_the_numbers_include_a_transaction_that_began_after_the_last_one_that_ended(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as writer, psycopg.connect(postgres_url) as reader:
        own = writer.execute("select cast(cast(pg_current_xact_id() as text) as bigint)").fetchone()
        row = reader.execute(_SNAPSHOT.numbered.encode()).fetchone()
    assert own is not None
    assert row is not None
    running, after_ended, next_number = row
    assert own[0] in running or after_ended <= own[0]
    assert own[0] < next_number
