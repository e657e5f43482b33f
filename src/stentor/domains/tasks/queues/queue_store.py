"""SQL of the queue on PostgreSQL: the tasks that may be claimed, in their order, and how many wait for each agent.

For SQLite it is in `lane_store`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import ids
from stentor.core.db import Sql, Tx
from stentor.domains.tasks.model import QueuedTask
from stentor.domains.tasks.rows import corrupt_task, decode_metadata

QUEUED_COLUMNS = (
    "tenant, task_id, priority, queued_at, assigned_agent, runtime_kind, epoch, head_id, submitted_by, metadata"
)
# `skip locked`: each process gets the tasks that no other one is claiming at this moment. PostgreSQL only.
_NEXT = f"""select {QUEUED_COLUMNS} from tasks
    where status = 'queued' and parked = 0 and {{which}}
    order by priority, turn, queued_at limit :limit for update skip locked"""
_NEXT_FOR_AGENT = Sql(_NEXT.format(which="assigned_agent = :agent_id"))
_NEXT_IN_PROCESS = Sql(_NEXT.format(which="runtime_kind <> 'worker' and assigned_agent <> all(:full)"))
_HAS_QUEUED = Sql(
    """select 1 from tasks where status = 'queued' and parked = 0 and assigned_agent = :agent_id
    order by priority limit 1"""
)
_FIRST_AGENT = """select tenant, assigned_agent from tasks where status = 'queued' and parked = 0{more}
    order by assigned_agent limit 1"""
# A recursive "skip scan": steps through the index from one agent with queued tasks to the next, so that the cost
# depends neither on the number of idle agents nor on the length of the queues. Only the indexes of tasks that are not
# parked begin with the agent.
_QUEUE_DEPTHS = Sql(
    f"""with recursive waiting (tenant, agent_id) as (
        ({_FIRST_AGENT.format(more="")})
        union all
        select next.* from waiting,
            lateral ({_FIRST_AGENT.format(more=" and assigned_agent > waiting.agent_id")}) as next
    )
    select agent_id, n from waiting, lateral (
        select n from task_counts as c
        where c.tenant = waiting.tenant and c.hour = -1 and c.status = 'queued' and c.agent_id = waiting.agent_id
    ) as counted where n > 0"""
)
# For each priority one lookup in the index of queued tasks.
_OLDEST_QUEUED_AT = Sql(
    """select min(oldest.queued_at) from (values (0), (1), (2), (3)) as p (priority), lateral (
        select queued_at from tasks where status = 'queued' and parked = 0 and priority = p.priority
        order by queued_at limit 1
    ) as oldest"""
)


def next_for_agent(tx: Tx, agent_id: str, limit: int) -> list[QueuedTask]:
    """List the most urgent queued tasks of an agent that no other process is claiming; PostgreSQL only."""
    return [queued_from_row(row) for row in tx.rows(_NEXT_FOR_AGENT, agent_id=agent_id, limit=limit)]


def has_queued(tx: Tx, agent_id: str) -> bool:
    """Return whether the agent has queued tasks besides those that this transaction claimed."""
    return bool(tx.rows(_HAS_QUEUED, agent_id=agent_id))


def next_in_process(tx: Tx, full: list[str], limit: int) -> list[QueuedTask]:
    """List the most urgent queued tasks of agents that run inside the service, except `full` ones; PostgreSQL only."""
    return [queued_from_row(row) for row in tx.rows(_NEXT_IN_PROCESS, full=full, limit=limit)]


def read_queue_depths(tx: Tx) -> dict[str, int]:
    """Return the number of queued tasks per agent, without agents that have none or only parked ones; PostgreSQL only.

    The parked ones of the others are counted.
    """
    return {agent_id: int(n) for agent_id, n in tx.rows(_QUEUE_DEPTHS)}


def find_oldest_queued_at(tx: Tx) -> int | None:
    """Return since when the oldest queued task waits for its agent, in microseconds; PostgreSQL only.

    Parked tasks do not count: waiting for a slot of their limit is no backlog.
    """
    oldest = tx.rows(_OLDEST_QUEUED_AT)[0][0]
    return None if oldest is None else int(oldest)


def queued_from_row(row: tuple[Any, ...]) -> QueuedTask:
    """Return a row of `QUEUED_COLUMNS`. Raises CorruptRow."""
    submitted_by, metadata = row[-2:]
    queued = QueuedTask(*row[:-2])
    # The next event of the task must sort after its last one, even if another process with a faster clock wrote that.
    ids.advance_past(queued.head_id)
    # A text search first: without a grant or a limit the key is not in the JSON; a false positive only adds a check.
    try:
        limit = decode_metadata(metadata).limit if '"limit"' in metadata else None
    except msgspec.MsgspecError as error:
        raise corrupt_task(queued.tenant, queued.task_id, error) from error
    return msgspec.structs.replace(queued, granted='"grant_id"' in metadata, submitted_by=submitted_by, limit=limit)
