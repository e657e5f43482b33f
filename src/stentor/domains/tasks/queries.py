"""Lists and counts. Counts are kept per state and agent, for each hour and for all, so that no list scans the table.

Which tasks a caller sees. Keys of agents see their own, every other key the tenant's.

Who led to a task: its submitter and those of its ancestors.
"""

from __future__ import annotations

from typing import Any

from stentor.auth.principal import Principal
from stentor.core.clock import HOUR
from stentor.core.db import CounterTable, Sql, Tx
from stentor.domains.registry import store as agents
from stentor.domains.tasks.model import Task, TaskFilter, TaskSummary

_COUNTS = CounterTable(
    ("tenant", "hour", "status", "agent_id"),
    Sql(
        """insert into task_counts (tenant, hour, status, agent_id, n) values (:tenant, :hour, :status, :agent_id, :n)
        on conflict (tenant, hour, status, agent_id) do update set n = task_counts.n + excluded.n"""
    ),
)
ALL_HOURS = -1
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


def update_counts(tx: Tx, tenant: str, created_at: int, *changes: tuple[str, str | None, int]) -> None:
    """Add to the counts, each change a (status, agent, by)."""
    for status, agent_id, by in changes:
        for hour in (ALL_HOURS, created_at // HOUR):
            tx.increment(_COUNTS, (tenant, hour, status, agent_id or ""), by)


def read_page(tx: Tx, tenant: str, wanted: TaskFilter, limit: int, offset: int) -> list[TaskSummary]:
    """Newest first."""
    params = _params(tenant, wanted)
    names = tuple(name for name in _FRAGMENTS if getattr(wanted, name) is not None)
    if wanted.key is not None:
        sql = _statements.get(("own", *names)) or _statements.setdefault(("own", *names), _own_page_sql(names))
        most = limit + offset
        return [
            TaskSummary(*row) for row in tx.rows(sql, **params, key=wanted.key, most=most, limit=limit, offset=offset)
        ]
    sql = _statements.get(names) or _statements.setdefault(names, _page_sql(names))
    return [TaskSummary(*row) for row in tx.rows(sql, **params, limit=limit, offset=offset)]


def count_tasks(tx: Tx, tenant: str, wanted: TaskFilter) -> int:
    """How many match, whatever the page: whole hours from the counts, the first part of one by index. For one key they
    are counted one by one, because no counts are kept by key.
    """
    if wanted.key is not None:
        return _own_total(tx, tenant, wanted)
    params = _params(tenant, wanted)
    names = tuple(name for name in _COUNT_FRAGMENTS if getattr(wanted, name) is not None)
    head = "select coalesce(sum(n), 0) from task_counts"
    if wanted.created_after is None:
        found = _number(tx, ("ever", *names), f"{head} where hour = {ALL_HOURS} and", _COUNT_FRAGMENTS, params)
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


def _own_total(tx: Tx, tenant: str, wanted: TaskFilter) -> int:
    names = tuple(name for name in ("status", "agent_id", "created_after") if getattr(wanted, name) is not None)
    params = _params(tenant, wanted) | {"key": wanted.key}
    head = "select count(*) from tasks where"
    submitted = _number(tx, ("submitted", *names), f"{head} {_SUBMITTED} and", _FRAGMENTS, params)
    assigned = f"{head} {_ASSIGNED} and submitted_by <> :key and"
    return submitted + _number(tx, ("assigned", *names), assigned, _FRAGMENTS, params)


def _params(tenant: str, wanted: TaskFilter) -> dict[str, Any]:
    time, task_id = wanted.before or (0, "")
    after = wanted.created_after or 0
    return {
        "tenant": tenant,
        "status": wanted.status,
        "agent_id": wanted.agent_id,
        "created_after": after,
        "hour": max(ALL_HOURS, after // HOUR),
        "before_time": time,
        "before_id": task_id,
    }


def visibility_key(principal: Principal) -> str | None:
    """The key whose tasks alone are shown; None for a caller that sees all of its tenant."""
    return principal.name if principal.is_bound_agent else None


def can_see(tx: Tx, principal: Principal, task: Task) -> bool:
    """Whether the task is one that the caller submitted, or that is assigned to an agent of its key. Fails closed."""
    key = visibility_key(principal)
    if key is None or task.submitted_by == key:
        return task.tenant == principal.tenant
    agent = agents.find(tx, principal.tenant, task.assigned_agent) if task.assigned_agent else None
    return agent is not None and agent.key_name == key


def can_see_record(tx: Tx, principal: Principal, task: Task | None) -> bool:
    """The same for the run log of a task whose row may be gone: then nobody knows whose it was."""
    return visibility_key(principal) is None if task is None else can_see(tx, principal, task)


MAX_ANCESTORS = 32
"""Ancestors that are followed. The parent of a task is what its submitter says, so a chain may be long, or a circle."""
_ABOVE = Sql("select submitted_by, parent_task_id from tasks where tenant = :tenant and task_id = :task_id")


def find_submitters(tx: Tx, tenant: str, submitted_by: str, parent_task_id: str | None) -> frozenset[str] | None:
    """The names of the keys that submitted a task and its ancestors; None when there are too many to tell.

    A parent that does not exist ends the chain.
    """
    names, seen = {submitted_by}, set[str]()
    while parent_task_id is not None and parent_task_id not in seen:
        if len(seen) == MAX_ANCESTORS:
            return None
        seen.add(parent_task_id)
        row = tx.row(_ABOVE, tenant=tenant, task_id=parent_task_id)
        if row is None:
            break
        names.add(row[0])
        parent_task_id = row[1]
    return frozenset(names)
