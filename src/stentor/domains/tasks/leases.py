"""Who may write to a task in execution: the worker that holds its lease, named by the epoch of its claim."""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import Forbidden, LeaseLost
from stentor.domains.registry import authorization
from stentor.domains.registry import store as agent_store
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.tasks.access import check_visible, require_visible_task
from stentor.domains.tasks.model import Task


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
