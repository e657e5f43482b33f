"""Lists and counts. Counts are kept per state and agent, for each hour and for all, so that no list scans the table."""

from __future__ import annotations

from typing import Any

from stentor.core.clock import HOUR
from stentor.core.db import CounterTable, Sql, Tx
from stentor.domains.tasks.model import Filter, Summary

_COUNTS = CounterTable(
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
            tx.increment(_COUNTS, (tenant, hour, status, agent_id or ""), by)


def page(tx: Tx, tenant: str, wanted: Filter, limit: int, offset: int) -> list[Summary]:
    """Newest first."""
    params = _params(tenant, wanted)
    names = tuple(name for name in _FRAGMENTS if getattr(wanted, name) is not None)
    if wanted.key is not None:
        sql = _statements.get(("own", *names)) or _statements.setdefault(("own", *names), _own_page_sql(names))
        most = limit + offset
        return [Summary(*row) for row in tx.rows(sql, **params, key=wanted.key, most=most, limit=limit, offset=offset)]
    sql = _statements.get(names) or _statements.setdefault(names, _page_sql(names))
    return [Summary(*row) for row in tx.rows(sql, **params, limit=limit, offset=offset)]


def total(tx: Tx, tenant: str, wanted: Filter) -> int:
    """How many match, whatever the page: whole hours from the counts, the first part of one by index. For one key they
    are counted one by one, because no counts are kept by key.
    """
    if wanted.key is not None:
        return _own_total(tx, tenant, wanted)
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


_COLUMNS = "task_id, status, assigned_agent, type, created_at, completion_time"
_SUBMITTED = "submitted_by = :key"
_ASSIGNED = "assigned_agent in (select agent_id from agents where tenant = :tenant and key_name = :key)"


def _own_page_sql(names: tuple[str, ...]) -> Sql:
    """Two parts, because each of them has an index, and a condition with `or` has none."""
    where = " and ".join(["tenant = :tenant", *(_FRAGMENTS[name] for name in names)])
    newest = "order by created_at desc, task_id desc limit"
    parts = [
        f"select * from (select {_COLUMNS} from tasks where {own} and {where} {newest} :most) as part{number}"
        for number, own in enumerate((_SUBMITTED, _ASSIGNED))
    ]
    return Sql(f"select {_COLUMNS} from ({' union '.join(parts)}) as own {newest} :limit offset :offset")


def _own_total(tx: Tx, tenant: str, wanted: Filter) -> int:
    names = tuple(name for name in ("status", "agent_id", "created_after") if getattr(wanted, name) is not None)
    params = _params(tenant, wanted) | {"key": wanted.key}
    head = "select count(*) from tasks where"
    submitted = _number(tx, ("submitted", *names), f"{head} {_SUBMITTED} and", _FRAGMENTS, params)
    assigned = f"{head} {_ASSIGNED} and submitted_by <> :key and"
    return submitted + _number(tx, ("assigned", *names), assigned, _FRAGMENTS, params)


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
