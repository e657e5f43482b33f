"""Pages and totals of the tasks that a key submitted or that are assigned to its agents, like those of `list_queries`.

An index yields the newest tasks of the submitter, and one those of an agent, but none yields those of all together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.tasks.reading import list_queries
from stentor.domains.tasks.reading.list_model import TaskFilter, TaskSummary
from stentor.domains.tasks.reading.list_queries import COLUMNS, NEWEST_FIRST, RANKED_COLUMNS
from stentor.domains.tasks.reading.visibility_queries import ASSIGNED, OWN_AGENTS

_AGENTS_PER_STATEMENT = (1, 8, 64)
"""Agents whose tasks one statement looks for agent by agent; a few sizes, so that there are only a few statements."""
_LIST_AGENTS = Sql(OWN_AGENTS)


class _Own(NamedTuple):
    """Where to look for the tasks of a key: the rarest condition, whose index is used, and then all conditions."""

    submitted: tuple[str, ...]
    """Empty if no task that the key submitted matches, except for those of its agents."""
    assigned: tuple[str, ...]
    agents: tuple[str, ...]
    """Parameters for the agents; empty if their tasks are not looked for agent by agent."""
    params: dict[str, Any]


def read_page(tx: Tx, tenant: str, task_filter: TaskFilter, limit: int, offset: int) -> list[TaskSummary]:
    """List the matching tasks, newest first."""
    agents = [str(row[0]) for row in tx.rows(_LIST_AGENTS, tenant=tenant, key=task_filter.key)]
    if (simple := _without_key(task_filter, agents)) is not None:
        return list_queries.read_page(tx, tenant, simple, limit, offset)
    if task_filter.agent_id is not None or not agents:
        # Tasks of other keys that belong to none of its agents.
        return []
    own = _find(tx, tenant, task_filter, agents, list_queries.condition_names(task_filter))
    key = ("own page", *own.submitted, "|", *own.assigned, "|", *own.agents)
    sql = list_queries.statement(key, lambda: _page_sql(own))
    rows = tx.rows(sql, **own.params, most=limit + offset, limit=limit, offset=offset)
    return [TaskSummary(*row) for row in rows]


def count_matching(tx: Tx, tenant: str, task_filter: TaskFilter) -> tuple[int, bool]:
    """Return how many tasks match on all pages, and whether all of them are counted."""
    agents = [str(row[0]) for row in tx.rows(_LIST_AGENTS, tenant=tenant, key=task_filter.key)]
    if (simple := _without_key(task_filter, agents)) is not None:
        return list_queries.count_matching(tx, tenant, simple)
    if task_filter.agent_id is not None or not agents:
        return 0, True
    names = list_queries.condition_names(task_filter, "before")
    own = _find(tx, tenant, task_filter, agents, names)
    if list_queries.are_counted(names):
        assigned = list_queries.count_kept(tx, own.assigned[1:], own.params), True
    else:
        sql = list_queries.statement(("own", *own.assigned, "|", *own.agents), lambda: _count_assigned_sql(own))
        assigned = list_queries.count_some(tx, sql, own.params)
    if not own.submitted:
        return assigned
    sql = list_queries.statement(("own", *own.submitted), lambda: _count_others_sql(own))
    others = list_queries.count_some(tx, sql, own.params)
    return assigned[0] + others[0], assigned[1] and others[1]


def _without_key(task_filter: TaskFilter, agents: list[str]) -> TaskFilter | None:
    """Return a filter without the key that matches the same tasks, or None if that takes more than one filter."""
    key = task_filter.key
    if key == task_filter.submitted_by or task_filter.agent_id in agents:
        return msgspec.structs.replace(task_filter, key=None)
    if task_filter.submitted_by is None and (task_filter.agent_id is not None or not agents):
        return msgspec.structs.replace(task_filter, key=None, submitted_by=key)
    return None


def _find(tx: Tx, tenant: str, task_filter: TaskFilter, agents: list[str], names: tuple[str, ...]) -> _Own:
    params = list_queries.filter_params(tenant, task_filter) | {"key": task_filter.key}
    submitted: tuple[str, ...] = ()
    if task_filter.submitted_by is None:
        params["submitted_by"] = task_filter.key
        submitted = (*names, "submitted_by")
        submitted = (list_queries.find_rarest(tx, submitted, params), *submitted)
    assigned = (*names, "own_agents")
    assigned = (list_queries.find_rarest(tx, assigned, params), *assigned)
    size = next((size for size in _AGENTS_PER_STATEMENT if size >= len(agents)), 0)
    if assigned[0] != "own_agents":
        size = 0
    # No agent has the empty id.
    given = {f"agent_{n}": agents[n] if n < len(agents) else "" for n in range(size)}
    return _Own(submitted, assigned, tuple(given), params | given)


def _page_sql(own: _Own) -> Sql:
    indexed, others = list_queries.split_conditions(*own.submitted) if own.submitted else ([], [])
    wheres = [" and ".join(indexed + others)] if own.submitted else []
    indexed, others = list_queries.split_conditions(*own.assigned)
    wheres += [" and ".join(conditions + others) for conditions in _by_agent(indexed, own.agents)]
    selects = [
        f"select * from (select {COLUMNS} from tasks where {where} {NEWEST_FIRST} :most) as part{number}"
        for number, where in enumerate(wheres)
    ]
    return Sql(f"select {COLUMNS} from ({' union '.join(selects)}) as own {NEWEST_FIRST} :limit offset :offset")


def _count_assigned_sql(own: _Own) -> Sql:
    indexed, others = list_queries.split_conditions(*own.assigned)
    limit = list_queries.MAX_TOTAL
    selects = [
        f"select * from (select created_at, {RANKED_COLUMNS} from tasks where {' and '.join(conditions)} "
        f"{NEWEST_FIRST} {limit}) as part{number}"
        for number, conditions in enumerate(_by_agent(indexed, own.agents))
    ]
    return list_queries.count_sql(f"{' union all '.join(selects)} limit {limit}", others)


def _count_others_sql(own: _Own) -> Sql:
    """Return the statement that counts what the key submitted and none of its agents has."""
    indexed, others = list_queries.split_conditions(*own.submitted)
    others.append(f"coalesce(assigned_agent, '') not in ({OWN_AGENTS})")
    return list_queries.count_sql(list_queries.newest_sql(indexed, others), others)


def _by_agent(conditions: list[str], agents: tuple[str, ...]) -> list[list[str]]:
    """Return the conditions for each agent by itself."""
    own = [[f"assigned_agent = :{name}" if text == ASSIGNED else text for text in conditions] for name in agents]
    return own or [conditions]
