"""What people have to decide about steps: lists and counts for the API and the dashboard."""

from __future__ import annotations

from stentor.core.db import Sql, Tx
from stentor.domains.steps.model import Step
from stentor.domains.steps.store import COLUMNS_OF_OPEN, step_from_row

Decision = tuple[str, str, str | None, Step]
"""Task, its title, its agent, and a step that waits for a person."""
_FOR_PEOPLE = """from task_steps join tasks
    on tasks.tenant = task_steps.tenant and tasks.task_id = task_steps.task_id
    where task_steps.tenant = :tenant and task_steps.state = 'started' and task_steps.kind in ('question', 'effect')
        and (tasks.status = 'waiting' and task_steps.kind = 'question'
            or tasks.status not in ('executing', 'queued') and task_steps.kind = 'effect')"""
_LIST_FOR_PEOPLE = Sql(
    f"""select coalesce(tasks.title, tasks.type), tasks.assigned_agent, {COLUMNS_OF_OPEN} {_FOR_PEOPLE}
        and (cast(:key as text) is null or tasks.submitted_by = :key or tasks.assigned_agent in
            (select agent_id from agents where tenant = :tenant and key_name = :key))
        and task_steps.event_id > :after
    order by task_steps.event_id limit :limit"""
)
_LIST_LATEST = Sql(
    f"select {COLUMNS_OF_OPEN} from task_steps where tenant = :tenant and task_id = :task_id "
    "order by event_id desc limit :limit"
)
_COUNT_DECISIONS = Sql(f"select count(*) {_FOR_PEOPLE}")


def count_decisions(tx: Tx, tenant: str) -> int:
    """Count the questions and the unknown effects that wait for a person."""
    row = tx.row(_COUNT_DECISIONS, tenant=tenant)
    return int(row[0]) if row else 0


def list_for_people(tx: Tx, tenant: str, key: str | None, after: str, limit: int) -> list[Decision]:
    """List open questions, and effects whose outcome is unknown, that began after an event id, oldest first.

    Only those of tasks that are visible to the key; None sees all.
    """
    rows = tx.rows(_LIST_FOR_PEOPLE, tenant=tenant, key=key, after=after, limit=limit)
    return [(row[3], row[0], row[1], step_from_row(row[4:])) for row in rows]


def list_latest(tx: Tx, tenant: str, task_id: str, limit: int) -> list[Step]:
    """List the steps of a task that began last, oldest first."""
    rows = tx.rows(_LIST_LATEST, tenant=tenant, task_id=task_id, limit=limit)
    return [step_from_row(row[2:]) for row in reversed(rows)]
