"""The errors of tasks that are not in the database: archived by `domains/retention`, or never there."""

from __future__ import annotations

from stentor.auth.principal import Principal
from stentor.core.db import Tx
from stentor.core.errors import NotFound
from stentor.domains.provenance import archived_store
from stentor.domains.tasks.visibility_queries import visibility_key


def missing_task(tx: Tx, principal: Principal, task_id: str) -> NotFound:
    """Return the error for a task that is not in the database: TaskArchived if the caller may know that it was."""
    # The agent of the task is not known any more, so a bound key learns this of the tasks that it submitted.
    return _missing_task(tx, principal.tenant, task_id, visibility_key(principal))


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
