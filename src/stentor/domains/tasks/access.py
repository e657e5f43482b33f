"""Finds a task for a caller, or raises: who may read it, who may approve it, and whether it was archived.

Also who may write to a task in execution: the worker that holds its lease, named by the epoch of its claim.
"""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Forbidden, LeaseLost, NotFound
from stentor.domains.provenance import archived_store
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agent_store
from stentor.domains.registry import store as agents
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks import model, store
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.reading import visibility_queries


def require_task(tx: Tx, tenant: str, task_id: str) -> Task:
    """Return a task. Raises NotFound, also for an invalid id: empty, too long, or with a NUL character.

    Raises TaskArchived for one that has left the database.
    """
    task = store.find(tx, tenant, require_task_id(task_id))
    if task is None:
        raise missing_task_of_tenant(tx, tenant, task_id)
    return task


def require_task_id(text: str) -> str:
    """Return an id that a task may have. Raises NotFound."""
    # PostgreSQL rejects a NUL character in a text, which would be an internal error.
    if not 0 < len(text) <= model.MAX_ID_LENGTH or "\0" in text:
        raise NotFound("No task has this id.")
    return text


def require_visible_task(tx: Tx, principal: Principal, task_id: str) -> Task:
    """Return a task. Raises NotFound, also for a task that the caller may not read, and TaskArchived."""
    return check_visible(tx, principal, store.find(tx, principal.tenant, require_task_id(task_id)), task_id)


def check_visible(tx: Tx, principal: Principal, task: Task | None, task_id: str) -> Task:
    """Return a task that was read already. Raises NotFound like `require_visible_task`."""
    if task is None:
        raise missing_task(tx, principal, task_id)
    if not visibility_queries.can_see(tx, principal, task):
        raise NotFound("No task has this id.")
    return task


def check_approver(tx: Tx, principal: Principal, task: Task) -> None:
    """Raise Forbidden for an agent's key that submitted the task or one of its ancestors, or that acts for its agent.

    Fails closed: without an agent, or with too many ancestors to check, only a person's key may approve.
    """
    if principal.is_person:
        return
    agent = agents.find(tx, task.tenant, task.assigned_agent) if task.assigned_agent else None
    submitters = visibility_queries.find_submitters(tx, task.tenant, task.submitted_by, task.parent_task_id)
    is_own = submitters is None or principal.name in submitters
    if is_own or agent is None or authorization.can_work_as(principal, agent):
        raise Forbidden(
            "A key may not approve a task if it submitted the task or one of its ancestors, or would execute it. Use a "
            "person's key."
        )


def missing_task(tx: Tx, principal: Principal, task_id: str) -> NotFound:
    """Return the error for a task that is not in the database: TaskArchived if the caller may know that it was."""
    # The agent of the task is no longer known, so a bound key is told this only about tasks that it submitted.
    return _missing_task(tx, principal.tenant, task_id, visibility_queries.visibility_key(principal))


def missing_task_of_tenant(tx: Tx, tenant: str, task_id: str) -> NotFound:
    """Return the error for a missing task to a caller that may read all tasks of the tenant."""
    return _missing_task(tx, tenant, task_id, None)


def _missing_task(tx: Tx, tenant: str, task_id: str, key: str | None) -> NotFound:
    task = archived_store.find_task(tx, tenant, task_id)
    if task is None or key not in (None, task.submitted_by):
        return NotFound("No task has this id.")
    return archived_store.archived_error("The task", task_id, task.archive, task.archived_at)


def is_archived(tx: Tx, tenant: str, task_id: str) -> bool:
    return archived_store.find_task(tx, tenant, task_id) is not None


def require_held(tx: Tx, agents: AgentCache, principal: Principal, task_id: str, epoch: int) -> Task:
    """Return the task of a claim that the caller holds. Raises NotFound, Forbidden and LeaseLost."""
    task = require_writable(tx, agents, principal, task_id)
    check_epoch(task, epoch)
    return task


def check_held(tx: Tx, agents: AgentCache, principal: Principal, task: Task | None, task_id: str, epoch: int) -> Task:
    """Return a task that was read already if the caller holds its claim. Raises like `require_held`."""
    task = _check_writable(tx, agents, principal, check_visible(tx, principal, task, task_id))
    check_epoch(task, epoch)
    return task


def require_writable(tx: Tx, agents: AgentCache, principal: Principal, task_id: str) -> Task:
    """Return a task whose agent the caller acts for. Raises NotFound, Forbidden, and LeaseLost if it is quarantined."""
    return _check_writable(tx, agents, principal, require_visible_task(tx, principal, task_id))


def _check_writable(tx: Tx, agents: AgentCache, principal: Principal, task: Task) -> Task:
    agent_id = task.assigned_agent or ""
    # Another process may have just registered it.
    agent = agents.get(principal.tenant, agent_id) or agent_store.find(tx, principal.tenant, agent_id)
    # The agent was deleted: only an administrator may write.
    if not (principal.is_person if agent is None else authorization.can_act_for(principal, agent)):
        raise Forbidden("This key may not act for the agent of this task.")
    # Only of workers: what runs inside the service is ended by its driver, which still records the end.
    is_out = agent is not None and agent.runtime.kind == "worker" and agent.status == "quarantined"
    if is_out and task.status == "executing":
        # The reconciler fails the task when the lease ends, which nothing renews any more.
        message = "The agent is quarantined: nothing of what it does is accepted, and its tasks fail."
        raise LeaseLost(message, {"status": task.status, "epoch": task.epoch, "agent_status": "quarantined"})
    return task


def check_epoch(task: Task, epoch: int) -> None:
    """Raise LeaseLost unless the task is being executed under this claim."""
    if task.status != "executing" or task.epoch != epoch:
        details = {"status": task.status, "epoch": task.epoch}
        raise LeaseLost("You no longer hold the lease of this task.", details)
