"""A schedule, its runs, and the times of its cron expression. Pure.

The times are those of Debian's cron, also where clocks change: a daily run in the hour that does not exist is made
right after it, and one in the hour that comes twice is made once.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, islice, takewhile
from typing import Literal
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from stentor.auth.principal import Principal
from stentor.core.clock import HOUR, MINUTE, micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.domains.tasks.model import TaskDraft

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SCHEDULES = 200
"""Maximum of one key."""
MAX_MISSED = 1_000
"""Missed runs that are made up for; older ones are given up."""
MISSED_AFTER_US = MINUTE
"""A run that is later than this was missed."""
RUNS_KEPT = 200
"""Runs of a schedule that are kept."""

_NO_ZONES = frozenset(("localtime", "posixrules", "Factory"))
"""Files next to those of the zones, which are no zones: each machine may have others."""
_WRONG_ORDINAL, _ENDINGS = re.compile(r"\b([2-5][123])th\b"), {"1": "st", "2": "nd", "3": "rd"}
"""CronSim says `31th`."""
_RANGES = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, at most what the months have, or L for the last",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT",
}

Missed = Literal["skip", "one", "all"]
Overlap = Literal["allow", "skip"]
RunOutcome = Literal["submitted", "denied", "skipped"]
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


MALFORMED_TASK = TaskDraft(type="malformed", input=None)
"""Stands for a stored task that cannot be read."""


class Schedule(msgspec.Struct, frozen=True):
    """A task that is submitted at the times of a cron expression. Times in microseconds.

    `runs_as` is the key that last said what is submitted, and whose task it becomes. `next_at` is None while it is
    paused; `paused_reason` says why the service itself paused it. `version` counts the writes: changes and runs.
    `last_task_id` is the last task that was submitted at one of its times.
    """

    tenant: str
    name: str
    cron: str
    timezone: str
    missed: Missed
    overlap: Overlap
    task: TaskDraft
    paused: bool
    paused_reason: str | None
    next_at: int | None
    created_by: str
    runs_as: str
    created_at: int
    updated_at: int
    version: int = 1
    last_task_id: str | None = None

    def is_visible_to(self, caller: Principal) -> bool:
        """Return whether the caller may see and change it.

        A key that is bound to agents sees only its own, and loses sight of one once somebody else says what it submits.
        """
        is_own = self.created_by == self.runs_as == caller.name
        return self.tenant == caller.tenant and (is_own or not caller.is_bound_agent)

    def is_same(self, other: Schedule | None) -> bool:
        """Return whether nothing has happened to it. One that was deleted and created again has the same versions."""
        return other is not None and (self.created_at, self.version) == (other.created_at, other.version)


class ScheduleRun(msgspec.Struct, frozen=True):
    """What was done for one time of a schedule. Times in microseconds; `reason` is None for a submitted task."""

    run_id: str
    due_at: int
    happened_at: int
    outcome: RunOutcome
    task_id: str | None
    reason: str | None


class Occurrence(msgspec.Struct, frozen=True):
    """What to do for a schedule that is due: a run for the time `due_at`, or none, and the time after it.

    `given_up` is the first time for which nothing is done any more.
    """

    due_at: int | None
    next_at: int
    given_up: int | None


class _CronSim(CronSim):
    """CronSim for clocks that change by half an hour too, as on Lord Howe Island.

    CronSim takes a step of an hour, or one to the only minute that matches, in real time. Across such a change that
    ends at another minute, and the times before it are missed.
    """

    def tick(self, seconds: int = 1) -> None:
        """Roll the time on, but never past the first minute after a change, and by hours only to the next full one."""
        if seconds == 3600:
            seconds -= 60 * (self.dt.minute if self.tick_direction > 0 else 59 - self.dt.minute)
        start = self.dt
        super().tick(seconds)
        if self.dt.utcoffset() != start.utcoffset():
            self.dt = start
            while self.dt.utcoffset() == start.utcoffset():
                super().tick(min(seconds, 60))


class CronTimes:
    """The times of a cron expression in a time zone. Raises InvalidRequest if one of the two is wrong."""

    def __init__(self, cron: str, timezone: str) -> None:
        self._cron = ALIASES.get(cron.strip().lower(), cron)
        try:
            # `right/` counts leap seconds, and neither folder exists on every system.
            if timezone in _NO_ZONES or timezone.startswith(("right/", "posix/")):
                raise KeyError(timezone)
            self._zone = ZoneInfo(timezone)
        except (ValueError, OSError, KeyError):  # not a name at all, the name of a folder, or an unknown name
            raise InvalidRequest(
                f"timezone: {timezone!r} is not a time zone; expected one such as Europe/Rome or UTC"
            ) from None
        if len(self._cron.split()) != 5:
            raise InvalidRequest(
                "cron: must have five fields (minute, hour, day of the month, month, day of the week), such as "
                f"`30 6 * * MON-FRI`, or be one of {', '.join(ALIASES)}"
            )
        try:
            self._parsed = _CronSim(self._cron, _EPOCH)
        except CronSimError as error:
            raise InvalidRequest(f"cron: {cron!r} is not a cron expression: {_describe_fault(error)}") from None
        try:
            self.after(0)
        except IndexError:  # a date such as 30 February
            raise InvalidRequest(f"cron: {cron!r} never matches a date") from None

    @property
    def description(self) -> str:
        """The expression in words."""
        return _WRONG_ORDINAL.sub(lambda found: found[1] + _ENDINGS[found[1][-1]], self._parsed.explain())

    def after(self, moment: int) -> int:
        """Return the first time after a moment, both in microseconds."""
        return self.list_after(moment, 1)[0]

    def list_after(self, moment: int, count: int) -> list[int]:
        """Return the next times after a moment."""
        found = map(micros_from_datetime, _CronSim(self._cron, self._local(moment)))
        # In the second pass of an hour that comes twice, CronSim begins with the times of the first one.
        return list(islice((time for time in found if time > moment), count))

    def list_until(self, moment: int, count: int, first: int) -> list[int]:
        """Return the last times that are not after a moment, the newest first, and none before `first`."""
        # Backwards CronSim leaves out its start, and in the second pass of an hour that comes twice also times of the
        # first one. So begin later than any clock is set back.
        found = map(micros_from_datetime, _CronSim(self._cron, self._local(moment + 3 * HOUR), reverse=True))
        times = takewhile(lambda each: each >= first, dropwhile(lambda each: each > moment, found))
        return list(islice(times, count))

    def _local(self, moment: int) -> datetime:
        return (_EPOCH + timedelta(microseconds=moment)).astimezone(self._zone)


def find_next(schedule: Schedule, now: int, done: Collection[int]) -> int:
    """Return the next time of a schedule that is not among those `done`, none of which may be before `now`."""
    times = CronTimes(schedule.cron, schedule.timezone)
    return next(time for time in times.list_after(now, len(done) + 1) if time not in done)


def find_occurrence(schedule: Schedule, now: int) -> Occurrence:
    """Return what to do for a schedule whose time `next_at` has come."""
    times, first = CronTimes(schedule.cron, schedule.timezone), schedule.next_at
    assert first is not None
    if schedule.missed == "all":
        due = first
        # There cannot be more times than minutes.
        if now - first > MAX_MISSED * MINUTE:
            # The newest first. If they are fewer, none is given up.
            newest_times = times.list_until(now, MAX_MISSED, first)
            due = newest_times[-1] if len(newest_times) == MAX_MISSED else first
        return Occurrence(due, times.after(due), first if due > first else None)
    # None where the times backwards are not those forwards, as in zones that move by half an hour.
    newest = max(times.list_until(now, 1, first), default=first)
    if schedule.missed == "one":
        return Occurrence(newest, times.after(now), None)
    is_missed = now - newest > MISSED_AFTER_US
    given_up = first if is_missed or newest > first else None
    return Occurrence(None if is_missed else newest, times.after(now), given_up)


def _describe_fault(error: CronSimError) -> str:
    """Return CronSim's message, such as `Bad minute`, with what the field may contain."""
    fault = str(error).lower()
    allowed = _RANGES.get(fault.removeprefix("bad "))
    return f"{fault} ({allowed})" if allowed else fault
