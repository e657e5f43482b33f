"""Counts of tasks, for the service itself and its alerts, and single facts of a task.

`list_queries` has the lists, `store` the rows themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from stentor.core import jsontext
from stentor.core.clock import HOUR
from stentor.core.db import CounterTable, RowsSql, Sql, Tx
from stentor.core.errors import NotFound

_COUNTS = CounterTable("task_counts", ("tenant", "hour", "status", "agent_id"))
MAX_COUNTED = 1_000
"""Tasks that a count for an alert looks at; more are counted as this many."""
MAX_CHOICES = 200
"""Types or submitters that a list of them has."""
ALL_HOURS = -1
"""The "hour" of the count over all hours."""
_COUNT_BY_STATUS = Sql("select status, sum(n) from task_counts where tenant = :tenant and hour = -1 group by status")
# Tenant by tenant: the table has a row for every hour and its key begins with the tenant, so that one query over all
# tenants would scan it.
_NEXT_TENANT = Sql("select min(tenant) from task_counts where tenant > :after")
_HAS_GRADE = Sql("select 1 from task_grades where tenant = :tenant limit 1")
_WHOLE_INPUT = Sql("select input from tasks where tenant = :tenant and task_id = :task_id")
_FIND_INPUT = Sql("select substr(input, 1, :length) from tasks where tenant = :tenant and task_id = :task_id")
_COUNT_OUTCOMES = Sql(
    f"""select coalesce(assigned_agent, '') as agent_id, sum(case when status = 'completed' then 0 else 1 end), count(*)
    from (
        select assigned_agent, status, outcome_class, start_time, completion_time from tasks where tenant = :tenant
        order by created_at desc, task_id desc limit {MAX_COUNTED}
    ) as newest
    where (status in ('completed', 'failed') or outcome_class = 'timeout' and start_time is not null)
        and completion_time >= :since
    group by agent_id order by agent_id"""
)
_OLDEST = Sql(
    f"""select count(*), min(waits_since) from (
        select coalesce(queued_at, created_at) as waits_since from tasks where tenant = :tenant and status = :status
            and parked = 0 order by created_at, task_id limit {MAX_COUNTED}
    ) as oldest"""
)
_COUNT_RUNNING = Sql(
    """select count(*) from tasks
    where tenant = :tenant and assigned_agent = :agent_id and status in ('executing', 'waiting')"""
)
_IS_EXECUTING = Sql(
    """select 1 from tasks
    where tenant = :tenant and assigned_agent = :agent_id and status = 'executing' limit 1"""
)
_LIST_EXECUTING = RowsSql(
    ("tenant", "task_id"),
    """select tasks.tenant, tasks.task_id from given join tasks
        on tasks.tenant = given.tenant and tasks.task_id = given.task_id where tasks.status = 'executing'""",
)
_COUNT_OPEN = Sql(
    """select count(*) from tasks where tenant = :tenant and assigned_agent = :agent_id
    and status in ('pending_approval', 'queued', 'executing', 'waiting')"""
)
_NEXT_VALUE = {
    name: Sql(f"select min({name}) from tasks where tenant = :tenant and {name} > :after")
    for name in ("type", "submitted_by")
}


def update_counts(tx: Tx, tenant: str, created_at: int, *changes: tuple[str, str | None, int]) -> None:
    """Add to the counts; each change is (status, agent, amount)."""
    for status, agent_id, amount in changes:
        # By the hour of the submission, whatever the change, so that the numbers of an hour never become negative.
        for hour in (ALL_HOURS, created_at // HOUR):
            tx.increment(_COUNTS, (tenant, hour, status, agent_id or ""), amount)


def count_by_status(tx: Tx, tenant: str) -> dict[str, int]:
    """Count all tasks that there ever were by their present status; a status without tasks is left out."""
    return {str(status): int(n) for status, n in tx.rows(_COUNT_BY_STATUS, tenant=tenant) if n}


def iter_tenants(tx: Tx) -> Iterator[str]:
    """Yield the tenants that have tasks."""
    return tx.iter_distinct(_NEXT_TENANT)


def count_outcomes(tx: Tx, tenant: str, since: int) -> dict[str, tuple[int, int]]:
    """Return how many of the newest tasks failed and ended since a time (microseconds), by agent id.

    A task that ran longer than its timeout failed too. Tasks that no agent got are under the empty id.
    """
    rows = tx.rows(_COUNT_OUTCOMES, tenant=tenant, since=since)
    return {str(agent_id): (int(failed), int(ended)) for agent_id, failed, ended in rows}


def find_oldest(tx: Tx, tenant: str, status: str) -> tuple[int, int | None]:
    """Return how many tasks have a status, at most MAX_COUNTED, and since when the oldest waits (microseconds).

    Without those that wait for a slot of their limit.
    """
    count, since = tx.rows(_OLDEST, tenant=tenant, status=status)[0]
    return int(count), None if since is None else int(since)


def count_running(tx: Tx, tenant: str, agent_id: str) -> int:
    """Return how many tasks of an agent are executing or waiting."""
    return int(tx.rows(_COUNT_RUNNING, tenant=tenant, agent_id=agent_id)[0][0])


def count_open(tx: Tx, tenant: str, agent_id: str) -> int:
    """Return how many tasks of an agent have not ended."""
    return int(tx.rows(_COUNT_OPEN, tenant=tenant, agent_id=agent_id)[0][0])


def is_executing(tx: Tx, tenant: str, agent_id: str) -> bool:
    """Return whether an agent executes a task."""
    return bool(tx.rows(_IS_EXECUTING, tenant=tenant, agent_id=agent_id))


def find_executing(tx: Tx, tasks: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the tasks, tenant and id, that are executing."""
    return {(str(tenant), str(task_id)) for tenant, task_id in tx.rows_for(_LIST_EXECUTING, sorted(tasks))}


def read_input(tx: Tx, tenant: str, task_id: str, length: int) -> str | None:
    """Return the first characters of the JSON input of a task."""
    row = tx.row(_FIND_INPUT, tenant=tenant, task_id=task_id, length=length)
    return None if row is None else str(row[0])


def has_grade(tx: Tx, tenant: str) -> bool:
    """Return whether a task of the tenant was ever graded."""
    return tx.row(_HAS_GRADE, tenant=tenant) is not None


def read_whole_input(tx: Tx, tenant: str, task_id: str) -> Any:
    """Return the input of a task. Raises NotFound."""
    row = tx.row(_WHOLE_INPUT, tenant=tenant, task_id=task_id)
    if row is None:
        raise NotFound("No task has this id.")
    return jsontext.decode(row[0].encode())


def list_types(tx: Tx, tenant: str) -> list[str]:
    """Return the types of all tasks, in their order."""
    return list(islice(tx.iter_distinct(_NEXT_VALUE["type"], tenant=tenant), MAX_CHOICES))


def list_submitters(tx: Tx, tenant: str) -> list[str]:
    """Return the names of the keys that submitted tasks, in their order."""
    return list(islice(tx.iter_distinct(_NEXT_VALUE["submitted_by"], tenant=tenant), MAX_CHOICES))
