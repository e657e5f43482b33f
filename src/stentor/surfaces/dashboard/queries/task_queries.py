"""What the pages read from rows, because no route of the gateway tells it: series, searches, what is new.

Every query names the tenant, which is that of the key that is signed in.

What the console reads of rows: what the newest tasks were asked, which no list of the gateway tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from stentor.core.clock import DAY, HOUR, SECOND, Clock
from stentor.core.db import Database, Sql, Tx
from stentor.domains.tasks.model import TASK_STATUSES

T = TypeVar("T")
MINUTE_US = 60 * SECOND
MAX_SCANNED_TASKS = 100_000
"""Tasks of one status that a chart of minutes looks at, and tasks among which one of durations samples."""
SAMPLED = 20_000
"""About so many tasks at most are read for a chart of durations, spread over all of its time."""
CHART_RANGES = {"1h": (HOUR, MINUTE_US), "24h": (DAY, HOUR), "7d": (7 * DAY, 6 * HOUR)}
"""Name to length and width of a bucket, in microseconds."""
DURATION_BOUNDS_US: tuple[int, ...] = tuple(10**power * lead * 1000 for power in range(7) for lead in (1, 2, 5))
"""Upper bounds of durations in microseconds, from a millisecond: 1, 2, 5, 10, ... ."""

_SUBMITTED = Sql(
    """select hour, status, sum(n) from task_counts
    where tenant = :tenant and hour >= :first and n <> 0 group by hour, status"""
)
# Of one status, because then the index has all that is read.
_MINUTES = Sql(
    f"""select (created_at - :start) / :width as bucket, count(*) from (
        select created_at from tasks where tenant = :tenant and status = :status and created_at >= :start
        order by created_at desc, task_id desc limit {MAX_SCANNED_TASKS}
    ) as newest group by bucket"""
)
_SINCE = Sql("select coalesce(sum(n), 0) from task_counts where tenant = :tenant and hour >= :first")
_BIN = " ".join(f"when lasted <= {bound} then {n}" for n, bound in enumerate(DURATION_BOUNDS_US))
_DURATIONS = Sql(
    f"""select bucket, bin, count(*) from (
        select (ended - :start) / :width as bucket, case {_BIN} else {len(DURATION_BOUNDS_US)} end as bin from (
            select completion_time as ended, completion_time - start_time as lasted from tasks
            where tenant = :tenant and created_at >= :start and created_at % :step = 0
                and start_time is not null and completion_time >= :start
            order by created_at desc, task_id desc limit {MAX_SCANNED_TASKS}
        ) as newest
    ) as binned group by bucket, bin"""
)
_COST = Sql(
    """select (happened_at - :start) / :width as bucket, coalesce(sum(cost), 0), sum(input_tokens + output_tokens)
    from llm_calls where tenant = :tenant and happened_at >= :start group by bucket"""
)
_STATUS_COUNTS = Sql("select status, sum(n) from task_counts where tenant = :tenant and hour = -1 group by status")
_TASKS_BY_PREFIX = Sql(
    """select task_id, status, assigned_agent, type, created_at, completion_time from tasks
    where tenant = :tenant and substr(task_id, 1, :length) = :prefix order by task_id limit :limit"""
)
_INPUT = Sql("select substr(input, 1, :most) from tasks where tenant = :tenant and task_id = :task_id")
_AGENT_NAMES = Sql("select agent_id, name from agents where tenant = :tenant")
_EVENT_COUNTS = Sql(
    """select tenant, event_type, count(*), max(event_id) from (
        select tenant, event_type, event_id from events where event_id > :after order by event_id limit 5000
    ) as new group by tenant, event_type"""
)
_PENDING_COUNTS = {
    "approvals": Sql("select count(*) from governance_updates where tenant = :tenant and status = 'submitted'"),
    "quarantined": Sql("select count(*) from agents where tenant = :tenant and status = 'quarantined'"),
    "alerts": Sql(
        """select count(*) from sentinel_alerts where resolved_at is null
        and agent_id in (select agent_id from agents where tenant = :tenant)"""
    ),
    "webhooks": Sql(
        "select count(*) from webhook_subscriptions where tenant = :tenant and disabled_reason is not null"
    ),
}


class TimeBuckets(msgspec.Struct, frozen=True):
    """A stretch of time in buckets; microseconds."""

    start: int
    width: int
    buckets: int

    @property
    def times(self) -> list[int]:
        """The beginning of each bucket in seconds."""
        return [(self.start + n * self.width) // SECOND for n in range(self.buckets)]


class EventCount(msgspec.Struct, frozen=True):
    """How many events of a type a tenant had, and the last of them."""

    tenant: str
    event_type: str
    count: int
    last_event_id: str


class PageQueries:
    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self.clock = clock

    async def read(self, fn: Callable[[Tx], T]) -> T:
        return await self._db.read(fn)

    def time_buckets(self, name: str) -> TimeBuckets:
        length, width = CHART_RANGES[name]
        end = self.clock.now() // width * width + width
        return TimeBuckets(end - length, width, length // width)

    async def count_tasks_by_status(self, tenant: str) -> dict[str, int]:
        """Tasks by status, all that there ever were."""
        found = await self._db.read(lambda tx: tx.rows(_STATUS_COUNTS, tenant=tenant))
        return {str(status): int(n) for status, n in found if n}

    async def count_pending(self, tenant: str) -> dict[str, int]:
        """What waits for a human, by kind."""

        def read(tx: Tx) -> dict[str, int]:
            return {name: int(tx.rows(sql, tenant=tenant)[0][0]) for name, sql in _PENDING_COUNTS.items()}

        return await self._db.read(read)

    async def read_outcomes(self, tenant: str, span: TimeBuckets) -> dict[str, list[int]]:
        """Tasks by the time of their submission and the status that they have now."""

        def read(tx: Tx) -> Sequence[tuple[Any, ...]]:
            if span.width < HOUR:
                return [row for status in TASK_STATUSES for row in _minutes(tx, tenant, status, span)]
            found = tx.rows(_SUBMITTED, tenant=tenant, first=span.start // HOUR)
            return [((hour * HOUR - span.start) // span.width, status, n) for hour, status, n in found]

        series: dict[str, list[int]] = {}
        for bucket, status, n in await self._db.read(read):
            if 0 <= bucket < span.buckets:
                series.setdefault(str(status), [0] * span.buckets)[int(bucket)] += int(n)
        return series

    async def read_durations(self, tenant: str, span: TimeBuckets) -> dict[str, list[float | None]]:
        """Percentiles 50 and 95 of the work of each bucket in seconds, None without work; to the next of 1, 2, 5."""

        def read(tx: Tx) -> Sequence[tuple[Any, ...]]:
            since = int(tx.rows(_SINCE, tenant=tenant, first=span.start // HOUR)[0][0])
            step = 1 + since // SAMPLED
            return tx.rows(_DURATIONS, tenant=tenant, start=span.start, width=span.width, step=step)

        found = await self._db.read(read)
        bins: list[dict[int, int]] = [{} for _ in range(span.buckets)]
        for bucket, step, n in found:
            if 0 <= bucket < span.buckets:
                bins[int(bucket)][int(step)] = int(n)
        return {"p50": [_percentile(one, 0.5) for one in bins], "p95": [_percentile(one, 0.95) for one in bins]}

    async def read_cost(self, tenant: str, span: TimeBuckets) -> dict[str, list[float]]:
        """Dollars and tokens of each bucket."""
        found = await self._db.read(lambda tx: tx.rows(_COST, tenant=tenant, start=span.start, width=span.width))
        dollars, tokens = [0.0] * span.buckets, [0.0] * span.buckets
        for bucket, cost, used in found:
            if 0 <= bucket < span.buckets:
                dollars[int(bucket)], tokens[int(bucket)] = float(cost) / 1e9, float(used)
        return {"dollars": dollars, "tokens": tokens}

    async def find_tasks_by_prefix(self, tenant: str, prefix: str, limit: int) -> list[tuple[Any, ...]]:
        """Tasks whose id begins with some text."""
        query = {"tenant": tenant, "prefix": prefix, "length": len(prefix), "limit": limit}
        return list(await self._db.read(lambda tx: tx.rows(_TASKS_BY_PREFIX, **query)))

    async def read_task_input(self, tenant: str, task_id: str, max_characters: int) -> str | None:
        """The beginning of what a task was given, as JSON text."""
        row = await self._db.read(lambda tx: tx.row(_INPUT, tenant=tenant, task_id=task_id, most=max_characters))
        return None if row is None else str(row[0])

    async def read_agent_names(self, tenant: str) -> dict[str, str]:
        """Of the agents, by id."""
        return {
            str(row[0]): str(row[1]) for row in await self._db.read(lambda tx: tx.rows(_AGENT_NAMES, tenant=tenant))
        }

    async def count_events_after(self, after: str) -> list[EventCount]:
        """What the run log has had since an event, 5,000 events at most."""
        return [EventCount(*row) for row in await self._db.read(lambda tx: tx.rows(_EVENT_COUNTS, after=after))]


def _minutes(tx: Tx, tenant: str, status: str, span: TimeBuckets) -> list[tuple[Any, ...]]:
    """Rows of (bucket, status, count)."""
    found = tx.rows(_MINUTES, tenant=tenant, status=status, start=span.start, width=span.width)
    return [(bucket, status, n) for bucket, n in found]


def _percentile(bins: dict[int, int], q: float) -> float | None:
    total = sum(bins.values())
    seen = 0
    for step in sorted(bins):
        seen += bins[step]
        if seen >= q * total:
            return float(DURATION_BOUNDS_US[min(step, len(DURATION_BOUNDS_US) - 1)] / SECOND)
    return None


INPUT_PREFIX_CHARACTERS = 200
"""Characters of an input."""
_NEWEST_INPUTS = Sql(
    f"""select task_id, substr(input, 1, {INPUT_PREFIX_CHARACTERS}) from tasks where tenant = :tenant
    order by created_at desc, task_id desc limit :limit"""
)


def read_newest_inputs(tx: Tx, tenant: str, limit: int) -> dict[str, str]:
    """The beginning of the input of each of the newest tasks, as JSON text, by the task's id."""
    return {str(row[0]): str(row[1]) for row in tx.rows(_NEWEST_INPUTS, tenant=tenant, limit=limit)}
