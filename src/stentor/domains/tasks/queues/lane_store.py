"""SQL of the queue on SQLite, by lanes: the queued tasks of one agent, priority and submitter, by age.

For PostgreSQL it is in `queue_store`.
"""

from __future__ import annotations

import msgspec

from stentor.core.db import RowsSql, Sql, Tx
from stentor.domains.tasks.model import QueuedTask
from stentor.domains.tasks.queues.queue_store import QUEUED_COLUMNS, queued_from_row

_NEXT = """(select t.rowid from tasks as t where t.status = 'queued' and t.parked = 0{more}
    order by t.assigned_agent, t.priority, t.submitted_by, t.queued_at, t.task_id limit 1)"""
_SAME_AGENT = " and t.assigned_agent = head.assigned_agent"
# A recursive "skip scan": steps through the index from one lane to the next, so that the cost does not depend on the
# length of the lanes. Three steps, because SQLite seeks by only the first column of a row value that is compared.
_HEADS = f"""with recursive heads (id) as (
        select {_NEXT.format(more=" and t.assigned_agent > ''")}
        union all
        select coalesce(
            {_NEXT.format(more=f"{_SAME_AGENT} and t.priority = head.priority and t.submitted_by > head.submitted_by")},
            {_NEXT.format(more=f"{_SAME_AGENT} and t.priority > head.priority")},
            {_NEXT.format(more=" and t.assigned_agent > head.assigned_agent")})
        from heads join tasks as head on head.rowid = heads.id
    )"""
_LIST_HEADS = Sql(f"{_HEADS} select {QUEUED_COLUMNS} from heads join tasks on tasks.rowid = heads.id")
_OLDEST = Sql(f"{_HEADS} select min(queued_at) from heads join tasks on tasks.rowid = heads.id")
_LIST_LANE = Sql(
    f"""select {QUEUED_COLUMNS} from tasks
    where status = 'queued' and parked = 0 and assigned_agent = :agent_id and priority = :priority
        and submitted_by = :submitter and (queued_at, task_id) > (:queued_at, :task_id)
    order by queued_at, task_id limit :limit"""
)
_DEPTHS = RowsSql(
    ("tenant", "agent_id"),
    """select c.agent_id, c.n from given join task_counts as c
        on c.tenant = given.tenant and c.hour = -1 and c.status = 'queued' and c.agent_id = given.agent_id""",
)


class QueueHeads(msgspec.Struct, frozen=True):
    """The oldest task of each lane, and how many tasks are queued for each of their agents, parked ones included."""

    heads: list[QueuedTask]
    depths: dict[str, int]


def read_heads(tx: Tx) -> QueueHeads:
    heads = [queued_from_row(row) for row in tx.rows(_LIST_HEADS)]
    agents = sorted({(head.tenant, head.agent_id) for head in heads})
    return QueueHeads(heads, {agent_id: int(n) for agent_id, n in tx.rows_for(_DEPTHS, agents)})


def list_lane(
    tx: Tx, agent_id: str, priority: int, submitter: str, after: tuple[int, str], limit: int
) -> list[QueuedTask]:
    """List the tasks of a lane, oldest first, that follow `after`, a time of queueing and a task id."""
    rows = tx.rows(
        _LIST_LANE,
        agent_id=agent_id,
        priority=priority,
        submitter=submitter,
        queued_at=after[0],
        task_id=after[1],
        limit=limit,
    )
    return [queued_from_row(row) for row in rows]


def find_oldest_queued_at(tx: Tx) -> int | None:
    """Do what `queue_store.find_oldest_queued_at` does."""
    oldest = tx.rows(_OLDEST)[0][0]
    return None if oldest is None else int(oldest)
