"""Which tasks a caller sees. Keys of agents see their own, every other key the tenant's."""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.domains.registry import store as agents
from stentor.domains.tasks.model import Task


def key_of(principal: Principal) -> str | None:
    """The key whose tasks alone are shown; None for a caller that sees all of its tenant."""
    return principal.name if principal.is_bound_agent else None


def sees(tx: Tx, principal: Principal, task: Task) -> bool:
    """Whether the task is one that the caller submitted, or that is assigned to an agent of its key. Fails closed."""
    key = key_of(principal)
    if key is None or task.submitted_by == key:
        return task.tenant == principal.tenant
    agent = agents.find(tx, principal.tenant, task.assigned_agent) if task.assigned_agent else None
    return agent is not None and agent.key_name == key


def sees_record(tx: Tx, principal: Principal, task: Task | None) -> bool:
    """The same for the run log of a task whose row may be gone: then nobody knows whose it was."""
    return key_of(principal) is None if task is None else sees(tx, principal, task)
