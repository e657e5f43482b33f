"""When a schedule runs, and what becomes of missed times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import HOUR, MINUTE, SECOND, format_iso, micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.domains.schedules.model import MAX_MISSED, CronTimes, Occurrence, Schedule, find_occurrence
from stentor.domains.tasks.model import TaskDraft
from tests.requirements import requirement

NOON = micros_from_datetime(datetime(2026, 6, 1, 12, tzinfo=UTC))


def schedule(**fields: Any) -> Schedule:
    made = Schedule(
        tenant="default",
        name="s",
        cron="0 * * * *",
        timezone="UTC",
        missed="one",
        overlap="allow",
        task=TaskDraft("echo", "hi"),
        paused=False,
        paused_reason=None,
        next_at=NOON,
        created_by="admin",
        runs_as="admin",
        created_at=0,
        updated_at=0,
    )
    return msgspec.structs.replace(made, **fields)


def days(times: list[int]) -> list[str]:
    return [format_iso(moment)[5:16] for moment in times]


@requirement("schedules.times")
def test_a_daily_run_keeps_its_hour_when_clocks_change() -> None:
    rome = CronTimes("30 6 * * *", "Europe/Rome")
    spring = micros_from_datetime(datetime(2026, 3, 27, 12, tzinfo=UTC))
    assert days(rome.list_after(spring, 3)) == ["03-28T05:30", "03-29T04:30", "03-30T04:30"]
    autumn = micros_from_datetime(datetime(2026, 10, 23, 12, tzinfo=UTC))
    assert days(rome.list_after(autumn, 3)) == ["10-24T04:30", "10-25T05:30", "10-26T05:30"]


@requirement("schedules.times")
def test_an_hour_that_does_not_exist_runs_after_it_and_one_that_comes_twice_runs_once() -> None:
    rome = CronTimes("30 2 * * *", "Europe/Rome")
    spring = micros_from_datetime(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert days(rome.list_after(spring, 2)) == ["03-29T01:00", "03-30T00:30"]
    autumn = micros_from_datetime(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert days(rome.list_after(autumn, 2)) == ["10-25T00:30", "10-26T01:30"]
    # 2:05 for the second time: the run of 2:30 is over.
    second_pass = micros_from_datetime(datetime(2026, 10, 25, 1, 5, tzinfo=UTC))
    assert days(rome.list_after(second_pass, 2)) == ["10-26T01:30", "10-27T01:30"]
    assert days(rome.list_until(second_pass, 2, 0)) == ["10-25T00:30", "10-24T00:30"]


@requirement("schedules.times")
@pytest.mark.parametrize(
    ("cron", "in_spring", "in_autumn"),
    [
        ("*/30 2 * * *", ["03-30T00:00", "03-30T00:30"], ["10-25T00:00", "10-25T00:30", "10-25T01:00", "10-25T01:30"]),
        ("* 2 * * *", ["03-30T00:00"], [f"10-25T{hour}:{minute:02}" for hour in ("00", "01") for minute in range(60)]),
        ("0 */2 * * *", ["03-29T02:00", "03-29T04:00"], ["10-25T00:00", "10-25T01:00", "10-25T03:00"]),
    ],
)
def test_with_an_asterisk_an_hour_is_not_made_up_for_and_one_that_comes_twice_counts_twice(
    cron: str, in_spring: list[str], in_autumn: list[str]
) -> None:
    rome = CronTimes(cron, "Europe/Rome")
    spring = micros_from_datetime(datetime(2026, 3, 29, 0, 50, tzinfo=UTC))
    assert days(rome.list_after(spring, len(in_spring))) == in_spring
    autumn = micros_from_datetime(datetime(2026, 10, 24, 23, 30, tzinfo=UTC))
    assert days(rome.list_after(autumn, len(in_autumn))) == in_autumn


@requirement("schedules.times")
@pytest.mark.parametrize(
    ("cron", "in_spring", "in_autumn"),
    [
        # Clocks go from 2:00 to 2:30 on the 3rd of October, and from 2:00 to 1:30 on the 4th of April.
        ("0 */3 * * *", ["00:00", "03:00", "06:00"], ["00:00", "03:00", "06:00"]),
        ("*/30 4 * * *", ["04:00", "04:30"], ["04:00", "04:30"]),
        (
            "*/20 1-2 * * *",
            ["01:00", "01:20", "01:40", "02:40"],
            ["01:00", "01:20", "01:40", "01:40", "02:00", "02:20"],
        ),
        ("45 * * * *", ["00:45", "01:45", "02:45"], ["00:45", "01:45", "01:45", "02:45"]),
        ("15 * * * *", ["00:15", "01:15", "03:15"], ["00:15", "01:15", "02:15"]),
        ("10,50 */2 * * *", ["00:10", "00:50", "02:50", "04:10"], ["00:10", "00:50", "02:10", "02:50"]),
    ],
)
def test_no_time_is_missed_where_clocks_change_by_half_an_hour(
    cron: str, in_spring: list[str], in_autumn: list[str]
) -> None:
    zone = ZoneInfo("Australia/Lord_Howe")
    times = CronTimes(cron, zone.key)
    for day, expected in (
        (datetime(2027, 10, 3, tzinfo=zone), in_spring),
        (datetime(2027, 4, 4, tzinfo=zone), in_autumn),
    ):
        moment = micros_from_datetime(day) - MINUTE
        found = times.list_after(moment, len(expected))
        assert [f"{datetime.fromtimestamp(time // SECOND, zone):%H:%M}" for time in found] == expected
        assert times.list_until(found[-1], len(found), moment) == found[::-1]


@requirement("schedules.times")
@given(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "15 */5 * * *", "0 0 L * *", "5 1 * * SUN", "@hourly"]),
    st.sampled_from(["UTC", "Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.integers(1_700_000_000, 1_900_000_000),
    st.integers(0, SECOND - 1),
)
def test_the_last_times_are_those_that_came_next_before(cron: str, zone: str, second: int, rest: int) -> None:
    times, moment = CronTimes(cron, zone), second * SECOND + rest
    following = times.list_after(moment, 4)
    assert following == sorted(set(following))
    assert following[0] > moment
    assert times.list_until(following[-1], 4, following[0]) == following[::-1]
    assert times.list_until(following[0] - 1, 1, 0)[0] <= moment


@requirement("schedules.times")
@pytest.mark.parametrize(
    ("cron", "zone", "problem"),
    [
        ("* * * *", "UTC", "cron: must have five fields"),
        ("0 0 * * * *", "UTC", "cron: must have five fields"),
        ("61 * * * *", "UTC", "cron: '61 * * * *' is not a cron expression: bad minute (0-59)"),
        ("0 0 * * FUNDAY", "UTC", "cron: '0 0 * * FUNDAY' is not a cron expression: bad day-of-week (0-7 or SUN-SAT)"),
        ("0 0 31 2 *", "UTC", "cron: '0 0 31 2 *' is not a cron expression: bad day-of-month (1-31, at most"),
        ("a b c d e", "UTC", "cron: "),
        ("*/0 * * * *", "UTC", "cron: "),
        ("5-1 * * * *", "UTC", "cron: "),
        ("0 0 * * 1#9", "UTC", "cron: "),
        ("@fortnightly", "UTC", "cron: must have five fields"),
        ("", "UTC", "cron: "),
        ("0 0 * * *", "Europe/Roma", "timezone: 'Europe/Roma' is not a time zone"),
        ("0 0 * * *", "", "timezone: "),
        ("0 0 * * *", "../../etc/passwd", "timezone: "),
        ("0 0 * * *", "/etc/passwd", "timezone: "),
        ("0 0 * * *", "Europe", "timezone: "),
        ("0 0 * * *", "x" * 5_000, "timezone: "),
        ("0 0 * * *", "localtime", "timezone: "),
        ("0 0 * * *", "right/Europe/Rome", "timezone: "),
    ],
)
def test_what_is_wrong_is_named(cron: str, zone: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        CronTimes(cron, zone)
    assert refused.value.message.startswith(problem)


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_text_breaks_the_times(cron: str, zone: str) -> None:
    for expression, name in ((cron, "UTC"), ("0 0 * * *", zone)):
        try:
            times = CronTimes(expression, name)
            assert times.after(NOON) > NOON
            assert times.description
        except InvalidRequest:
            continue


@requirement("schedules.missed")
@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_a_run_in_time_is_made_whatever_becomes_of_missed_ones(missed: Any) -> None:
    for late in (0, SECOND, MINUTE):
        found = find_occurrence(schedule(missed=missed), NOON + late)
        assert found == Occurrence(NOON, NOON + HOUR, None)


@requirement("schedules.missed")
def test_missed_runs_are_skipped_made_up_for_by_one_or_made_each() -> None:
    now = NOON + 3 * HOUR + 10 * MINUTE
    after = NOON + 4 * HOUR
    assert find_occurrence(schedule(missed="skip"), now) == Occurrence(None, after, NOON)
    assert find_occurrence(schedule(missed="one"), now) == Occurrence(NOON + 3 * HOUR, after, None)
    each, made = schedule(missed="all"), []
    while each.next_at is not None and each.next_at <= now:
        found = find_occurrence(each, now)
        assert found.given_up is None
        made.append(found.due_at)
        each = msgspec.structs.replace(each, next_at=found.next_at)
    assert made == [NOON + n * HOUR for n in range(4)]
    assert each.next_at == after


@requirement("schedules.missed")
def test_a_skipping_schedule_still_makes_the_run_that_is_in_time() -> None:
    now = NOON + 3 * HOUR + 10 * SECOND
    assert find_occurrence(schedule(missed="skip"), now) == Occurrence(NOON + 3 * HOUR, NOON + 4 * HOUR, NOON)


@requirement("schedules.missed")
def test_of_very_many_missed_runs_the_newest_are_made() -> None:
    year = schedule(missed="all", cron="* * * * *")
    now = NOON + 365 * 24 * HOUR
    found = find_occurrence(year, now)
    assert found == Occurrence(now - (MAX_MISSED - 1) * MINUTE, now - (MAX_MISSED - 2) * MINUTE, NOON)
    daily = schedule(missed="all", cron="0 12 * * *")
    assert find_occurrence(daily, now) == Occurrence(NOON, NOON + 24 * HOUR, None)


@requirement("schedules.missed")
def test_the_first_missed_run_keeps_its_time_where_the_clock_is_set_ahead_after_it() -> None:
    # At 00:01 local time the clock became 03:01: backwards in time, 00:00 is found at another moment.
    midnight = micros_from_datetime(datetime(2020, 10, 3, 16, tzinfo=UTC))
    each = schedule(missed="all", cron="0 */6 * * *", timezone="Antarctica/Casey", next_at=midnight)
    assert find_occurrence(each, midnight + 7 * 24 * HOUR).due_at == midnight


@requirement("schedules.missed")
@pytest.mark.parametrize("missed", ["skip", "one", "all"])
def test_times_that_are_years_apart_are_made_up_for(missed: Any) -> None:
    for cron, first in (
        ("0 0 29 2 *", datetime(2028, 2, 29, tzinfo=UTC)),
        ("@yearly", datetime(2027, 1, 1, tzinfo=UTC)),
    ):
        due = micros_from_datetime(first)
        found = find_occurrence(schedule(cron=cron, next_at=due, missed=missed), due + 48 * HOUR)
        assert found.due_at == (None if missed == "skip" else due)


def test_a_description_says_the_expression_in_words() -> None:
    assert CronTimes("30 6 * * MON-FRI", "UTC").description == "At 06:30 on Monday through Friday"
    days = CronTimes("0 0 3,11,12,13,21,22,23,31 * *", "UTC").description
    assert days == (
        "At 00:00 on the third, the 11th, the 12th, the 13th, the 21st, the 22nd, the 23rd, and the 31st day of month"
    )
    assert timedelta(microseconds=CronTimes("@weekly", "UTC").after(NOON) - NOON) < timedelta(days=7)
