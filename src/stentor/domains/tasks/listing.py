"""Lists and counts. Counts are kept per state and agent, for each hour and for all, so that no list scans the table."""

from __future__ import annotations

from typing import Any

from stentor.core.clock import HOUR
from stentor.core.db import Sql, Tally, Tx
from stentor.domains.tasks.model import Filter, Summary

_COUNTS = Tally(
    ("tenant", "hour", "status", "agent_id"),
    Sql(
        """insert into task_counts (tenant, hour, status, agent_id, n) values (:tenant, :hour, :status, :agent_id, :n)
        on conflict (tenant, hour, status, agent_id) do update set n = task_counts.n + excluded.n"""
    ),
)
EVER = -1
"""The "hour" of the count over all hours."""
_FRAGMENTS = {
    "status": "status = :status",
    "agent_id": "assigned_agent = :agent_id",
    "created_after": "created_at > :created_after",
    "before": "(created_at, task_id) < (:before_time, :before_id)",
}
_COUNT_FRAGMENTS = {
    "status": "status = :status",
    "agent_id": "agent_id = :agent_id",
    "created_after": "hour > :hour",
}
_statements: dict[tuple[str, ...], Sql] = {}


def count(tx: Tx, tenant: str, created_at: int, *changes: tuple[str, str | None, int]) -> None:
    """Add to the counts, each change a (status, agent, by)."""
    for status, agent_id, by in changes:
        for hour in (EVER, created_at // HOUR):
            tx.add(_COUNTS, (tenant, hour, status, agent_id or ""), by)


def page(tx: Tx, tenant: str, wanted: Filter, limit: int, offset: int) -> list[Summary]:
    """Newest first."""
    params = _params(tenant, wanted)
    names = tuple(name for name in _FRAGMENTS if getattr(wanted, name) is not None)
    sql = _statements.get(names) or _statements.setdefault(names, _page_sql(names))
    return [Summary(*row) for row in tx.rows(sql, **params, limit=limit, offset=offset)]


def total(tx: Tx, tenant: str, wanted: Filter) -> int:
    """How many match, whatever the page: whole hours from the counts, the first part of one by index."""
    params = _params(tenant, wanted)
    names = tuple(name for name in _COUNT_FRAGMENTS if getattr(wanted, name) is not None)
    head = "select coalesce(sum(n), 0) from task_counts"
    if wanted.created_after is None:
        found = _number(tx, ("ever", *names), f"{head} where hour = {EVER} and", _COUNT_FRAGMENTS, params)
    else:
        found = _number(tx, ("hours", *names), f"{head} where", _COUNT_FRAGMENTS, params)
        params["hour_end"] = (wanted.created_after // HOUR + 1) * HOUR
        fragments = {
            **_FRAGMENTS,
            "created_after": _FRAGMENTS["created_after"] + " and created_at < :hour_end",
        }
        found += _number(tx, ("part", *names), "select count(*) from tasks where", fragments, params)
    return found


def _number(tx: Tx, key: tuple[str, ...], head: str, fragments: dict[str, str], params: dict[str, Any]) -> int:
    sql = _statements.get(key)
    if sql is None:
        sql = _statements[key] = Sql(" and ".join([f"{head} tenant = :tenant", *(fragments[n] for n in key[1:])]))
    row = tx.row(sql, **params)
    return int(row[0]) if row else 0


def _page_sql(names: tuple[str, ...]) -> Sql:
    where = " and ".join(["tenant = :tenant", *(_FRAGMENTS[name] for name in names)])
    return Sql(
        "select task_id, status, assigned_agent, type, created_at, completion_time from tasks "
        f"where {where} order by created_at desc, task_id desc limit :limit offset :offset"
    )


def _params(tenant: str, wanted: Filter) -> dict[str, Any]:
    time, task_id = wanted.before or (0, "")
    after = wanted.created_after or 0
    return {
        "tenant": tenant,
        "status": wanted.status,
        "agent_id": wanted.agent_id,
        "created_after": after,
        "hour": max(EVER, after // HOUR),
        "before_time": time,
        "before_id": task_id,
    }
