"""SQL of the overview's rates: tasks of the last 24 hours compared with the 24 hours before, and agents by week."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from stentor.core.clock import DAY, HOUR, SECOND
from stentor.core.db import Sql, Tx
from stentor.domains.tasks.chart_queries import AgentResults

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


class DayOfTasks(msgspec.Struct, frozen=True):
    """The tasks that were submitted in 24 hours, by their present status. Percentiles 50 and 95 are in milliseconds,
    of the newest MAX_TIMED_TASKS of them; None without any.
    """

    tasks: int
    tasks_per_hour: float
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
