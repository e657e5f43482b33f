"""SQL of model usage by day: sums of earlier calls in `llm_usage`, and those of the newest calls at each read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stentor.core.clock import DAY, MINUTE
from stentor.core.db import CounterTable, Sql, Tx
from stentor.core.db.sql import Row

MARGIN = 10 * MINUTE
"""Calls newer than this are not in the stored sums: a call has the time at which its transaction began, and others
with an earlier time may commit later."""
_SUMS = ("requests", "input_tokens", "output_tokens", "cost", "estimated", "unpriced")
# 86,400,000,000 microseconds are a day: SQLite and PostgreSQL share no functions for dates.
_SUM_CALLS = """select provider, model, happened_at / 86400000000 as day, count(*), sum(input_tokens),
        sum(output_tokens), coalesce(sum(cost), 0), sum(estimated), sum(case when cost is null then 1 else 0 end)
    from llm_calls where tenant = :tenant and happened_at >= {start} and happened_at < :end"""
_GROUPED = "group by provider, model, happened_at / 86400000000"
_SUM_NEW = Sql(f"{_SUM_CALLS.format(start=':start')} {_GROUPED}")
_LATER_OF_BOTH = """coalesce((select case when summed_until > :start then summed_until else :start end
    from llm_usage_marks where tenant = :tenant), :start)"""
# One statement, so that no call is counted twice or not at all while another process stores sums.
_USAGE = Sql(
    f"""select provider, model, day, {", ".join(_SUMS)} from llm_usage
    where tenant = :tenant and day >= :first_day and day < :end_day and (:provider = '' or provider = :provider)
    union all {_SUM_CALLS.format(start=_LATER_OF_BOTH)} and (:provider = '' or provider = :provider) {_GROUPED}
    order by 3, 1, 2"""
)
_NEXT_TENANT = Sql("select min(tenant) from llm_calls where tenant > :after")
_READ_MARK = Sql("select summed_until from llm_usage_marks where tenant = :tenant")
_FIRST_CALL = Sql(
    """select happened_at from llm_calls where tenant = :tenant and happened_at >= :start
    order by happened_at limit 1"""
)
_INSERT_MARK = Sql("insert into llm_usage_marks (tenant, summed_until) values (:tenant, 0) on conflict do nothing")
_MOVE_MARK = Sql("update llm_usage_marks set summed_until = :end where tenant = :tenant and summed_until = :start")
_DELETE_FROM = Sql("delete from llm_usage where tenant = :tenant and day >= :day")
_TABLE = CounterTable("llm_usage", ("tenant", "day", "provider", "model"), _SUMS)


class UsageRow(msgspec.Struct, frozen=True):
    """Calls of a model on one day, counted in days since 1970; `unpriced` counts those without a known price."""

    provider: str
    model: str
    day: int
    requests: int
    input_tokens: int
    output_tokens: int
    cost: int
    estimated: int
    unpriced: int


class NewUsage(msgspec.Struct, frozen=True):
    """The sums of the calls from `start` (included) to `end` (excluded), in microseconds."""

    start: int
    end: int
    rows: list[UsageRow]


def read_usage(tx: Tx, tenant: str, start: int, end: int, provider: str) -> list[UsageRow]:
    """Return usage by provider, model and day from `start` (included) to `end` (excluded), both starts of days.

    An empty provider means all. A model may have two rows for a day.
    """
    days = {"first_day": start // DAY, "end_day": end // DAY}
    return _parse_rows(tx.rows(_USAGE, tenant=tenant, start=start, end=end, provider=provider, **days))


def iter_tenants(tx: Tx) -> Iterator[str]:
    """Yield the tenants that have model calls."""
    return tx.iter_distinct(_NEXT_TENANT)


def read_new_usage(tx: Tx, tenant: str) -> NewUsage | None:
    """Return the sums of the oldest calls that are not in the stored ones, at most a day of them, or None."""
    row = tx.row(_READ_MARK, tenant=tenant)
    mark, last = (int(row[0]) if row else 0), tx.now - MARGIN
    if mark > last:
        # The clock was set back, so new calls would be older than the mark: sum this day again.
        return NewUsage(mark, last // DAY * DAY, [])
    first = tx.row(_FIRST_CALL, tenant=tenant, start=mark)
    if first is None or first[0] >= last:
        return None
    end = min(last, (int(first[0]) // DAY + 1) * DAY)
    return NewUsage(mark, end, _parse_rows(tx.rows(_SUM_NEW, tenant=tenant, start=mark, end=end)))


def add_usage(tx: Tx, tenant: str, usage: NewUsage) -> None:
    """Add sums to the stored ones, unless another process has done so."""
    tx.run(_INSERT_MARK, tenant=tenant)
    if not tx.run(_MOVE_MARK, tenant=tenant, start=usage.start, end=usage.end):
        return
    if usage.end < usage.start:
        tx.run(_DELETE_FROM, tenant=tenant, day=usage.end // DAY)
    for row in usage.rows:
        sums = (getattr(row, name) for name in _SUMS)
        tx.increment(_TABLE, (tenant, row.day, row.provider, row.model), *sums)


def _parse_rows(rows: Iterable[Row]) -> list[UsageRow]:
    return [UsageRow(row[0], row[1], *map(int, row[2:])) for row in rows]
