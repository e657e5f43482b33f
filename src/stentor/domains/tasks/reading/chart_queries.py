"""SQL of the charts: tasks by outcome, and how long they took, in buckets of time; and rates, by day and by week."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from stentor.core.clock import DAY, HOUR, SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.tasks.model import TASK_STATUSES

MINUTE_US = 60 * SECOND
CHART_RANGES = {"1h": (HOUR, MINUTE_US), "24h": (DAY, HOUR), "7d": (7 * DAY, 6 * HOUR)}
"""Length and width of a bucket by name, in microseconds."""
MAX_SCANNED_TASKS = 100_000
"""Limit of the tasks of one status that a chart of minutes reads, and of those that a chart of durations samples."""
MAX_SAMPLED_TASKS = 20_000
"""Approximate number of tasks that a chart of durations reads, spread evenly over its time."""
MAX_AGENT_DURATIONS = 1_000
"""Newest tasks of an agent whose durations are read."""
DURATION_BOUNDS_US: tuple[int, ...] = tuple(10**power * lead * 1000 for power in range(7) for lead in (1, 2, 5))
"""Upper bounds of durations in microseconds, from a millisecond: 1, 2, 5, 10, ... ."""

_COUNT_BY_HOUR = Sql(
    """select hour, status, sum(n) from task_counts
    where tenant = :tenant and hour >= :first and n <> 0 group by hour, status"""
)
# One status at a time, so that the index holds everything the query reads.
_COUNT_BY_MINUTE = Sql(
    f"""select (created_at - :start) / :width as bucket, count(*) from (
        select created_at from tasks where tenant = :tenant and status = :status and created_at >= :start
        order by created_at desc, task_id desc limit {MAX_SCANNED_TASKS}
    ) as newest group by bucket"""
)
_COUNT_BY_AGENT = Sql(
    """select agent_id, (hour - :first) / 24 as day, status, sum(n) from task_counts
    where tenant = :tenant and hour >= :first and agent_id <> '' and n <> 0 group by agent_id, day, status"""
)
_COUNT_SINCE = Sql("select coalesce(sum(n), 0) from task_counts where tenant = :tenant and hour >= :first")
_BIN = " ".join(f"when duration <= {bound} then {n}" for n, bound in enumerate(DURATION_BOUNDS_US))
# By submission, which has an index, so a task that was submitted before the range is missing. `% :step` takes a
# sample: the microseconds of a submission are as good as random.
_COUNT_DURATIONS = Sql(
    f"""select bucket, bin, count(*), sum(duration) from (
        select (ended - :start) / :width as bucket, duration,
            case {_BIN} else {len(DURATION_BOUNDS_US)} end as bin from (
            select completion_time as ended, completion_time - start_time as duration from tasks
            where tenant = :tenant and created_at >= :start and created_at % :step = 0
                and start_time is not null and completion_time >= :start
            order by created_at desc, task_id desc limit {MAX_SCANNED_TASKS}
        ) as newest
    ) as binned group by bucket, bin"""
)


_LIST_AGENT_DURATIONS = Sql(
    f"""select completion_time - start_time from (
        select completion_time, start_time from tasks where tenant = :tenant and assigned_agent = :agent_id
        order by created_at desc, task_id desc limit {MAX_AGENT_DURATIONS}
    ) as newest where start_time is not null and completion_time is not null"""
)
MAX_TIMED_TASKS = 1_000
"""Newest tasks of a day whose waits and runs are read."""
HOURS_PER_WEEK = 7 * 24
_COUNT_BY_DAY = Sql(
    """select case when hour >= :today then 0 else 1 end as day, status, sum(n) from task_counts
    where tenant = :tenant and hour >= :yesterday and n <> 0 group by day, status"""
)
_LIST_TIMES = Sql(
    f"""select start_time - queued_at, completion_time - start_time from (
        select queued_at, start_time, completion_time from tasks
        where tenant = :tenant and created_at >= :start and created_at < :end
        order by created_at desc, task_id desc limit {MAX_TIMED_TASKS}
    ) as newest where start_time is not null and start_time >= queued_at"""
)
_COUNT_BY_WEEK = Sql(
    """select agent_id, case when hour >= :this_week then 0 else 1 end as week, status, sum(n) from task_counts
    where tenant = :tenant and hour >= :last_week and agent_id <> '' and n <> 0 group by agent_id, week, status"""
)


class AgentResults(msgspec.Struct):
    """The tasks of an agent by the day of their submission, oldest first, and how those that ended did."""

    by_day: list[int]
    completed: int = 0
    failed: int = 0

    @property
    def tasks(self) -> int:
        return sum(self.by_day)

    @property
    def success(self) -> float | None:
        """The share of completed tasks among those that were completed, failed or aborted; None without any."""
        ended = self.completed + self.failed
        return self.completed / ended if ended else None


class TimeBuckets(msgspec.Struct, frozen=True):
    """A range of time in buckets of one width; microseconds."""

    start: int
    width: int
    count: int

    @property
    def times(self) -> list[int]:
        """The start of each bucket in seconds."""
        return [(self.start + n * self.width) // SECOND for n in range(self.count)]


def time_buckets(range_name: str, now: int) -> TimeBuckets:
    """Return the buckets of a range that ends with the bucket of `now`."""
    length, width = CHART_RANGES[range_name]
    end = now // width * width + width
    return TimeBuckets(end - length, width, length // width)


def read_outcomes(tx: Tx, tenant: str, span: TimeBuckets) -> dict[str, list[int]]:
    """Count the tasks of each bucket by their present status; a task counts where it was submitted."""
    series: dict[str, list[int]] = {}
    for bucket, status, n in _count_submitted(tx, tenant, span):
        if 0 <= bucket < span.count:
            series.setdefault(str(status), [0] * span.count)[int(bucket)] += int(n)
    return series


def _count_submitted(tx: Tx, tenant: str, span: TimeBuckets) -> Sequence[tuple[Any, ...]]:
    """Return rows of (bucket, status, count)."""
    if span.width >= HOUR:
        rows = tx.rows(_COUNT_BY_HOUR, tenant=tenant, first=span.start // HOUR)
        return [((hour * HOUR - span.start) // span.width, status, n) for hour, status, n in rows]
    bounds = {"start": span.start, "width": span.width}
    return [
        (bucket, status, n)
        for status in TASK_STATUSES
        for bucket, n in tx.rows(_COUNT_BY_MINUTE, tenant=tenant, status=status, **bounds)
    ]


def read_durations(tx: Tx, tenant: str, span: TimeBuckets) -> dict[str, list[float | None]]:
    """Return percentiles 50 and 95 of the seconds that tasks took, by the bucket in which they ended.

    None for a bucket in which none ended. A percentile is the mean of the durations between two bounds of 1, 2, 5.
    """
    submitted = int(tx.rows(_COUNT_SINCE, tenant=tenant, first=span.start // HOUR)[0][0])
    step = 1 + submitted // MAX_SAMPLED_TASKS
    histograms: list[dict[int, tuple[int, int]]] = [{} for _ in range(span.count)]
    for bucket, bin_, n, duration in tx.rows(
        _COUNT_DURATIONS, tenant=tenant, start=span.start, width=span.width, step=step
    ):
        if 0 <= bucket < span.count:
            histograms[int(bucket)][int(bin_)] = int(n), int(duration)
    return {name: [_percentile(bins, q) for bins in histograms] for name, q in (("p50", 0.5), ("p95", 0.95))}


def _percentile(bins: dict[int, tuple[int, int]], q: float) -> float | None:
    """Return a percentile in seconds; `bins` have the number of durations and their sum in microseconds."""
    total, seen = sum(count for count, _ in bins.values()), 0
    for bin_ in sorted(bins):
        count, duration = bins[bin_]
        seen += count
        if seen >= q * total:
            return duration / count / SECOND
    return None


def read_agent_results(tx: Tx, tenant: str, now: int, days: int) -> dict[str, AgentResults]:
    """Return the results of each agent that had a task in the last `days` times 24 hours, by agent id."""
    by_agent: dict[str, AgentResults] = {}
    for agent_id, day, status, count in tx.rows(_COUNT_BY_AGENT, tenant=tenant, first=now // HOUR - 24 * days + 1):
        results = by_agent.setdefault(str(agent_id), AgentResults([0] * days))
        results.by_day[min(int(day), days - 1)] += int(count)
        results.completed += int(count) * (status == "completed")
        results.failed += int(count) * (status in ("failed", "aborted"))
    return by_agent


def read_agent_durations(tx: Tx, tenant: str, agent_id: str) -> tuple[int, int] | None:
    """Return the percentiles 50 and 95 of the milliseconds that the agent's newest tasks took; None without any."""
    durations = sorted(int(row[0]) for row in tx.rows(_LIST_AGENT_DURATIONS, tenant=tenant, agent_id=agent_id))
    if not durations:
        return None
    ranks = (math.ceil(q * len(durations)) - 1 for q in (0.5, 0.95))
    p50, p95 = (durations[rank] * 1000 // SECOND for rank in ranks)
    return p50, p95


class DayOfTasks(msgspec.Struct, frozen=True):
    """The tasks that were submitted in 24 hours, by their present status. Percentiles 50 and 95 are in milliseconds,
    of the newest MAX_TIMED_TASKS of them; None without any. `since` is the start of the first hour, in microseconds.
    """

    tasks: int
    tasks_per_hour: float
    since: int
    completed: int
    failed: int
    wait_ms: tuple[float, float] | None
    run_ms: tuple[float, float] | None

    @property
    def success(self) -> float | None:
        """The share of completed tasks among those that were completed, failed or aborted; None without any."""
        ended = self.completed + self.failed
        return self.completed / ended if ended else None


def read_two_days(tx: Tx, tenant: str, now: int) -> tuple[DayOfTasks, DayOfTasks]:
    """Return the last 24 hours, and the 24 hours before. Tasks are counted by whole hours, the present one included."""
    today = now // HOUR - 23
    counts: list[dict[str, int]] = [{}, {}]
    for day, status, count in tx.rows(_COUNT_BY_DAY, tenant=tenant, today=today, yesterday=today - 24):
        counts[int(day)][str(status)] = int(count)
    elapsed_hours = 23 + max(now % HOUR, HOUR // 60) / HOUR
    start = today * HOUR
    first = _read_day(tx, tenant, counts[0], elapsed_hours, start, now + DAY)
    return first, _read_day(tx, tenant, counts[1], 24, start - DAY, start)


def _read_day(tx: Tx, tenant: str, counts: dict[str, int], hours: float, start: int, end: int) -> DayOfTasks:
    total = sum(counts.values())
    times = tx.rows(_LIST_TIMES, tenant=tenant, start=start, end=end) if total else []
    return DayOfTasks(
        total,
        total / hours,
        start,
        counts.get("completed", 0),
        counts.get("failed", 0) + counts.get("aborted", 0),
        _percentiles([int(wait) for wait, _ in times]),
        _percentiles([int(run) for _, run in times if run is not None]),
    )


def _percentiles(durations: Sequence[int]) -> tuple[float, float] | None:
    if not durations:
        return None
    ordered = sorted(durations)
    p50, p95 = (ordered[math.ceil(q * len(ordered)) - 1] * 1000 / SECOND for q in (0.5, 0.95))
    return p50, p95


def read_two_weeks(tx: Tx, tenant: str, now: int) -> dict[str, tuple[AgentResults, AgentResults]]:
    """Return the results of each agent in the last seven days and in the seven days before, by agent id."""
    this_week = now // HOUR - HOURS_PER_WEEK + 1
    by_agent: dict[str, tuple[AgentResults, AgentResults]] = {}
    hours = {"this_week": this_week, "last_week": this_week - HOURS_PER_WEEK}
    for agent_id, week, status, count in tx.rows(_COUNT_BY_WEEK, tenant=tenant, **hours):
        results = by_agent.setdefault(str(agent_id), (AgentResults([0]), AgentResults([0])))[int(week)]
        results.by_day[0] += int(count)
        results.completed += int(count) * (status == "completed")
        results.failed += int(count) * (status in ("failed", "aborted"))
    return by_agent
