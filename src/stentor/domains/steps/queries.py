"""Counts of steps for the dashboard."""

from __future__ import annotations

from stentor.core.db import Sql, Tx

_COUNT_DECISIONS = Sql(
    """select count(*) from task_steps join tasks
        on tasks.tenant = task_steps.tenant and tasks.task_id = task_steps.task_id
    where task_steps.tenant = :tenant and task_steps.state = 'started'
        and (tasks.status = 'waiting' and task_steps.kind = 'question'
            or tasks.status not in ('executing', 'queued') and task_steps.kind = 'effect')"""
)


def count_decisions(tx: Tx, tenant: str) -> int:
    """Count the questions and the unknown effects that wait for a person."""
    row = tx.row(_COUNT_DECISIONS, tenant=tenant)
    return int(row[0]) if row else 0
