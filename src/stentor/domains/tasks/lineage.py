"""Who led to a task: its submitter and those of its ancestors."""

from __future__ import annotations

from stentor.core.db import Sql, Tx

DEPTH = 32
"""Ancestors that are followed. The parent of a task is what its submitter says, so a chain may be long, or a circle."""
_ABOVE = Sql("select submitted_by, parent_task_id from tasks where tenant = :tenant and task_id = :task_id")


def submitters(tx: Tx, tenant: str, submitted_by: str, parent_task_id: str | None) -> frozenset[str] | None:
    """The names of the keys that submitted a task and its ancestors; None when there are too many to tell.

    A parent that does not exist ends the chain.
    """
    names, seen = {submitted_by}, set[str]()
    while parent_task_id is not None and parent_task_id not in seen:
        if len(seen) == DEPTH:
            return None
        seen.add(parent_task_id)
        row = tx.row(_ABOVE, tenant=tenant, task_id=parent_task_id)
        if row is None:
            break
        names.add(row[0])
        parent_task_id = row[1]
    return frozenset(names)
