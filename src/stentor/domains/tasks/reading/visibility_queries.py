"""Who may read a task: a key with the role agent those of its own agents, every other key all of its tenant.

Also who submitted a task and its ancestors, which tells whether somebody judges work of their own.
"""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core.db import Sql, Tx
from stentor.domains.registry import store as agents
from stentor.domains.tasks.model import Task

MAX_ANCESTORS = 32
"""Ancestors that are followed: a chain can be long, and one of an earlier version a cycle."""
SUBMITTED = "submitted_by = :key"
OWN_AGENTS = "select agent_id from agents where tenant = :tenant and key_name = :key"
ASSIGNED = f"assigned_agent in ({OWN_AGENTS})"
# The cast is for PostgreSQL, which cannot tell the type of a parameter that is only compared with null.
VISIBLE = f"(cast(:key as text) is null or {SUBMITTED} or {ASSIGNED})"
_FIND_PARENT = Sql("select submitted_by, parent_task_id from tasks where tenant = :tenant and task_id = :task_id")


def visibility_key(principal: Principal) -> str | None:
    """Return the only key whose tasks the caller may read; None if it may read all tasks of its tenant."""
    return principal.name if principal.is_bound_agent else None


def can_see(tx: Tx, principal: Principal, task: Task) -> bool:
    """Return whether the caller may read the task: it submitted it, or the task is assigned to an agent of its key."""
    key = visibility_key(principal)
    if key is None or task.submitted_by == key:
        return task.tenant == principal.tenant
    agent = agents.find(tx, principal.tenant, task.assigned_agent) if task.assigned_agent else None
    return agent is not None and agent.key_name == key


def can_see_record(tx: Tx, principal: Principal, task: Task | None) -> bool:
    """Return whether the caller may read the run log of a task; without the row only a key that reads all tasks may."""
    return visibility_key(principal) is None if task is None else can_see(tx, principal, task)


def find_submitters(tx: Tx, tenant: str, submitted_by: str, parent_task_id: str | None) -> frozenset[str] | None:
    """Return the names of the keys that submitted a task and its ancestors; None if there are too many ancestors.

    A parent that does not exist ends the chain.
    """
    names, seen = {submitted_by}, set[str]()
    while parent_task_id is not None and parent_task_id not in seen:
        if len(seen) == MAX_ANCESTORS:
            return None
        seen.add(parent_task_id)
        row = tx.row(_FIND_PARENT, tenant=tenant, task_id=parent_task_id)
        if row is None:
            break
        names.add(row[0])
        parent_task_id = row[1]
    return frozenset(names)
